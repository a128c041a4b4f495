"""The calls that the explorer makes, each one call of one script on one slot.

The calls are built, and their replies are read, by the functions that clients use.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rmq_spark.client import TopicDefinition
from rmq_spark.errors import LeaseLost
from rmq_spark.protocol import claiming, reading, returning, sending
from rmq_spark.protocol.bodies import Body
from rmq_spark.protocol.calls import Call, Read, Request, TopicQueues
from rmq_spark.protocol.claims import Claim, ClaimRequest, Rollback
from rmq_spark.protocol.names import ClaimId, claim_name
from rmq_spark.topics.keys import Keys
from rmq_spark.topics.verdicts import Ending

from .ghosts import NO_BODY, Row

LEASE_MS = 3_600_000
WAIT_MS = 3_600_000
EXPIRES_MS = 10**13  # what does not expire while anything is explored: in the year 2286
# The calls whose answers somebody looks at.
ANSWERED = (
    "claim",
    "replay",
    "renew",
    "release",
    "due",
    "commit",
    "abandon",
    "give_back",
    "expire",
)
UNNAMED = -1  # as claim.lua answers

# Requests are built for a topic, and for the claims of the slot that hold messages.
Ask = Callable[[TopicQueues, tuple[str, ...]], Request[Any]]


class Knows(StrEnum):
    """Which claims of the slot a caller names: those there are, none, or those of an earlier time.

    The last one names all claims that are possible, except the first one that holds messages.
    """

    ALL = "all"
    NONE = "none"
    STALE = "stale"


@dataclass(frozen=True)
class Unnamed:
    """What a claim answers whose caller has not named all claims that hold messages."""

    names: frozenset[str]


@dataclass(frozen=True)
class Action:
    """One thing that may be called; of the fields, those that its kind needs.

    times: how often it may be called on one path, None for no bound.
    """

    text: str
    kind: str
    ask: Ask
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
    knows: Knows = Knows.ALL
    times: int | None = None
    delayed: bool = False
    payload: str = ""
    expires: bool = False
    alone: bool = False
    failed: bool = False
    ending: Ending = Ending.RETRY

    @property
    def claim(self) -> str:
        """The name of the claim it is about."""
        return claim_name(self.consumer, self.seq, self.ordinal)


# -- what senders and people call


def send(
    content: str,
    score: int,
    payload: str = "",
    *,
    slot: int = 0,
    times: int = 1,
    expires: bool = False,
) -> Action:
    """score: as the send script takes it; of FixedTime, a delay is a negative one.

    payload: of a keyed topic, whose contents are keys; expires: whether it does so later.
    """
    pairs = {slot: [score, content.encode()]}
    body = Body(payload=payload.encode(), expires_at_ms=EXPIRES_MS if expires else None)
    bodies = {slot: [content.encode(), body.pack()]} if payload else None
    how = f" and payload {payload}" * (payload != "") + ", expires" * expires
    return Action(
        f"send {content} with {score}{how}",
        "send",
        lambda queues, _: sending.send(queues, pairs, bodies),
        slot=slot,
        contents=frozenset({content}),
        times=times,
        delayed=score < 0,
        payload=payload,
        expires=expires,
    )


def cancel(content: str, *, slot: int = 0) -> Action:
    wanted = {slot: [content.encode()]}
    return Action(
        f"cancel {content}",
        "cancel",
        lambda queues, _: sending.cancel(queues, wanted),
        slot=slot,
        contents=frozenset({content}),
    )


def move(content: str, score: int, *, slot: int = 0) -> Action:
    return Action(
        f"move {content} to {score}",
        "move",
        lambda queues, _: sending.move(queues, {slot: [content.encode()]}, score),
        slot=slot,
        contents=frozenset({content}),
    )


def requeue(content: str, score: int, *, slot: int = 0) -> Action:
    return Action(
        f"requeue {content} with {score}",
        "requeue",
        lambda queues, _: Request(
            next(sending.requeue(queues, {slot: [score, content.encode()]})).calls,
            lambda replies: replies[0][0],
        ),
        slot=slot,
        contents=frozenset({content}),
    )


def expire(*, slot: int = 0) -> Action:
    """Lists what has expired. What a client does then is a call of its own: give_back."""
    return Action(
        f"expire slot {slot}",
        "expire",
        lambda queues, _: Request(next(returning.expire(queues, [slot])).calls, only_names),
        slot=slot,
    )


def only_names(replies: list[Any]) -> frozenset[str]:
    """The names of claims that expire.lua answers."""
    return names_in(replies[0][1:])


def give_back(claim: str, *, slot: int = 0) -> Action:
    """Gives one claim back, as whoever has seen it expire may do at any time."""
    consumer, seq, ordinal = claim.split(":")
    return Action(
        f"{claim} in slot {slot} is given back",
        "give_back",
        lambda queues, _: Request(
            [returning.give_back_call(queues, slot, claim)], lambda replies: replies[0][0]
        ),
        **{"slot": slot, "consumer": consumer, "seq": int(seq), "ordinal": int(ordinal)},
    )


def pause(paused: bool, *, slot: int = 0) -> Action:
    return Action(
        f"slot {slot} is {'paused' if paused else 'resumed'}",
        "pause",
        lambda queues, _: claiming.pause(queues, None if paused else claiming.PAUSE_ENDS),
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
        lambda queues, _: claiming.plan(queues, [slot], consumer, run, mark),
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
    alone: bool = False,
    knows: Knows = Knows.ALL,
) -> Action:
    consumer, run = who(caller)
    mark = mark_of(caller, seq) if planned else ""
    own = claim_name(consumer, seq, ordinal)
    terms = claiming.Claiming(
        *(consumer, run, seq, LEASE_MS),
        epochs=None if epoch is None else {slot: epoch},
        replay_only=replay_only,
        mark=mark,
    )

    def ask(queues: TopicQueues, named: tuple[str, ...]) -> Request[Claim | Unnamed]:
        request = ClaimRequest(slot, ordinal, limit, alone=alone)
        others = [name for name in named if name != own]

        def read(replies: list[Any]) -> Claim | Unnamed:
            reply, bodies, rows = replies
            if reply[0] == UNNAMED:
                return Unnamed(names_in(reply[1:]))
            made = claiming.claim_of(queues, request, terms, reply, rows)
            return with_bodies(queues, made, bodies)

        return Request(claiming.claim_calls(queues, request, terms, others), read)

    how = f", limit {limit}" + f", epoch {epoch}" * (epoch is not None) + ", replay" * replay_only
    how += ", planned" * planned + ", alone" * alone + f", knows {knows}" * (knows != Knows.ALL)
    return Action(
        f"{caller} claims {own} in slot {slot}{how}",
        "claim",
        ask,
        **{"slot": slot, "consumer": consumer, "run": run, "seq": seq, "ordinal": ordinal},
        limit=limit,
        epoch=epoch,
        replay_only=replay_only,
        mark=mark,
        knows=knows,
        alone=alone,
    )


def with_bodies(queues: TopicQueues, made: Claim, bodies: Any) -> Claim:
    """The claim as its reader gets it."""
    try:
        return claiming.with_bodies(queues, made, bodies)
    except LeaseLost:
        return made


def due(caller: str, *, slot: int = 0, epoch: int | None = None) -> Action:
    consumer, run = who(caller)
    return Action(
        f"{caller} asks what is due in slot {slot}",
        "due",
        lambda queues, _: reading.due(
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
        lambda queues, _: claiming.replay(queues, consumer, run, 0, to, LEASE_MS),
        **{"slot": slot, "consumer": consumer, "run": run, "seq": to},
        times=times,
    )


def commit(caller: str, seq: int, *, slot: int = 0, knows: Knows = Knows.ALL) -> Action:
    """Answers the names of the claims that it has left, for another call."""
    consumer, run = who(caller)
    args = [consumer, run, seq, 0, ""]
    return Action(
        f"{caller} commits up to batch {seq} in slot {slot}"
        + f", knows {knows}" * (knows != Knows.ALL),
        "commit",
        lambda queues, named: Request(
            [claiming.commit_call(queues, slot, args, named)],
            lambda replies: names_in(replies[0][7:]),
        ),
        **{"slot": slot, "consumer": consumer, "run": run, "seq": seq},
        knows=knows,
    )


def release(caller: str, *, slot: int = 0) -> Action:
    consumer, run = who(caller)
    return Action(
        f"{caller} releases slot {slot}",
        "release",
        lambda queues, _: claiming.release(queues, [slot], consumer, run),
        **{"slot": slot, "consumer": consumer, "run": run},
    )


def leave(caller: str, seq: int = 0, *, slot: int = 0, failed: bool = False) -> Action:
    """What a plain consumer calls when it starts, polls or closes; it gives back behind this.

    failed: whether an error has ended its work.
    """
    consumer, run = who(caller)
    return Action(
        f"{caller} leaves slot {slot}" + f" after batch {seq}" * (seq > 0) + ", failed" * failed,
        "abandon",
        lambda queues, _: Request(
            next(returning.give_back(queues, [slot], consumer, run, seq, failed=failed)).calls,
            lambda replies: names_in(replies[0]),
        ),
        **{"slot": slot, "consumer": consumer, "run": run, "seq": seq},
        failed=failed,
    )


def renew(caller: str, *, slot: int = 0) -> Action:
    consumer, run = who(caller)
    return Action(
        f"{caller} renews slot {slot}",
        "renew",
        lambda queues, _: claiming.renew(queues, [slot], consumer, run, LEASE_MS),
        **{"slot": slot, "consumer": consumer, "run": run},
    )


def unread(caller: str, seq: int, *, slot: int = 0) -> Action:
    consumer, run = who(caller)
    return Action(
        f"{caller} marks batch {seq} in slot {slot} as unread",
        "unread",
        lambda queues, _: claiming.unread(queues, [slot], consumer, run, seq),
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
    ending: Ending = Ending.RETRY,
) -> Action:
    """wait: None for the topic's backoff, else whether there is one."""
    consumer, run = who(caller)
    claim_id = str(ClaimId(consumer, seq, ordinal, run))
    delay_ms = None if wait is None else wait * WAIT_MS
    how = "" if delay_ms is None else f" for {delay_ms} ms"
    as_what = "" if ending is Ending.RETRY else f", {ending}"
    wanted = Rollback(slot, claim_id, [content.encode()], delay_ms, ending=ending)
    return Action(
        f"{content} of {claim_id} is rolled back{how}{as_what}",
        "rollback",
        lambda queues, _: next(returning.rollbacks(queues, [wanted])),
        **{"slot": slot, "consumer": consumer, "run": run, "seq": seq, "ordinal": ordinal},
        contents=frozenset({content}),
        ending=ending,
    )


