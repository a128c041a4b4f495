"""The queue of one topic: with view.py one method per script, but for those that staging calls."""

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from rmq_spark.client.browsing import QueueView, keys_of, text_of
from rmq_spark.client.consumer_runs import ConsumerBook
from rmq_spark.client.messages import Message, SendResult, pairs_by_slot
from rmq_spark.client.staging import Staging
from rmq_spark.errors import InvalidOption, UnknownTopic
from rmq_spark.protocol.calls import Call
from rmq_spark.protocol.chunks import chunks
from rmq_spark.protocol.claims import (
    MESSAGES_A_CLAIM,
    Claim,
    ClaimRequest,
    ListedClaim,
    Rollback,
    RollbackResult,
    SettledClaims,
    group_of_consumer,
    split_claim_id,
)
from rmq_spark.protocol.messagepack import Pairs, calls_of
from rmq_spark.protocol.pages import QueueKind
from rmq_spark.topics.definition import Keys, TopicDefinition, TopicType, topics_key
from rmq_spark.topics.durations import LONGEST_DURATION_MS

# Lua passes up to 7999 values to a call. A send blocks Redis for about 2 us a message, so others'
# calls wait less than 10 ms.
MESSAGES_A_SEND = 3900
# So old a definition is read again before a send: groups come and go, and senders live for long.
DEFINITION_AGE_S = 1.0
# Stands for whichever run it was.
EVERY_RUN = 0
# The keys of a slot that a script needs which gives messages back.
_ALL_KINDS = "store prepare retry dead claims first consumers stats"
# Why claim.lua took nothing.
_FENCED, _PLAN_FORGOTTEN = 1, 2
# A consumer that was not seen for so long has no checkpoint any more that could come back.
FORGET_CONSUMERS_MS = 30 * 24 * 3600 * 1000


