"""The small worlds: a topic, and the calls that may be made on it in any order."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rmq_spark.client import TopicDefinition, TopicType
from rmq_spark.topics.definition import BURY, KEEP_FIRST
from rmq_spark.topics.verdicts import Ending

from .calls import (
    WAIT_MS,
    Action,
    Knows,
    cancel,
    claim,
    commit,
    due,
    expire,
    give_back,
    leave,
    move,
    pause,
    plan,
    release,
    renew,
    replay,
    requeue,
    rollback,
    send,
    unread,
)
from .slot_state import Slot


def like_spark(state: Any, by: Action) -> bool:
    """What Spark keeps to.

    A later run commits when it has read all that its replays listed. It plans no batch of which a
    claim was made: before that, the batch is in Spark's log, and is replayed.
    """
    if by.kind == "plan":
        begin = f"{by.consumer}:{by.seq}:"
        return not any(name.startswith(begin) for name in state.ghosts[by.slot].made)
    if by.kind != "commit" or by.run == 1:
        return True
    caller = (by.consumer, by.run)
    return all(ghost.unread.get(caller) == frozenset() for ghost in state.ghosts)


def with_payloads_in_order(state: Any, by: Action) -> bool:
    """Like Spark; and the payloads x1, x2, ... of a key x are sent in their order."""
    if by.kind == "send":
        begin = f"send {min(by.contents)} "
        before = sum(text.startswith(begin) for text, _ in state.called)
        return before >= int(by.payload[1:]) - 1
    return like_spark(state, by)


def like_a_plain_consumer(state: Any, by: Action) -> bool:
    """What a consumer in plain Python keeps to.

    It leaves a slot before it asks for the next batch, and a later run before all else; it claims
    when its own claims are given back, and commits the batches that it has claimed itself.
    """
    if by.kind == "claim" and holds_an_earlier_batch(state.slots[by.slot], by):
        return False
    if by.run < 2 or by.kind == "abandon":
        return True
    ghost = state.ghosts[by.slot]
    has_begun = ghost.runs.get(by.consumer, 0) >= by.run  # nothing else could come first
    read = ghost.reads.get(by.claim, (0, ()))[0] == by.run
    return has_begun and (by.kind != "commit" or read)


def holds_an_earlier_batch(slot: Slot, by: Action) -> bool:
    names = (name.split(":") for name, record in slot.claims if record.live)
    return any(consumer == by.consumer and int(seq) < by.seq for consumer, seq, _ in names)


@dataclass(frozen=True, repr=False)
class World:
    """depth: calls and ends of leases on a path, in full; small_depth: within the tests.

    begin: the texts of the calls that come first. may: what callers keep to, by what was seen.
    forgets: whether the server may fall back to an earlier state.
    """

    name: str
    topic: TopicDefinition
    begin: tuple[str, ...]
    actions: tuple[Action, ...]
    depth: int
    small_depth: int
    may: Callable[[Any, Action], bool] = like_spark
    forgets: bool = False

    @property
    def turns(self) -> bool:
        """Whether claims of single messages take turns, by how many were claimed so far."""
        return any(action.limit == 1 for action in self.actions)

    def claims(self, slot: int) -> tuple[str, ...]:
        """The names of all claims that its calls can make in a slot."""
        made = {a.claim for a in self.actions if a.kind == "claim" and a.slot == slot}
        return tuple(sorted(made))

    @property
    def slots(self) -> int:
        return self.topic.slot_amount

    def action(self, text: str) -> Action:
        return next(action for action in self.actions if action.text == text)


def topic(kind: TopicType, slots: int = 1, **settings: Any) -> TopicDefinition:
    return TopicDefinition("T", kind, slots, **settings)


RETRIES = World(
    "retries",
    topic(TopicType.FIXED_TIME, max_retries=1),
    begin=("send x with 1000", "send y with 2000"),
    actions=(
        send("x", 1000, times=2),
        send("y", 2000),
        cancel("x"),
        requeue("x", 3000),
        expire(),
        claim("a1", 1),
        claim("a1", 1, 1),
        claim("a1", 2),
        claim("a2", 1),
        claim("a2", 1, replay_only=True),
        claim("a2", 2),
        claim("b1", 1),
        claim("b1", 2),
        claim("b1", 2, knows=Knows.NONE),
        claim("b1", 2, knows=Knows.STALE),
        replay("a2", 2),
        commit("a1", 1),
        commit("a1", 2),
        commit("a1", 2, knows=Knows.STALE),
        commit("a2", 1),
        commit("a2", 2),
        commit("b1", 1, knows=Knows.NONE),
        give_back("a:1:0"),
        give_back("a:1:1"),
        give_back("a:2:0"),
        give_back("b:1:0"),
        release("a1"),
        release("a2"),
        renew("a1"),
        renew("a2"),
        rollback("a1", 1, "x"),
        rollback("a2", 1, "x"),
        rollback("b1", 1, "x"),
    ),
    depth=7,
    small_depth=3,
)

SLOTS = World(
    "slots",
    topic(TopicType.RANGE_MERGE, 2),
    begin=("send x with 3600000", "send y with 3600000"),
    actions=(
        send("x", WAIT_MS, slot=0, times=2),
        send("y", WAIT_MS, slot=1),
        *(
            action
            for slot in (0, 1)
            for action in (
                claim("a1", 1, slot=slot),
                claim("a1", 2, slot=slot),
                claim("a2", 1, slot=slot, replay_only=True),
                claim("a2", 2, slot=slot),
                due("a2", slot=slot),
                replay("a2", 2, slot=slot),
                commit("a1", 1, slot=slot),
                commit("a2", 1, slot=slot),
                commit("a2", 2, slot=slot),
                release("a1", slot=slot),
                give_back("a:1:0", slot=slot),
            )
        ),
        rollback("a1", 1, "x"),
        rollback("a2", 1, "x"),
        renew("a2"),
    ),
    depth=6,
    small_depth=3,
)

EXCLUSIVE = World(
    "exclusive",
    topic(TopicType.FIXED_TIME, exclusive=True, max_retries=2),
    begin=("send x with 1000", "send y with 2000"),
    actions=(
        send("x", 1000, times=2),
        send("y", 2000),
        expire(),
        claim("a1", 1, limit=1, epoch=1),
        claim("a1", 2, epoch=1),
        claim("a1", 2, epoch=3),
        claim("a2", 1, epoch=3),
        claim("b1", 1, epoch=2),
        claim("b1", 2, epoch=2),
        claim("b1", 2, epoch=2, knows=Knows.NONE),
        due("a1", epoch=1),
        due("b1", epoch=2),
        replay("a2", 2),
        commit("a1", 1),
        commit("a1", 2),
        commit("a2", 1),
        commit("b1", 1),
        give_back("a:1:0"),
        give_back("a:2:0"),
        give_back("b:1:0"),
        release("a1"),
        release("b1"),
        renew("b1"),
        rollback("a1", 1, "x"),
        rollback("b1", 1, "y"),
    ),
    depth=6,
    small_depth=3,
)

BACKOFF = World(
    "backoff",
    topic(TopicType.FIXED_TIME, max_retries=1, retry_backoff_ms=(WAIT_MS,)),
    begin=("send x with 1000", "send y with 2000"),
    actions=(
        send("x", 1000, times=2),
        send("y", 2000),
        send("y", -WAIT_MS),
        cancel("x"),
        move("x", 1500),
        move("x", 10**13),
        requeue("x", 3000),
        expire(),
        claim("a1", 1),
        claim("a1", 2),
        claim("a2", 1),
        claim("b1", 1),
        due("b1"),
        replay("a2", 2),
        commit("a1", 1),
        commit("a2", 1),
        commit("b1", 1),
        give_back("a:1:0"),
        give_back("b:1:0"),
        release("a1"),
        unread("a1", 1),
        unread("a2", 1),
        rollback("a1", 1, "x"),
        rollback("a1", 1, "x", wait=False),
        rollback("a1", 1, "x", wait=True, ending=Ending.UNCHARGED),
        rollback("b1", 1, "y", ending=Ending.UNCHARGED),
        rollback("a1", 1, "x", ending=Ending.BURY),
        rollback("a1", 2, "x"),
        rollback("a2", 1, "x"),
        rollback("b1", 1, "x"),
        rollback("b1", 1, "y"),
    ),
    depth=6,
    small_depth=3,
)

PRIORITY = World(
    "priority",
    topic(TopicType.PRIORITY, max_retries=1),
    begin=("send x with 20", "send y with 30", "send z with 40"),
    actions=(
        send("x", 20),
        send("y", 30),
        send("z", 40),
        send("x", 50),
        cancel("x"),
        requeue("z", 17),
        expire(),
        claim("a1", 1, limit=1),
        claim("a1", 2, limit=2),
        claim("a2", 1, limit=1),
        claim("a2", 3, limit=8, alone=True),
        claim("b1", 1, limit=1),
        claim("b1", 2, limit=2),
        claim("b1", 2, limit=2, knows=Knows.STALE),
        due("a1"),
        replay("a2", 3),
        commit("a1", 1),
        commit("a2", 2),
        commit("a2", 2, knows=Knows.NONE),
        commit("b1", 2),
        give_back("a:1:0"),
        give_back("b:1:0"),
        release("a1"),
        release("b1"),
        rollback("a1", 1, "z"),
        rollback("b1", 1, "z"),
        rollback("b1", 2, "y"),
    ),
    depth=5,
    small_depth=3,
)

PLAIN = World(
    "plain",
    topic(TopicType.FIXED_TIME, max_retries=2),
    begin=("send x with 1000", "send y with 2000"),
    actions=(
        send("x", 1000, times=2),
        send("y", 2000),
        claim("a1", 1, limit=1),
        claim("a1", 2),
        claim("a2", 2),
        claim("a2", 3),
        claim("b1", 1),
        due("a2"),
        leave("a1"),
        leave("a1", 2),
        leave("a2"),
        leave("a2", failed=True),
        give_back("a:1:0"),
        give_back("a:2:0"),
        give_back("a:3:0"),
        give_back("b:1:0"),
        renew("a1"),
        renew("a2"),
        commit("a1", 1),
        commit("a1", 2),
        commit("a2", 2),
        commit("a2", 3),
        commit("b1", 1),
        rollback("a1", 1, "x"),
        rollback("a2", 2, "x"),
        rollback("b1", 1, "y"),
        expire(),
    ),
    depth=9,
    small_depth=4,
    may=like_a_plain_consumer,
)

FORGETTING = World(
    "forgetting",
    topic(TopicType.FIXED_TIME, max_retries=2),
    begin=("send x with 1000",),
    actions=(
        send("x", 1000),
        send("y", 500),
        plan("a1", 1),
        plan("a1", 2),
        plan("a2", 2),
        claim("a1", 1, limit=1, planned=True),
        claim("a1", 1, 1, limit=1, planned=True),
        claim("a1", 2, limit=1, planned=True),
        claim("a2", 1, replay_only=True),
        claim("a2", 2, planned=True),
        replay("a2", 2, times=1),
        commit("a1", 1),
        commit("a1", 2),
        commit("a2", 1),
        commit("a2", 1, knows=Knows.NONE),
        give_back("a:1:0"),
        release("a1"),
        rollback("a1", 1, "x"),
    ),
    depth=7,
    small_depth=4,
    forgets=True,
)

PAUSING = World(
    "pausing",
    topic(TopicType.FIXED_TIME, max_retries=2),
    begin=("send x with 1000", "a1 plans batch 1 in slot 0"),
    actions=(
        send("x", 1000),
        send("y", 500),
        pause(True),
        pause(False),
        plan("a1", 1),
        plan("a1", 2),
        claim("a1", 1, limit=1, planned=True),
        claim("a1", 1, 1, limit=1, planned=True),
        claim("a1", 2, limit=1, planned=True),
        claim("a2", 1, replay_only=True),
        claim("b1", 1),
        claim("b1", 1, knows=Knows.NONE),
        due("b1"),
        replay("a2", 1, times=1),
        leave("b1"),
        give_back("a:1:0"),
        give_back("b:1:0"),
        commit("a1", 1),
        commit("a2", 1),
        commit("b1", 1),
        release("a1"),
        expire(),
    ),
    depth=7,
    small_depth=4,
)

KEYED = World(
    "keyed",
    topic(TopicType.FIXED_TIME, max_retries=1, keyed=True, on_expiry=BURY),
    begin=("send x with 1000 and payload x1", "send y with 2000 and payload y1"),
    actions=(
        send("x", 1000, "x1"),
        send("y", 2000, "y1"),
        send("x", 1000, "x2"),
        send("x", 1000, "x3", expires=True),
        cancel("x"),
        requeue("x", 3000),
        claim("a1", 1),
        claim("a1", 2),
        claim("a2", 1),
        claim("b1", 1),
        replay("a2", 2),
        commit("a1", 1),
        commit("a2", 1),
        commit("b1", 1),
        give_back("a:1:0"),
        give_back("b:1:0"),
        release("a1"),
        unread("a1", 1),
        rollback("a1", 1, "x"),
        rollback("a1", 1, "x", wait=True),
        rollback("a1", 1, "y"),
        rollback("a1", 1, "y", ending=Ending.BURY),
        rollback("a1", 2, "x"),
        rollback("b1", 1, "x"),
        rollback("b1", 1, "x", ending=Ending.UNCHARGED),
    ),
    depth=6,
    small_depth=3,
    may=with_payloads_in_order,
)

REQUEUED = World(
    "requeued",
    topic(TopicType.FIXED_TIME, max_retries=1, keyed=True),
    begin=(
        "send x with 1000 and payload x1",
        "a1 claims a:1:0 in slot 0, limit 2",
        "x of a:1:0:1 is rolled back",
        "a1 claims a:2:0 in slot 0, limit 2",
        "x of a:2:0:1 is rolled back",
        "send x with 1000 and payload x2",
        "a1 claims a:3:0 in slot 0, limit 2",
    ),
    actions=(
        send("x", 1000, "x1"),
        send("x", 1000, "x2"),
        send("x", 1000, "x3"),
        cancel("x"),
        requeue("x", 3000),
        claim("a1", 1),
        claim("a1", 2),
        claim("a1", 3),
        claim("a1", 4),
        claim("b1", 1),
        commit("a1", 3),
        give_back("a:3:0"),
        release("a1"),
        unread("a1", 3),
        rollback("a1", 1, "x"),
        rollback("a1", 2, "x"),
        rollback("a1", 3, "x"),
        rollback("a1", 3, "x", wait=True),
        rollback("b1", 1, "x"),
    ),
    depth=7,
    small_depth=4,
    may=with_payloads_in_order,
)

FIRST_STAYS = World(
    "firstStays",
    topic(TopicType.PRIORITY, max_retries=0, keyed=True, payload=KEEP_FIRST),
    begin=("send x with 20 and payload x1, expires", "send y with 30 and payload y1"),
    actions=(
        send("x", 20, "x1", expires=True),
        send("y", 30, "y1"),
        send("x", 40, "x2"),
        send("x", 50, "x3", expires=True),
        cancel("x"),
        requeue("x", 17),
        claim("a1", 1, limit=1),
        claim("a1", 2, limit=2),
        claim("a2", 1),
        claim("b1", 1),
        replay("a2", 2),
        commit("a1", 1),
        commit("a2", 1),
        commit("b1", 1),
        give_back("a:1:0"),
        give_back("b:1:0"),
        release("a1"),
        unread("a1", 1),
        rollback("a1", 1, "x"),
        rollback("a1", 2, "x"),
        rollback("b1", 1, "x"),
    ),
    depth=6,
    small_depth=3,
    may=with_payloads_in_order,
)

SUSPECTS = World(
    "suspects",
    topic(TopicType.FIXED_TIME, max_retries=1, retry_backoff_ms=(WAIT_MS,)),
    begin=(
        "send x with 1000",
        "send y with 2000",
        "a1 claims a:1:0 in slot 0, limit 2",
        "a1 releases slot 0",
        "a:1:0 in slot 0 is given back",
        "a1 claims a:2:0 in slot 0, limit 1",
        "a1 releases slot 0",
        "a:2:0 in slot 0 is given back",
    ),
    actions=(
        send("x", 1000, times=2),
        send("y", 2000),
        requeue("x", 3000),
        claim("a1", 1),
        claim("a1", 2, limit=1),
        claim("a1", 3, alone=True),
        claim("a1", 4, alone=True),
        claim("a2", 5),
        claim("b1", 1, alone=True),
        claim("b1", 2),
        due("b1"),
        give_back("a:1:0"),
        give_back("a:2:0"),
        give_back("a:3:0"),
        give_back("a:4:0"),
        give_back("a:5:0"),
        give_back("b:1:0"),
        give_back("b:2:0"),
        leave("a2"),
        leave("a2", failed=True),
        release("a1"),
        unread("b1", 1),
        commit("a1", 4),
        rollback("b1", 1, "x"),
        rollback("b1", 1, "x", ending=Ending.UNREAD),
        rollback("b1", 1, "x", ending=Ending.UNCHARGED),
        rollback("b1", 1, "x", wait=True, ending=Ending.UNCHARGED),
    ),
    depth=7,
    small_depth=4,
)

EQUALS = World(
    "equals",
    topic(TopicType.PRIORITY, max_retries=1),
    begin=("send x with 20", "send y with 20"),
    actions=(
        send("x", 20, times=2),
        send("y", 20, times=2),
        send("z", 20),
        send("z", 30),
        cancel("x"),
        move("y", 30),
        move("z", 20),
        claim("a1", 1, limit=1),
        claim("a1", 2, limit=2),
        claim("a2", 1, replay_only=True),
        claim("b1", 1, limit=1),
        replay("a2", 2),
        commit("a1", 1),
        commit("a1", 2),
        commit("b1", 1),
        release("a1"),
        rollback("a1", 1, "x"),
        rollback("a1", 1, "y"),
        rollback("b1", 1, "y"),
        give_back("a:1:0"),
        expire(),
    ),
    depth=6,
    small_depth=3,
)

FULL = World(
    "full",
    topic(TopicType.FIXED_TIME, max_retries=1, max_messages=2),
    begin=("send x with 1000", "send y with 2000"),
    actions=(
        send("x", 1000, times=2),
        send("y", 2000, times=2),
        send("z", 1000, times=2),
        cancel("x"),
        requeue("x", 3000),
        move("y", 3000),
        claim("a1", 1),
        claim("a1", 1, 1, limit=1),
        claim("a2", 1, replay_only=True),
        claim("b1", 1, limit=1),
        replay("a2", 1),
        commit("a1", 1),
        commit("b1", 1),
        release("a1"),
        rollback("a1", 1, "x"),
        rollback("a1", 1, "y", wait=True),
        rollback("b1", 1, "x"),
        give_back("a:1:0"),
        expire(),
    ),
    depth=8,
    small_depth=4,
)

WORLDS = (
    *(RETRIES, SLOTS, EXCLUSIVE, BACKOFF, PRIORITY, PLAIN, FORGETTING, PAUSING),
    *(KEYED, REQUEUED, FIRST_STAYS, SUSPECTS, EQUALS, FULL),
)