def who(caller: str) -> tuple[str, int]:
    return caller[:-1], int(caller[-1])


def names_in(reply: Sequence[bytes]) -> frozenset[str]:
    return frozenset(name.decode() for name in reply)


# -- how they get to Redis


class Calls:
    """The calls of a topic's actions, and what their replies mean.

    names: all claims that there can be, by slot.
    """

    def __init__(
        self, definition: TopicDefinition, key_prefix: str, names: Sequence[tuple[str, ...]]
    ) -> None:
        self.keys = Keys(definition.name, key_prefix)
        self._queues = TopicQueues(definition, self.keys)
        self._names = names
        self._requests: dict[tuple[str, tuple[str, ...]], Request[Any]] = {}

    def named(self, action: Action, holding: tuple[str, ...]) -> tuple[str, ...]:
        """The claims that a caller names. holding: those of the slot that hold messages."""
        if action.knows == Knows.ALL:
            return holding
        if action.knows == Knows.NONE:
            return ()
        return tuple(name for name in self._names[action.slot] if name not in holding[:1])

    def of(self, action: Action, holding: tuple[str, ...]) -> Sequence[Call | Read]:
        """The one call that an action is, and the command behind it that reads a claim."""
        calls = self._request(action, holding).calls
        return calls if is_whole(action, calls) else [calls[action.slot]]

    def answer(
        self,
        action: Action,
        holding: tuple[str, ...],
        replies: list[Any],
    ) -> Any:
        """The replies to these as the caller gets them; of a claim, its messages as rows.

        Of calls whose answers nobody looks at, the reply.
        """
        if action.kind not in ANSWERED:
            return replies[0]
        request = self._request(action, holding)
        if not is_whole(action, request.calls):
            slots = range(len(request.calls))
            replies = [replies[0] if slot == action.slot else [] for slot in slots]
        answer = request.parse(replies)
        return self._rows(answer) if isinstance(answer, Claim) else answer

    def _request(self, action: Action, holding: tuple[str, ...]) -> Request[Any]:
        which = action.text, holding
        if which not in self._requests:
            self._requests[which] = action.ask(self._queues, self.named(action, holding))
        return self._requests[which]

    def _rows(self, claim: Claim) -> tuple[Row, ...]:
        topic = self._queues.definition
        return tuple(
            (
                message.name.decode(),
                message.due_time_ms or message.priority,
                message.retries_left,
                (message.content or NO_BODY).decode() if topic.keyed else None,
            )
            for message in claim.messages(topic)
        )


def is_whole(action: Action, calls: Sequence[Call | Read]) -> bool:
    """Whether all calls of a request are the action's; those of a replay ask all slots."""
    return action.kind == "claim" or len(calls) == 1
