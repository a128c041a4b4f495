"""The calls that the explorer makes, each one call of one script on one slot.

The calls are built, and their replies are read, by the functions that clients use.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rmq_spark.client import TopicDefinition
from rmq_spark.protocol import claiming, reading, sending
from rmq_spark.protocol.calls import BoundedRequest, Call, Request
from rmq_spark.protocol.claims import Claim, ClaimRequest, Rollback
from rmq_spark.protocol.names import ClaimId
from rmq_spark.protocol.topic_queues import TopicQueues
from rmq_spark.topics.definition import Keys

from .ghosts import Row

LEASE_MS = 3_600_000
WAIT_MS = 3_600_000
ANSWERED = ("claim", "replay", "renew", "release", "due")


@dataclass(frozen=True)
class Action:
    """One thing that may be called; of the fields, those that its kind needs.

    times: how often it may be called on one path, None for no bound.
    """

    text: str
    kind: str
    ask: Callable[[TopicQueues], Request[Any] | BoundedRequest[Any]]
    slot: int = 0
    consumer: str = ""
    run: int = 0
    seq: int = 0
    ordinal: int = 0
    limit: int = 0
    epoch: int | None = None
    replay_only: bool = False
    mark: str = ""
    contents: frozenset[str] = frozenset()
    paused: bool = False
    times: int | None = None

    @property
    def claim(self) -> str:
        """The name of the claim it is about."""
        return f"{self.consumer}:{self.seq}:{self.ordinal}"


# -- what senders and people call


def send(content: str, score: int, *, slot: int = 0, times: int = 1) -> Action:
    pairs = {slot: [score, content.encode()]}
    return Action(
        f"send {content} with {score}",
        "send",
        lambda queues: sending.send(queues, pairs),
        slot=slot,
        contents=frozenset({content}),
        times=times,
    )


def cancel(content: str, *, slot: int = 0) -> Action:
    wanted = {slot: [content.encode()]}
    return Action(
        f"cancel {content}",
        "cancel",
        lambda queues: sending.cancel(queues, wanted),
        slot=slot,
        contents=frozenset({content}),
    )


def requeue(content: str, score: int, *, slot: int = 0) -> Action:
    return Action(
        f"requeue {content} with {score}",
        "requeue",
        lambda queues: sending.requeue(queues, {slot: [score, content.encode()]}),
        slot=slot,
        contents=frozenset({content}),
    )


def expire(*, slot: int = 0) -> Action:
    return Action(
        f"expire slot {slot}", "expire", lambda queues: claiming.expire(queues, [slot]), slot=slot
    )


def pause(paused: bool, *, slot: int = 0) -> Action:
    return Action(
        f"slot {slot} is {'paused' if paused else 'resumed'}",
        "pause",
        lambda queues: claiming.pause(queues, paused),
        slot=slot,
        paused=paused,
    )


# -- what consumers call; a caller is a consumer and its run, such as "a1"


def plan(caller: str, seq: int, *, slot: int = 0) -> Action:
    """Once, as a query plans each batch once."""
    consumer, run = who(caller)
    mark = mark_of(caller, seq)
    return Action(
        f"{caller} plans batch {seq} in slot {slot}",
        "plan",
        lambda queues: claiming.plan(queues, [slot], consumer, run, mark),
        **{"slot": slot, "consumer": consumer, "run": run, "seq": seq},
        mark=mark,
        times=1,
    )


def mark_of(caller: str, seq: int) -> str:
    return f"{caller}-{seq}"


def claim(
    caller: str,
    seq: int,
    ordinal: int = 0,
    *,
    slot: int = 0,
    limit: int = 2,
    epoch: int | None = None,
    replay_only: bool = False,
    planned: bool = False,
) -> Action:
    consumer, run = who(caller)
    mark = mark_of(caller, seq) if planned else ""
    how = f", limit {limit}" + f", epoch {epoch}" * (epoch is not None) + ", replay" * replay_only
    how += ", planned" * planned
    return Action(
        f"{caller} claims {consumer}:{seq}:{ordinal} in slot {slot}{how}",
        "claim",
        lambda queues: claiming.claim(
            queues,
            [ClaimRequest(slot, ordinal, limit)],
            consumer=consumer,
            run=run,
            seq=seq,
            lease_ms=LEASE_MS,
            epochs=None if epoch is None else {slot: epoch},
            replay_only=replay_only,
            mark=mark,
        ),
        **{"slot": slot, "consumer": consumer, "run": run, "seq": seq, "ordinal": ordinal},
        limit=limit,
        epoch=epoch,
        replay_only=replay_only,
        mark=mark,
    )


def due(caller: str, *, slot: int = 0, epoch: int | None = None) -> Action:
    consumer, run = who(caller)
    return Action(
        f"{caller} asks what is due in slot {slot}",
        "due",
        lambda queues: reading.due(
            queues, [slot], consumer, epochs=None if epoch is None else {slot: epoch}
        ),
        **{"slot": slot, "consumer": consumer, "run": run},
        epoch=epoch,
    )


def replay(caller: str, to: int, *, slot: int = 0, times: int | None = None) -> Action:
    consumer, run = who(caller)
    return Action(
        f"{caller} replays batches 1 to {to} in slot {slot}",
        "replay",
        lambda queues: claiming.replay(queues, consumer, run, 0, to, LEASE_MS),
        **{"slot": slot, "consumer": consumer, "run": run, "seq": to},
        times=times,
    )


def commit(caller: str, seq: int, *, slot: int = 0) -> Action:
    consumer, run = who(caller)
    return Action(
        f"{caller} commits up to batch {seq} in slot {slot}",
        "commit",
        lambda queues: claiming.commit(queues, [slot], consumer, run, seq),
        **{"slot": slot, "consumer": consumer, "run": run, "seq": seq},
    )


def release(caller: str, *, slot: int = 0) -> Action:
    consumer, run = who(caller)
    return Action(
        f"{caller} releases slot {slot}",
        "release",
        lambda queues: claiming.release(queues, [slot], consumer, run),
        **{"slot": slot, "consumer": consumer, "run": run},
    )


def give_back(caller: str, *, slot: int = 0) -> Action:
    consumer, run = who(caller)
    return Action(
        f"{caller} gives back slot {slot}",
        "give_back",
        lambda queues: claiming.give_back(queues, [slot], consumer, run),
        **{"slot": slot, "consumer": consumer, "run": run},
    )


def renew(caller: str, *, slot: int = 0) -> Action:
    consumer, run = who(caller)
    return Action(
        f"{caller} renews slot {slot}",
        "renew",
        lambda queues: claiming.renew(queues, [slot], consumer, run, LEASE_MS),
        **{"slot": slot, "consumer": consumer, "run": run},
    )


def unread(caller: str, seq: int, *, slot: int = 0) -> Action:
    consumer, run = who(caller)
    return Action(
        f"{caller} marks batch {seq} in slot {slot} as unread",
        "unread",
        lambda queues: claiming.unread(queues, [slot], consumer, run, seq),
        **{"slot": slot, "consumer": consumer, "run": run, "seq": seq},
    )


def rollback(
    caller: str,
    seq: int,
    content: str,
    ordinal: int = 0,
    *,
    slot: int = 0,
    wait: bool | None = None,
) -> Action:
    """wait: None for the topic's backoff, else whether there is one."""
    consumer, run = who(caller)
    claim_id = str(ClaimId(consumer, seq, ordinal, run))
    delay_ms = None if wait is None else wait * WAIT_MS
    how = "" if delay_ms is None else f" for {delay_ms} ms"
    return Action(
        f"{content} of {claim_id} is rolled back{how}",
        "rollback",
        lambda queues: claiming.rollbacks(
            queues, [Rollback(slot, claim_id, [content.encode()], delay_ms)]
        ),
        **{"slot": slot, "consumer": consumer, "run": run, "seq": seq, "ordinal": ordinal},
        contents=frozenset({content}),
    )