class Queue(QueueView):
    """A topic (and one of its consumer groups) on a server.

    slots default to all slots of the topic wherever they may be left out. All methods raise an
    RmqError for what fails; every one but send, cancel, rollback and requeue may be called again
    with the same arguments and then changes nothing more.
    """

    # -- the first group: what senders call

    def send(
        self,
        messages: Iterable[Message | bytes | str],
        *,
        slot_basis: bytes | str | None = None,
        time_range: int | timedelta | None = None,
        priority: int | None = None,
        fixed_time: int | datetime | None = None,
        past_fixed_time: str = "send",
    ) -> SendResult:
        """Sends messages; the keywords give the values that a message has not itself.

        All are checked before the first goes. They go to all consumer groups that the topic had a
        second ago. With past_fixed_time="fail" a fixed time that is not
        after Redis' time is refused. After a broken connection a message may be sent a second
        time; it merges with the first unless that one was consumed meanwhile.
        """
        if past_fixed_time not in ("send", "fail"):
            raise InvalidOption(
                f"past_fixed_time={past_fixed_time!r} is not accepted. Accepted: send, fail."
            )
        self._read_again()
        refuse = past_fixed_time == "fail" and self.definition.type is TopicType.FIXED_TIME
        defaults = Message(b"", slot_basis, time_range, priority, fixed_time)
        by_slot = pairs_by_slot(
            messages,
            defaults,
            self.definition,
            refuse_before_ms=self.now_ms() if refuse else None,
        )
        return self.send_pairs(by_slot)

    def send_pairs(self, by_slot: Mapping[int, Pairs]) -> SendResult:
        """Sends what is checked already: by slot, score, content, score, content, ...

        The score is the time range of a RangeMerge message, else the score in the store. Every
        consumer group of the topic gets each message; the counts are those of the first.
        """
        calls = [
            self._send_call(slot, part)
            for slot, pairs in by_slot.items()
            for part in calls_of(pairs, MESSAGES_A_SEND)
        ]
        replies = self._pipelines(calls)
        return SendResult(sum(reply[0] for reply in replies), sum(reply[1] for reply in replies))

    def _read_again(self) -> None:
        """Brings the definition up to date. Raises UnknownTopic where it was deleted."""
        if time.monotonic() - self._read_s < DEFINITION_AGE_S:
            return
        name = self.definition.name
        text = self.server.command("HGET", topics_key(self.key_prefix), name)
        if not text:
            raise UnknownTopic(f"The topic {name} was deleted. None of these messages was sent.")
        self._take(TopicDefinition.from_json(name, text))

    def _send_call(self, slot: int, pairs: Pairs) -> Call:
        keys: list[str] = []
        for group in self.definition.groups:
            of = Keys(self.keys.topic, self.keys.prefix, group)
            keys += [of.store(slot), of.retry(slot), of.stats(slot)]
        merges_first = self.definition.type is TopicType.RANGE_MERGE
        return Call("send_first" if merges_first else "send_last", keys, [len(pairs) // 2], pairs)

    def cancel(self, contents: Mapping[int, Sequence[bytes]]) -> int:
        """Removes contents, by slot, that nobody in this consumer group has claimed yet.

        Returns how many there were.
        """
        calls = [
            Call("cancel", self._keys(slot, "store retry stats"), part)
            for slot, wanted in contents.items()
            for part in chunks(wanted, MESSAGES_A_SEND)
        ]
        return sum(self._pipelines(calls))

    def requeue(self, slot: int, contents: Sequence[bytes], score: int) -> int:
        """Brings contents back from the DeadQueue as first deliveries with this score (> 16).

        Returns how many were there.
        """
        return self.requeue_pairs({slot: [value for c in contents for value in (score, c)]})

    def requeue_pairs(self, by_slot: Mapping[int, Pairs]) -> int:
        """requeue of many: by slot, score, content, score, content, ..."""
        calls = [
            Call("requeue", self._keys(slot, "store retry dead stats"), pairs=part)
            for slot, pairs in by_slot.items()
            for part in calls_of(pairs, MESSAGES_A_CLAIM)
        ]
        return sum(self._pipelines(calls))

    def purge(
        self, contents: Mapping[int, Sequence[bytes]], kind: QueueKind = QueueKind.DEAD
    ) -> int:
        """Deletes contents, by slot, from one queue for good. Returns how many there were."""
        pairs = {slot: [v for c in wanted for v in ("", c)] for slot, wanted in contents.items()}
        return self.purge_pairs(pairs, kind)

    def purge_pairs(self, by_slot: Mapping[int, Sequence[Any]], kind: QueueKind) -> int:
        """purge of what was looked at: by slot, score, content, score, content, ...

        What has another score by now (it was sent again, or died again) is left alone.
        """
        counter = "" if kind is QueueKind.DEAD else "cancelled"
        calls = [
            Call("purge", self._keys(slot, f"{kind} stats"), [counter, *part])
            for slot, pairs in by_slot.items()
            for part in chunks(pairs, 2 * MESSAGES_A_SEND)
        ]
        return sum(self._pipelines(calls))

    # -- the second group: a consumer's two phases

    def open_run(self, consumer: str, known_run: int) -> int:
        """Begins a run of a consumer of this topic alone and returns its number.

        known_run: the highest run in any of its headers. Raises CheckpointRefused when the
        consumer reads another topic.
        """
        return self._book(consumer).open(self.definition.name, known_run)

    def settle(self, consumer: str, seq: int) -> None:
        """Notes beside the consumer's run that everything up to seq is committed."""
        self._book(consumer).settle(seq)

    def settled(self, consumer: str) -> int:
        """The batch up to which a consumer is known to be settled; 0 at first. A plain read."""
        return self._book(consumer).settled()

    def plan(self, slots: Iterable[int], consumer: str, run: int, mark: str) -> None:
        """Leave a batch's mark in the slots that are to give messages to it.

        mark: a random text. Claims of the batch name it; a slot that has forgotten it makes none.
        Raises Superseded.
        """
        calls = [
            Call("plan", self._keys(slot, "consumers"), [consumer, run, mark]) for slot in slots
        ]
        self._pipelines(calls)

    def claim(
        self,
        requests: Sequence[ClaimRequest],
        *,
        consumer: str,
        run: int,
        seq: int,
        lease_ms: int,
        due_before_ms: int | None = None,
        epochs: Mapping[int, int | None] | None = None,
        replay_only: bool = False,
        mark: str = "",
    ) -> list[Claim]:
        """Makes claims, or reads again those that exist: the first phase.

        mark: what plan left for this batch; empty for a batch that is asked for once, which needs
        none. Raises Superseded, Settled, Lost or ExclusiveSlot.
        """
        definition = self.definition
        calls = [
            Call(
                "claim",
                self._keys(request.slot, _ALL_KINDS),
                [
                    *(consumer, run, seq, request.j, request.limit, lease_ms),
                    *(text_of(due_before_ms), text_of((epochs or {}).get(request.slot))),
                    *(int(replay_only), self._descending, definition.max_retries, self._backoff),
                    mark,
                ],
            )
            for request in requests
        ]
        replies = self._pipelines(calls)
        return [
            _claim_of(definition, consumer, run, seq, request, reply)
            for request, reply in zip(requests, replies, strict=True)
        ]

    def replay(
        self, consumer: str, run: int, seq_from: int, seq_to: int, lease_ms: int
    ) -> list[ListedClaim]:
        """Lists the claims of batches seq_from + 1 to seq_to in all slots and bars older runs."""
        calls = [
            Call(
                "replay",
                self._keys(slot, "claims consumers"),
                [consumer, run, seq_from, seq_to, lease_ms],
            )
            for slot in self.slots
        ]
        return [
            ListedClaim(slot, *flat[at : at + 3])
            for slot, flat in zip(self.slots, self._pipelines(calls), strict=True)
            for at in range(0, len(flat), 3)
        ]

    def commit(
        self,
        slots: Iterable[int],
        consumer: str,
        run: int,
        seq: int,
        *,
        since: int = 0,
        finished_by: int | None = None,
    ) -> SettledClaims:
        """Settle what this run has claimed or replayed in these slots: the second phase.

        seq, since: the last batch, and the one behind which to begin. finished_by: an earlier
        run whose claims are done, too, or EVERY_RUN; other claims stay until their lease ends.
        """
        args = [consumer, run, seq, since, text_of(finished_by)]
        rounds = self._rounds("commit", "prepare claims first consumers stats", slots, args, more=0)
        return _settled(rounds)

    def renew(
        self, slots: Iterable[int], consumer: str, run: int, lease_ms: int, *, since: int = 0
    ) -> dict[int, int]:
        """Put off the deadlines of the claims that the consumer holds there.

        since: the batch behind which to begin. Returns, by slot, how many claims these are.
        """
        asked = list(slots)
        renewed = self._on_claims("renew", asked, [consumer, run, lease_ms, since])
        return dict(zip(asked, renewed, strict=True))

    def release(self, slots: Iterable[int], consumer: str, run: int) -> int:
        """Ends the leases of all claims the consumer holds there: its batch failed."""
        return sum(self._on_claims("release", slots, [consumer, run]))

    def give_back(self, slots: Iterable[int], consumer: str, run: int, seq: int = 0) -> int:
        """Gives back what the consumer holds there, as if its leases had run out.

        Bars older runs. seq: the last batch that the run has asked for, of which a claim that comes
        late is refused. Returns how many messages. Raises Superseded.
        """
        args = [consumer, run, seq, self.definition.max_retries, self._backoff]
        rounds = self._rounds("give_back", _ALL_KINDS, slots, args, more=1)
        return sum(reply[0] for one in rounds for reply in one.values())

    def unread(self, slots: Iterable[int], consumer: str, run: int, seq: int) -> int:
        """Marks what was claimed for a batch as never delivered, so that it costs no retry."""
        return sum(self._on_claims("unread", slots, [consumer, run, seq]))

    def rollback(
        self, slot: int, claim_id: str, contents: Sequence[bytes], delay_ms: int | None = None
    ) -> RollbackResult:
        """Rolls back single messages of a claim.

        claim_id: consumer:seq:j:run. delay_ms: the wait before the next delivery; None takes the
        topic's backoff. What that claim does not hold any more is left alone. Raises InvalidOption
        for a claim_id that is none.
        """
        return self.rollbacks([Rollback(slot, claim_id, contents, delay_ms)])

    def rollbacks(self, wanted: Iterable[Rollback]) -> RollbackResult:
        """rollback of many claims in one pipeline. Returns the sums.

        A claim whose consumer's name tells a group is that group's; others are this queue's own.
        """
        return _sum_of(self.rollback_each(list(wanted)))

    def rollback_each(self, wanted: Sequence[Rollback]) -> list[RollbackResult]:
        """rollbacks, with the result of each."""
        calls = [self._rollback_calls(one) for one in wanted]
        replies = iter(self._pipelines([call for of_one in calls for call in of_one]))
        return [
            _sum_of(RollbackResult(*reply) for reply in islice(replies, len(of_one)))
            for of_one in calls
        ]

    def _rollback_calls(self, one: Rollback) -> list[Call]:
        claim, run = split_claim_id(one.claim_id)
        if one.delay_ms is not None and not 0 <= one.delay_ms <= LONGEST_DURATION_MS:
            raise InvalidOption(
                f"The delay {one.delay_ms} ms is not accepted. Accepted: 0 to "
                f"{LONGEST_DURATION_MS} ms (366d); None for the topic's backoff."
            )
        fixed = [claim, run, text_of(one.delay_ms), self.definition.max_retries, self._backoff]
        group = group_of_consumer(claim.partition(":")[0]) or self.keys.group
        of = Keys(self.keys.topic, self.keys.prefix, group)
        keys = keys_of(of, one.slot, "store prepare retry dead claims first stats")
        return [
            Call("rollback", keys, [*fixed, *part])
            for part in chunks(one.contents, MESSAGES_A_CLAIM)
        ]

    # -- the third group: what people call

    def expire(self, slots: Iterable[int] | None = None) -> int:
        """Gives back all claims whose lease has run out. Returns how many messages.

        Also forgets consumers, and what sinks have staged, that nobody came back to for 30 days.
        """
        asked = list(self.slots if slots is None else slots)
        Staging(self.server, self.definition, self.key_prefix).forget(asked)
        args = [self.definition.max_retries, self._backoff, FORGET_CONSUMERS_MS]
        rounds = self._rounds("expire", _ALL_KINDS, asked, args, more=2)
        return sum(reply[0] for one in rounds for reply in one.values())

    # -- below: how scripts are called

    def _book(self, consumer: str) -> ConsumerBook:
        return ConsumerBook(self.server, consumer, self.key_prefix)

    def _rounds(
        self, script: str, kinds: str, slots: Iterable[int], args: list[Any], *, more: int
    ) -> list[dict[int, Any]]:
        """Call a bounded script in each slot until it has no more to do there.

        more: where a reply says so. Returns the replies by slot of the first calls, the second, ...
        """
        rounds: list[dict[int, Any]] = []
        left = list(slots)
        while left:
            calls = [Call(script, self._keys(slot, kinds), args) for slot in left]
            rounds.append(dict(zip(left, self._pipelines(calls), strict=True)))
            left = [slot for slot, reply in rounds[-1].items() if reply[more]]
        return rounds

    def _on_claims(self, script: str, slots: Iterable[int], args: list[Any]) -> list[int]:
        return self._pipelines(
            [Call(script, self._keys(slot, "claims consumers"), args) for slot in slots]
        )


def _settled(rounds: Sequence[Mapping[int, Sequence[int]]]) -> SettledClaims:
    """What the calls of a commit did: by slot the replies to the first calls, the second, ..."""
    replies = [reply for one in rounds for reply in one.values()]
    return SettledClaims(
        claimed=sum(reply[1] for reply in replies),
        moved=sum(reply[2] for reply in replies),
        committed=sum(reply[3] for reply in replies),
        records=sum(reply[4] for reply in replies),
        held=frozenset(slot for one in rounds for slot, reply in one.items() if reply[4]),
        # A later call finds the batch settled by the first.
        again=frozenset(slot for one in rounds[:1] for slot, reply in one.items() if reply[5]),
    )


def _sum_of(results: Iterable[RollbackResult]) -> RollbackResult:
    listed = list(results)
    return RollbackResult(
        sum(result.rolled_back for result in listed), sum(result.left_alone for result in listed)
    )


def _claim_of(
    definition: TopicDefinition,
    consumer: str,
    run: int,
    seq: int,
    request: ClaimRequest,
    reply: Sequence[Any],
) -> Claim:
    moved, why_nothing, contents, score_text, retries_left, claimed_at_ms = reply
    return Claim(
        topic=definition.name,
        slot=request.slot,
        consumer=consumer,
        seq=seq,
        j=request.j,
        run=run,
        contents=contents,
        score_text=score_text,
        retries_left=retries_left or definition.max_retries,
        max_retries=definition.max_retries,
        claimed_at_ms=claimed_at_ms,
        moved=moved,
        fenced=why_nothing == _FENCED,
        forgotten=why_nothing == _PLAN_FORGOTTEN,
    )
