"""Claims of an earlier version: refused with the remedy, and given back by it.

The data was written by the last version with one prepare queue for each slot, in the topics Orders
(FixedTime) and Urgent (Priority): a claim that was read, and one that was marked unread; retries
among their messages; and in each topic a message that was sent again while it was claimed.
"""

import json
from pathlib import Path

import pytest

from rmq_spark.client.claim_keys import outdated_claims
from rmq_spark.errors import ScriptFailed

COMMANDS = json.loads(Path(__file__).with_name("claims_of_version_2.json").read_text())
TOPICS = ("Orders", "Urgent")
# The messages by their numbers: the scores of those that were never delivered, and the retries left
# of the others. The ones that were sent again have new scores.
FIRST_SCORES = {
    "Orders": {n: 1_700_000_000_000 + n for n in range(4, 12)} | {8: 1_700_000_000_500},
    "Urgent": {n: 100 + n for n in range(10)} | {11: 600},
}
RETRIES_LEFT = {"Orders": range(4), "Urgent": (6, 7, 10)}


@pytest.fixture
def old(broker):
    prefix = broker.key_prefix
    for command, key, *values in COMMANDS:
        prefixed = prefix + key.replace("{", "{" + prefix)
        broker.server.client.execute_command(command, prefixed, *values)
    return broker


@pytest.mark.parametrize("topic", TOPICS)
def test_claims_of_an_earlier_version_are_refused_with_the_remedy(old, topic):
    queue = old.queue(topic)
    for call in (queue.figures, queue.expire, lambda: old.consumer(topic, "new")):
        with pytest.raises(ScriptFailed, match=r"another version of rmq-spark.*: rmq upgrade"):
            call()
    assert outdated_claims(queue) > 0


@pytest.mark.parametrize("topic", TOPICS)
def test_an_upgrade_gives_them_back_as_they_were(old, topic):
    queue = old.queue(topic)
    held = {"Orders": 8, "Urgent": 8}[topic]
    assert queue.upgrade() == held
    assert queue.upgrade() == outdated_claims(queue) == 0
    store = {
        int(content.split()[1]): score
        for slot in queue.slots
        for page in queue.pages("store", slot)
        for content, score in zip(page.contents, page.scores, strict=True)
    }
    assert store == FIRST_SCORES[topic] | dict.fromkeys(RETRIES_LEFT[topic], 3)
    counters = queue.figures().counters
    assert counters["accepted"] == 13
    assert counters["merged"] == 1
    for slot in queue.slots:
        keys = queue.keys.old_prepare(slot), queue.keys.old_first(slot)
        assert old.server.client.exists(*keys) == 0


@pytest.mark.parametrize("topic", TOPICS)
def test_all_are_consumed_after_an_upgrade_and_claims_of_this_version_stay(old, topic):
    queue = old.queue(topic)
    queue.upgrade()
    with old.consumer(topic, "new") as consumer:
        batch = consumer.poll()
        assert queue.upgrade() == 0
        assert len({message.content for message in batch}) == len(batch) == 12
        assert batch.commit() == 12
    assert queue.figures().messages == 0


def test_more_than_a_call_gives_back_is_given_back(broker):
    broker.create("Many", "FixedTime", 1)
    queue, client = broker.queue("Many"), broker.server.client
    for stamp in range(1, 4):
        client.hset(queue.keys.claims(0), f"c:{stamp}:0", f"2 {stamp} 1 0 1000 0 {stamp}000 0")
        client.hset(queue.keys.old_first(0), f"c:{stamp}:0", " ".join(["17"] * 1000))
        held = {f"{stamp} {n}": stamp * 1000 + 16 + n / 2048 for n in range(1000)}
        client.zadd(queue.keys.old_prepare(0), held)
    assert queue.upgrade() == 3000
    assert queue.figures().store.count == 3000
