"""cancel, requeue and purge take contents as people have them."""

import pytest

from rmq_spark import InvalidMessage, InvalidOption, QueueKind

DUE = 1000


@pytest.fixture
def topic(broker):
    broker.create("T", "FixedTime", 8)
    return broker.queue("T")


def kill(broker, name):
    """Moves all due messages of a topic without retries to the dead queue."""
    with broker.consumer(name, "killer") as consumer:
        batch = consumer.poll()
        return batch.rollback()


def test_cancel_works_out_the_slots(topic):
    topic.send(["abc", b"def", "ghi"], fixed_time=DUE)
    assert topic.cancel(["abc", b"def", "unknown"]) == 2
    assert topic.figures().store.count == 1


def test_a_slot_basis_names_the_slot_of_all(topic):
    topic.send(["abc", "def"], fixed_time=DUE, slot_basis="customer 7")
    assert topic.cancel(["abc"], slot_basis="customer 7") == 1
    assert topic.cancel({topic.definition.slot_of("customer 7"): ["def"]}) == 1


def test_text_has_the_slot_of_its_bytes(topic):
    assert topic.definition.slot_of("Zürich") == topic.definition.slot_of("Zürich".encode())


def test_requeue_brings_contents_back_at_once_or_later(broker):
    broker.create("T", "FixedTime", 8, max_retries=0)
    queue = broker.queue("T")
    queue.send(["now", "later", "mapped"], fixed_time=DUE)
    assert kill(broker, "T") == 3
    assert queue.requeue(["now"]) == 1
    assert queue.requeue(["later"], fixed_time=10**13) == 1
    assert queue.requeue({queue.definition.slot_of("mapped"): ["mapped"]}, fixed_time=10**13) == 1
    assert (queue.figures().store.count, queue.figures().store.due) == (3, 1)


def test_a_time_range_counts_from_the_requeue(broker):
    broker.create("T", "RangeMerge", 8, max_retries=0)
    queue = broker.queue("T")
    queue.send(["now", "later"], time_range=1)
    while not kill(broker, "T"):
        pass
    while queue.figures().dead.count < 2:
        kill(broker, "T")
    before = queue.now_ms()
    assert queue.requeue(["later"], time_range=3_600_000) == 1
    slot = queue.definition.slot_of("later")
    (page,) = queue.pages(QueueKind.STORE, slot)
    (entry,) = page.entries()
    assert before + 3_600_000 <= entry.due_time_ms <= queue.now_ms() + 3_600_000


def test_a_priority_is_needed_where_nothing_else_says_it(broker):
    broker.create("T", "Priority", 8, max_retries=0)
    queue = broker.queue("T")
    queue.send(["a"], priority=20)
    assert kill(broker, "T") == 1
    with pytest.raises(InvalidMessage, match=r"need a priority\. Accepted: a whole number, 17 to"):
        queue.requeue(["a"])
    assert queue.requeue(["a"], priority=30) == 1


def test_purge_works_out_the_slots(broker):
    broker.create("T", "FixedTime", 8, max_retries=0)
    queue = broker.queue("T")
    queue.send(["a", "b"], fixed_time=DUE)
    assert kill(broker, "T") == 2
    assert queue.purge(["a", "c"]) == 1
    queue.send(["d"], fixed_time=10**13)
    assert queue.purge(["d"], QueueKind.STORE) == 1
    with pytest.raises(InvalidOption, match="Messages that a consumer holds cannot be deleted"):
        queue.purge(["d"], QueueKind.PREPARE)


@pytest.mark.parametrize("slot", [8, -1, "0", 1.0])
def test_a_slot_that_is_not_there_is_an_error(topic, slot):
    for call in (topic.cancel, topic.purge, topic.requeue):
        with pytest.raises(InvalidOption, match=r"not a slot of topic T\. Accepted: 0 to 7"):
            call({slot: [b"m"]})
    with pytest.raises(InvalidOption, match="Accepted: 0 to 7"):
        topic.expire([slot])
    with pytest.raises(InvalidOption, match="Accepted: 0 to 7"):
        topic.pages(QueueKind.STORE, slot)


def test_other_things_are_no_contents(topic):
    calls = {"cancel": "cancelled", "move": "moved", "requeue": "requeued", "purge": "purged"}
    for name, done in calls.items():
        said = rf"Message 1: content is 7\. Accepted: bytes or str\. Nothing was {done}\."
        with pytest.raises(InvalidMessage, match=said):
            getattr(topic, name)([b"m", 7])
    with pytest.raises(InvalidOption, match="which name their slots"):
        topic.cancel({0: [b"m"]}, slot_basis="x")


@pytest.mark.parametrize("one", ["ab", b"ab"])
def test_one_content_in_the_place_of_a_list_is_refused_by_slot_too(topic, one):
    topic.send(["a", "b"], fixed_time=DUE)
    for call in (topic.cancel, topic.purge, topic.requeue):
        for given in (one, dict.fromkeys(topic.slots, one)):
            with pytest.raises(InvalidMessage, match=r"is a single .* Accepted: a list of"):
                call(given)
    assert topic.figures().store.count == 2