def who(caller: str) -> tuple[str, int]:
    return caller[:-1], int(caller[-1])


# -- how they get to Redis


class Calls:
    """The calls of a topic's actions, and what their replies mean."""

    def __init__(self, definition: TopicDefinition, key_prefix: str) -> None:
        self.keys = Keys(definition.name, key_prefix)
        self._queues = TopicQueues(definition, self.keys)

    def of(self, action: Action) -> Call:
        """The one call that an action is; of one on all slots, that on its own slot."""
        calls = action.ask(self._queues).calls
        return calls[action.slot if len(calls) > 1 else 0]

    def answer(self, action: Action, reply: Any) -> Any:
        """A reply as the caller gets it; of a claim, its messages as rows.

        Of calls whose answers nobody looks at, the reply.
        """
        if action.kind not in ANSWERED:
            return reply
        request = action.ask(self._queues)
        replies = [[] for _ in request.calls]  # a replay asks all slots
        replies[action.slot if len(replies) > 1 else 0] = reply
        answer = request.parse(replies)
        return self._rows(answer[0]) if action.kind == "claim" else answer

    def _rows(self, claim: Claim) -> tuple[Row, ...]:
        return tuple(
            (
                message.content.decode(),
                message.due_time_ms or message.priority,
                message.retries_left,
            )
            for message in claim.messages(self._queues.definition.type)
        )
