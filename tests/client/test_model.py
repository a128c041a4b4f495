"""Random histories of several consumers, compared with a plain model after every step.

Beside the comparison, what section 1 of the protocol promises is checked from what was seen alone:
the model might share a mistake with the scripts.
"""

import itertools
import math
import os
from copy import deepcopy
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rmq_spark.client import Queue, TopicDefinition, TopicType
from rmq_spark.errors import ClaimError, TopicFull
from rmq_spark.protocol import claiming, reading, returning, sending
from rmq_spark.protocol.bodies import Body
from rmq_spark.protocol.calls import Request, TopicQueues
from rmq_spark.protocol.claims import MESSAGES_A_CLAIM, ClaimRequest
from rmq_spark.protocol.pages import Death
from rmq_spark.topics.definition import BURY, DROP, KEEP_FIRST, KEEP_LAST
from rmq_spark.topics.types import TOPIC_TYPES
from rmq_spark.topics.verdicts import Ending

from .. import servers
from ..seeding import ENDS, FAR_MS, LONG_MS, requeue, rollback
from .queue_model import (
    DUE_BEFORE_MS,
    FAR,
    LONGEST_RETRY,
    Copy,
    Expiry,
    Held,
    Model,
)

STEPS = 60  # at most: hypothesis ends some runs earlier, the mean is about 50
RUNS_IN_CI, RUNS = 300, 100
QUEUES = ("store", "retry", "dead")
BOOKS = ("claims", "consumers", "stats", "bodies", "deaths")
LONG_PAST_MS = 600
_numbers = itertools.count()

CONTENTS = [b"a", b"b", b"c", b"d", b"e", b"f"]
FAR_PRIORITY = 9_000  # there is no priority that is not due
some_contents = st.lists(st.sampled_from(CONTENTS), min_size=1, max_size=4)
distinct_contents = st.lists(st.sampled_from(CONTENTS), min_size=1, max_size=4, unique=True)
consumers = st.sampled_from("abc")
# How far behind the newest run, or the newest batch, a caller is: mostly not at all.
behind = st.sampled_from([0, 0, 0, 0, 1])
scores = st.sampled_from([17, 1000, 1500, 1501, 2000, FAR])
limits = st.sampled_from([MESSAGES_A_CLAIM, 1, 2, 3, 8, 16, 1])
leases = st.booleans()  # never runs out, or has run out at once
any_record = st.integers(0, 11)  # modulo how many there are
epochs = st.sampled_from([None, 1, 2, 3])
# The run that finished a batch, if it is not the one that commits: any, or how many runs ago.
finishers = st.sampled_from([None, None, 0, 1])
# What the messages of a send carry: nothing but a payload if the topic is keyed, or more.
carried = st.sampled_from(["", "", "", "", "headers", Expiry.LIVES, Expiry.OVER, Expiry.TO_LIVE])
next_batches = {
    "consumer": consumers,
    "carries": carried,
    "sent": st.lists(st.sampled_from(CONTENTS), max_size=3),
    "limit": limits,
    "epoch": epochs,
    "due_before": behind,
    "gives_back": st.sampled_from([True, True, False]),
    "alone": st.booleans(),
}
# Which claims a commit names at first: none, its batch's first one, or all of the consumer.
named = st.sampled_from(["none", "first", "all"])
topics = st.tuples(
    st.sampled_from(list(TOPIC_TYPES.values())),
    st.sampled_from([2, 1, 0, 16]),
    st.booleans(),  # with a backoff
    st.sampled_from([False, False, True]),  # exclusive
    st.sampled_from([None, KEEP_LAST, KEEP_FIRST]),  # the payload of a keyed topic
    st.sampled_from([DROP, BURY]),
    st.sampled_from([None, None, 3]),  # the messages that may wait
    st.sampled_from([False, False, True]),  # whether they are unique for a time
)


class QueueHistory(RuleBasedStateMachine):
    """One slot; each rule does the same to Redis and to the model."""

    def __init__(self, server):
        super().__init__()
        self.server = server
        self.run = dict.fromkeys("abc", 2)  # so that there is an older one
        self.seq = dict.fromkeys("abc", 0)
        self.far_scores = {}
        self.reads = {}  # (claim, run) -> what it was given last
        self.delivered = {}  # consumer -> batch -> contents given to it
        self.may_end = set()  # contents that this step may have committed or cancelled
        self.present, self.sizes, self.gone = set(), {}, set()
        self.made = set()  # the names of all claims there ever were
        self.scores = {}  # claim -> contents and scores, as they were first seen
        self.sent_in_flight = set()
        self.lefts, self.renewed = {}, set()
        self.saved = None  # what the server may fall back to
        self.fell_back = False
        self.bodies_sent = 0

    @initialize(topic=topics)
    def make_topic(self, topic):
        topic_type, max_retries, backoff, self.exclusive, payload, on_expiry, room, unique = topic
        waits = (LONG_MS,) if backoff else ()
        definition = TopicDefinition(
            *("T", topic_type, 1),
            max_retries=max_retries,
            retry_backoff_ms=waits,
            keyed=payload is not None,
            payload=payload or KEEP_LAST,
            on_expiry=on_expiry,
            dead_retention_ms=LONG_MS,
            max_messages=room,
            unique_for_ms=LONG_MS if unique else None,
        )
        self.queue = Queue(self.server, definition, key_prefix=f"model{next(_numbers)}:")
        self.keys = self.queue.keys
        merges_first = topic_type == TopicType.RANGE_MERGE
        self.model = Model(topic_type.descending, merges_first, max_retries, backoff)
        self.model.keeps_first = payload == KEEP_FIRST
        self.model.buries_expired = on_expiry == BURY
        self.model.room, self.model.is_unique = room or math.inf, unique
        self.look_at = [
            *(("ZRANGE", getattr(self.keys, kind)(0), 0, -1, "WITHSCORES") for kind in QUEUES),
            *(("HGETALL", getattr(self.keys, kind)(0)) for kind in BOOKS),
        ]

    def teardown(self):
        if hasattr(self, "keys"):
            self.server.command("UNLINK", *self.all_keys())

    def all_keys(self):
        """The keys of the slot, and those of all claims there ever were."""
        kept = [getattr(self.keys, kind)(0) for kind in (*QUEUES, *BOOKS)]
        of_claims = self.queue.queues.claims_and_bodies(0, list(map(text_of, self.made)))
        return [*kept, *of_claims, self.keys.part(0), self.keys.recent(0)]

    def claim_keys(self, names):
        return self.keys.claims_of(0, map(text_of, names))

    def both(self, expected, real):
        """The model's answer, or the name of its error, is also that of Redis."""
        try:
            got = real()
        except ClaimError as error:
            got = type(error).__name__
        assert got == expected

    def scored(self, score):
        """A score for the model, and what goes to Redis for it."""
        if score is FAR and self.model.descending:
            return FAR_PRIORITY, FAR_PRIORITY
        return score, FAR_MS if score is FAR else score

    # -- senders and people

    @rule(contents=some_contents, score=scores, carries=carried, delayed=st.booleans())
    def send(self, contents, score, carries, delayed=False):
        score, sent = (FAR, LONG_MS) if self.model.merges_first else self.scored(score)
        if sent == FAR_MS and delayed:  # FixedTime: the same, said as a delay
            sent = -LONG_MS
        values = [value for content in contents for value in (sent, content)]
        copies = self.new_copies(len(contents), carries)
        named = zip(contents, copies, strict=False)
        bodies = [value for c, copy in named for value in (c, text_with(copy))]
        known = set(self.model.recent)
        expected = self.model.send(contents, score, copies)
        if expected != "TopicFull":
            self.note_new_copies(set(contents) - known)

        def send():
            [sent] = self.queue.ask(sending.send_parts, [(0, (values, bodies))])
            return "TopicFull" if isinstance(sent, TopicFull) else counts(sent)

        self.both(expected, send)

    @precondition(lambda self: self.model.recent)
    @rule(contents=distinct_contents)
    def age(self, contents):
        """What was accepted long ago may be accepted again."""
        for content in self.model.recent & set(contents):
            self.server.command("ZADD", self.keys.recent(0), 1, content)
            self.model.recent.remove(content)

    def new_copies(self, how_many, carries):
        """Bodies that no message has had before; none if the messages carry nothing."""
        keyed = self.queue.definition.keyed
        copies = []
        for _ in range(how_many if keyed or carries else 0):
            self.bodies_sent += 1
            own = b"%d" % self.bodies_sent
            headers = (("first", own), ("second", None)) if carries == "headers" else ()
            expiry = Expiry(carries) if carries in list(Expiry) else Expiry.NEVER
            copies.append(Copy(own if keyed else None, headers, expiry))
        return copies

    @precondition(lambda self: self.model.dead)
    @rule(contents=distinct_contents, score=scores, only_dead=st.booleans())
    def requeue(self, contents, score, only_dead):
        if only_dead:
            contents = sorted(self.model.dead)[: len(contents)]
        score, sent = self.scored(score)
        self.note_new_copies(self.model.dead & set(contents))
        expected = self.model.requeue(contents, score)
        self.both(expected, lambda: requeue(self.queue, 0, contents, sent))

    @precondition(lambda self: self.model.dead)
    @rule(contents=distinct_contents)
    def retention_ends(self, contents):
        """Of dead messages, as if they had died long ago."""
        ended = self.model.dead & set(contents)
        words = itertools.chain.from_iterable((LONG_PAST_MS, content) for content in ended)
        if ended:
            self.server.command("ZADD", self.keys.dead(0), *words)
        expected = self.model.forget(ended)
        self.both(expected, lambda: self.queue.ask(returning.forget, [0]))

    def note_new_copies(self, contents):
        self.sent_in_flight |= set(contents) & self.model.prepare.keys()
        self.renewed |= set(contents)

    @precondition(lambda self: self.model.store or self.model.retry)
    @rule(contents=distinct_contents)
    def cancel(self, contents):
        self.may_end = set(contents)
        self.both(self.model.cancel(contents), lambda: self.queue.cancel({0: contents}))

    @precondition(lambda self: self.model.store or self.model.retry)
    @rule(contents=distinct_contents, score=scores)
    def move(self, contents, score):
        score, sent = self.scored(score)
        for content in contents:
            self.far_scores.pop(content, None)
        expected = self.model.move(contents, score)
        self.both(expected, lambda: self.queue.ask(sending.move, {0: contents}, sent))

    @precondition(lambda self: self.model.store or self.model.retry or self.model.prepare)
    @rule(contents=distinct_contents)
    def find(self, contents):
        model = self.model
        places = {"store": model.store, "retry": model.retry, "prepare": model.prepare}
        expected = {(k, c) for k, of in places.items() for c in of if c in contents}
        expected |= {("dead", content) for content in model.dead & set(contents)}
        found = self.queue.ask(reading.find, {0: contents})
        assert {(page.kind, page.contents[0]) for pages in found for page in pages} == expected

    @precondition(lambda self: self.model.prepare)
    @rule()
    def expire(self):
        self.both(self.model.give_back_expired(), self.queue.expire)

    @precondition(lambda self: self.model.prepare)
    @rule(consumer=consumers, due_before=behind, epoch=epochs)
    def give_back_expired(self, consumer, due_before, epoch):
        """What everybody does before a claim."""
        epoch = epoch if self.exclusive else None
        due_before_ms = DUE_BEFORE_MS if due_before else None
        how = {"due_before_ms": due_before_ms, "epochs": {0: epoch} if epoch else None}
        answers = []

        def due():
            answers[:] = self.queue.ask(reading.due, [0], consumer, **how)
            expired = sorted(map(claim_name, answers[0].expired))
            return answers[0].due, answers[0].held, expired, answers[0].alone

        self.both(self.model.due(consumer, due_before, epoch), due)
        expected = self.model.give_back_expired() if answers else 0
        self.both(
            expected,
            lambda: sum(self.queue.ask(returning.give_back_expired, answers, consumer).values()),
        )

    @precondition(lambda self: self.model.records)
    @rule(which=any_record)
    def give_back_one(self, which):
        """By somebody who has seen it expire, and comes late."""
        name = self.record(which)
        expected = self.model.give_back_claim(name)
        claims = [(0, text_of(name))]
        self.both(
            expected, lambda: sum(self.queue.ask(returning.give_back_claims, claims).values())
        )

    @rule(max_retries=st.sampled_from([0, 1, 2, 16]))
    def alter(self, max_retries):
        """A claim keeps the number of retries that the topic had when the claim was made."""
        firsts = {c for c, at in self.model.store.items() if at is FAR or at > LONGEST_RETRY}
        firsts |= {c for c, held in self.model.prepare.items() if held.score > LONGEST_RETRY}
        self.renewed |= firsts
        self.model.max_retries = max_retries
        self.use_definition()

    def use_definition(self):
        definition = self.queue.definition.changed(max_retries=self.model.max_retries)
        self.queue._use(TopicQueues(definition, self.keys))

    # -- time

    @precondition(lambda self: FAR in self.model.store.values())
    @rule(score=st.sampled_from([1000, 1500, 1501, 2000]))
    def time_passes_for_messages(self, score):
        self.let_pass(score)

    def let_pass(self, score):
        far = [content for content, at in self.model.store.items() if at is FAR]
        words = list(itertools.chain.from_iterable((score, content) for content in far))
        if words:
            self.server.command("ZADD", self.keys.store(0), *words)
        self.model.store |= dict.fromkeys(far, score)

    @precondition(lambda self: any(due is FAR for _, due in self.model.retry.values()))
    @rule(second=st.sampled_from([1, 2]))
    def time_passes_for_retries(self, second):
        far = {c: left for c, (left, due) in self.model.retry.items() if due is FAR}
        words = itertools.chain.from_iterable((second * 1000 + n, c) for c, n in far.items())
        self.server.command("ZADD", self.keys.retry(0), *words)
        self.model.retry |= {content: (left, second) for content, left in far.items()}

    @precondition(lambda self: self.model.bodies)
    @rule()
    def time_passes_for_bodies(self):
        """Of messages that wait."""
        over = [c for c, copy in self.model.bodies.items() if copy.expiry == Expiry.LIVES]
        for content in over:
            copy = self.model.bodies[content] = replace(
                self.model.bodies[content], expiry=Expiry.OVER
            )
            self.server.command("HSET", self.keys.bodies(0), content, text_with(copy))

    # -- consumers

    @precondition(lambda self: self.model.records)
    @rule(consumer=consumers)
    def start_again(self, consumer):
        self.run[consumer] += 1

    # Two rules, because hypothesis leaves some out in each run, and without claims there is little.
    @rule(**next_batches)
    def claim_next_batch(self, **how):
        self.claim_next(lease=True, **how)

    @rule(**next_batches)
    def claim_next_batch_and_lose_the_lease(self, **how):
        self.claim_next(lease=False, **how)

    @rule(**next_batches)
    def claim_next_batch_while_paused(self, **how):
        self.pause(True)
        self.claim_next(lease=True, **how)
        self.pause(False)

    def pause(self, paused):
        self.queue.ask(claiming.pause, None if paused else claiming.PAUSE_ENDS)
        self.model.paused = paused

    def claim_next(
        self, consumer, sent, carries, limit, lease, epoch, due_before, gives_back, alone
    ):
        if sent:  # there may be no other rule that sends
            self.send_due(sent, carries)
        if gives_back:
            self.give_back_expired(consumer, due_before, epoch)
        self.seq[consumer] += 1
        name = (consumer, self.seq[consumer], 0)
        self.plan(consumer)
        self.claim_named(
            name, self.run[consumer], limit, lease, due_before, epoch, False, alone=alone
        )

    def plan(self, consumer):
        run, mark = self.run[consumer], mark_of(consumer, self.seq[consumer])
        expected = self.model.plan(consumer, run, mark)
        self.both(expected, lambda: self.queue.ask(claiming.plan, [0], consumer, run, mark))

    def send_due(self, contents, carries):
        self.send(contents, 1000, carries)
        self.let_pass(1400)

    @rule(
        consumer=consumers,
        back=st.tuples(behind, behind),
        ordinal=st.sampled_from([0, 0, 1, 2]),
        limit=limits,
        lease=leases,
        epoch=epochs,
        how=st.tuples(behind, st.sampled_from([False, False, True]), st.booleans()),
    )
    def claim(self, consumer, back, ordinal, limit, lease, epoch, how):
        name = (consumer, max(1, self.seq[consumer] - back[1]), ordinal)
        # Who plans nothing never asks again by the name of a claim that it has lost.
        plain = how[2] or not self.seq[consumer]
        if plain and self.fell_back:
            return
        self.seq[consumer] = max(1, self.seq[consumer])
        run = self.run[consumer] - back[0]
        self.claim_named(name, run, limit, lease, how[0], epoch, how[1], plain)

    def claim_named(
        self, name, run, limit, lease, due_before, epoch, replay_only, plain=False, alone=False
    ):
        epoch = epoch if self.exclusive else None
        mark = "" if plain or replay_only else mark_of(*name[:2])
        may_be_over = (Expiry.OVER, Expiry.TO_LIVE)
        self.may_end |= {c for c, copy in self.model.bodies.items() if copy.expiry in may_be_over}
        expected = self.model.claim(
            name, run, limit, lease, due_before, epoch, replay_only, mark, alone
        )

        def real():
            terms = claiming.Claiming(
                *(name[0], run, name[1], LONG_MS if lease else 0),
                due_before_ms=DUE_BEFORE_MS if due_before else None,
                epochs={0: epoch} if epoch else None,
                replay_only=replay_only,
                mark=mark,
            )
            request = ClaimRequest(0, name[2], limit, alone=alone)
            claims = self.queue.ask(claiming.claim, [request], terms)
            if name in self.model.records:  # else it was not made, and may be made without a mark
                self.note_read(name, run, rows_of(claims[0]))
            return rows_of(claims[0])

        self.both(expected, real)

    def note_read(self, name, run, got):
        """What was read: the same again for the same run, and never with more retries left."""
        contents = {content for content, *_ in got}
        before = self.reads.setdefault((name, run), got)
        assert got == [read for read in before if read[0] in contents]
        self.reads[name, run] = got
        self.delivered.setdefault(name[0], {}).setdefault(name[1], set()).update(contents)
        for content, _, left, _ in got:
            if left > self.lefts.get(content, 16):
                assert content in self.renewed, "retries came back"
                self.renewed.discard(content)
            self.lefts[content] = left

    @precondition(lambda self: self.model.records)
    @rule(consumer=consumers, back=st.tuples(behind, behind), finisher=finishers, names=named)
    def commit(self, consumer, back, finisher, names):
        run, seq = self.run[consumer] - back[0], max(1, self.seq[consumer] - back[1])
        read = self.delivered.get(consumer, {})
        self.may_end = {c for batch, contents in read.items() if batch <= seq for c in contents}
        finisher = finisher and run - finisher
        since = 0 if finisher is None else seq - 1
        own = [text_of(name) for name in self.model.records if name[0] == consumer]
        named = names != "none" and (names != "all" or bool(own))
        expected = self.model.commit(consumer, run, seq, since, finisher, named)
        which = {"since": since, "finished_by": finisher}
        slots = {0: () if names == "none" else own if names == "all" else [f"{consumer}:{seq}:0"]}
        self.both(
            expected,
            lambda: settled(self.queue.ask(claiming.commit, slots, consumer, run, seq, **which)),
        )

    @precondition(lambda self: self.model.records)
    @rule(consumer=consumers, old_run=behind, lease=leases)
    def renew_or_release(self, consumer, old_run, lease):
        run = self.run[consumer] - old_run
        expected = self.model.set_leases(consumer, run, lease)
        if lease:
            self.both(
                expected, lambda: self.queue.ask(claiming.renew, [0], consumer, run, LONG_MS)[0]
            )
        else:
            self.both(expected, lambda: self.queue.ask(claiming.release, [0], consumer, run))

    @precondition(lambda self: self.model.records)
    @rule(consumer=consumers, old_run=behind, knows_seq=st.booleans(), failed=st.booleans())
    def let_go(self, consumer, old_run, knows_seq, failed):
        """A plain consumer starts, or lets go of its batch."""
        run, seq = self.run[consumer] - old_run, self.seq[consumer] * knows_seq
        expected = self.model.let_go(consumer, run, seq, failed)
        self.both(
            expected,
            lambda: self.queue.ask(returning.give_back, [0], consumer, run, seq, failed=failed),
        )

    @precondition(lambda self: self.model.records)
    @rule(consumer=consumers, old_run=behind, knows_seq=st.booleans())
    def die_while_letting_go(self, consumer, old_run, knows_seq):
        """Its claims have expired, and nobody has given them back."""
        run, seq = self.run[consumer] - old_run, self.seq[consumer] * knows_seq
        expected = self.model.leave(consumer, run, seq)

        def leave():
            calls = next(returning.give_back(self.queue.queues, [0], consumer, run, seq)).calls
            [names] = self.server.ask(Request(calls, list))
            return sorted(claim_name(name.decode()) for name in names)

        self.both(expected, leave)

    @precondition(lambda self: self.model.records)
    @rule(consumer=consumers, old_run=behind, back=st.sampled_from([1, 1, 2, 9]), lease=leases)
    def replay(self, consumer, old_run, back, lease):
        run, to = self.run[consumer] - old_run, self.seq[consumer]
        lease_ms = LONG_MS if lease else 0
        expected = self.model.replay(consumer, run, to - back, to, lease)
        self.both(
            expected,
            lambda: listed(self.queue.ask(claiming.replay, consumer, run, to - back, to, lease_ms)),
        )

    @precondition(lambda self: self.model.records)
    @rule(which=any_record, newer=st.booleans(), lease=leases, replay_only=st.booleans())
    def read_again(self, which, newer, lease, replay_only):
        name = self.record(which)
        self.run[name[0]] += newer
        self.claim_named(name, self.run[name[0]], 1, lease, False, None, replay_only)

    @precondition(lambda self: self.model.records)
    @rule(which=any_record, stale=behind)
    def unread(self, which, stale):
        name = self.record(which)
        self.mark_unread(name, max(1, self.model.records[name].run - stale))

    @precondition(lambda self: self.model.records)
    @rule(which=any_record)
    def fail_to_read_in_a_new_run(self, which):
        name = self.record(which)
        self.run[name[0]] += 1
        self.claim_named(name, self.run[name[0]], 1, False, False, None, True)
        self.mark_unread(name, self.run[name[0]])

    def mark_unread(self, name, run):
        consumer, seq, _ = name
        expected = self.model.unread(consumer, run, seq)
        self.both(expected, lambda: self.queue.ask(claiming.unread, [0], consumer, run, seq))

    def record(self, which):
        return sorted(self.model.records)[which % len(self.model.records)]

    @precondition(lambda self: self.model.records)
    @rule(
        which=any_record,
        contents=distinct_contents,
        only_held=st.booleans(),
        delay=st.sampled_from([None, None, False, True]),
        ending=st.sampled_from([Ending.RETRY, *Ending]),
        stale=behind,
    )
    def rollback(self, which, contents, only_held, delay, ending, stale):
        name = self.record(which)
        if only_held:  # else mostly nothing would be rolled back
            held = sorted(c for c, h in self.model.prepare.items() if h.claim == name)
            contents = held[: len(contents)] or contents
        run = max(0, self.model.records[name].run - stale)
        expected = self.model.rollback(name, run, contents, delay, ending)
        delay_ms = None if delay is None else LONG_MS * delay
        of_claim = 0, "{}:{}:{}:{}".format(*name, run), contents, delay_ms
        self.both(expected, lambda: tuple(rollback(self.queue, *of_claim, ending=ending)))

    # -- a server that forgets

    @rule()
    def save(self):
        queues = {key: self.server.command("DUMP", key) for key in self.all_keys()}
        seen = (
            *(self.present, self.sizes, self.sent_in_flight),
            *(self.far_scores, self.lefts, self.renewed),
        )
        self.saved = deepcopy((queues, self.model, seen, self.reads))

    @precondition(lambda self: self.saved is not None)
    @rule()
    def fall_back(self):
        """Another server has the state that was saved; what was read meanwhile was read."""
        queues, self.model, seen, reads = deepcopy(self.saved)
        came = self.sizes.keys()
        self.present, self.sizes, self.sent_in_flight = seen[:3]
        self.far_scores, self.lefts, self.renewed = seen[3:]
        self.gone = (self.gone | came) - self.sizes.keys()
        # Of a claim that it knows, what was read by then counts; of one that it forgot, all.
        forgotten = {each: got for each, got in self.reads.items() if each[0] not in self.sizes}
        self.reads = forgotten | reads
        self.restore(queues)
        self.use_definition()
        self.model.plans, self.fell_back = {}, True

    def restore(self, queues):
        self.server.command("UNLINK", *self.all_keys())
        for key, dumped in queues.items():
            if dumped is not None:
                self.server.command("RESTORE", key, 0, dumped)
        headers = hash_of(self.server.command("HGETALL", self.keys.consumers(0)))
        headers.pop("@epoch", None)
        for consumer, text in headers.items():
            elsewhere = b" ".join([*text.split()[:-1], b"elsewhere"])
            self.server.command("HSET", self.keys.consumers(0), consumer, elsewhere)

    # -- after every step

    @invariant()
    def holds(self):
        self.made |= self.model.records.keys()
        names = sorted(self.made)
        keys = self.claim_keys(names)
        reads = [("ZRANGE", key, 0, -1, "WITHSCORES") for key in keys]
        of_bodies = [self.keys.claim_bodies(0, text_of(name)) for name in names]
        counts = [
            ("EXISTS", self.keys.part(0)),
            ("EXISTS", *of_bodies, self.keys.part(0)),
        ]
        *replies, strange, bodies_of_claims = self.server.commands([*self.look_at, *reads, *counts])
        store, retry, dead = (scores_of(reply) for reply in replies[:3])
        records, headers, stats, bodies, deaths = (hash_of(reply) for reply in replies[3:8])
        in_claims = {name: scores_of(reply) for name, reply in zip(names, replies[8:], strict=True)}
        assert strange == 0, "a key is left"
        self.check_bodies(bodies, deaths, bodies_of_claims, store.keys() | retry.keys())
        held = self.check_claims(in_claims, records)
        self.check_promises(store, held, retry, dead, stats)
        self.check_model(store, held, retry, dead)
        self.check_books(records, headers)

    def check_bodies(self, bodies, deaths, of_claims, waiting):
        """Each message has the body that it should have, and no other is left."""
        model = self.model
        found = {content.encode(): copy_in(text) for content, text in bodies.items()}
        assert found == model.bodies
        assert found.keys() == waiting or not self.queue.definition.keyed
        assert found.keys() <= waiting, "a body is left"
        of_dead = {c.encode(): copy_in(Death.parse(text).body) for c, text in deaths.items()}
        assert of_dead == {content: model.dead_bodies[content] for content in model.dead}
        holding = {held.claim for held in model.prepare.values()}
        assert of_claims == sum(model.records[name].with_bodies for name in holding)

    def check_promises(self, store, prepare, retry, dead, stats):
        """Section 1 of the protocol, from what was seen alone."""
        present = store.keys() | prepare.keys() | retry.keys()
        assert self.present - present <= self.may_end | dead.keys(), "a message is lost"
        self.present, self.may_end = present, set()
        assert not retry.keys() & (store.keys() | prepare.keys()), "a retry has a twin"
        self.sent_in_flight &= prepare.keys()
        assert store.keys() & prepare.keys() <= self.sent_in_flight, "a message is doubled"
        counted = {name: int(number) for name, number in stats.items()}
        ends = sum(counted.get(name, 0) for name in ENDS)
        assert counted.get("accepted", 0) == ends + len(store) + len(prepare) + len(retry)

    def check_claims(self, in_claims, records):
        """Claims only shrink, and do not come back; each holds what its record says.

        Returns each message in flight.
        """
        sizes = {claim_name(field): int(text.split()[5]) for field, text in records.items()}
        found = {name: len(scores) for name, scores in in_claims.items()}
        assert found == dict.fromkeys(in_claims, 0) | sizes, "a record and its key differ"
        assert all(size <= self.sizes.get(name, size) for name, size in sizes.items()), "it grew"
        self.gone |= self.sizes.keys() - sizes.keys()
        assert not self.gone & sizes.keys(), "a claim came back"
        self.sizes = sizes
        self.scores = {name: self.scores.get(name, in_claims[name]) for name in sizes}
        assert all(in_claims[name].items() <= self.scores[name].items() for name in sizes)
        held = {
            content: Held(name, at) for name in sizes for content, at in in_claims[name].items()
        }
        assert len(held) == sum(sizes.values()), "a message is in two claims"
        return held

    def check_model(self, store, held, retry, dead):
        model = self.model
        self.far_scores = {c: at for c, at in self.far_scores.items() if c in model.store}
        assert store == {c: self.real_score(c, score, store) for c, score in model.store.items()}
        assert held == model.prepare
        assert dead.keys() == model.dead
        assert {content: waiting(score) for content, score in retry.items()} == model.retry

    def real_score(self, content, score, store):
        """A score that the model calls FAR: far indeed, and the same for as long as it is there."""
        if score is not FAR:
            self.far_scores.pop(content, None)
            return score
        found = store.get(content, 0)
        assert found > 10**12
        return self.far_scores.setdefault(content, found) if self.model.merges_first else found

    def check_books(self, records, headers):
        model = self.model
        # The fields that records.lua tells of, in that order.
        found = {claim_name(field): list(map(int, t.split())) for field, t in records.items()}
        assert found.keys() == model.records.keys()
        for name, (
            version,
            made,
            run,
            deadline,
            sealed,
            _,
            *rest,
            arrivals,
            expired,
        ) in found.items():
            of = model.records[name]
            assert (version, run, sealed) == (1, of.run, of.sealed)
            assert rest == [of.moved, of.max_retries, of.charged, of.replayed]
            assert expired == of.has_expired
            assert deadline > 0
            assert made > 0
            assert arrivals >= 0
        epoch = headers.pop("@epoch", None)
        assert (epoch and int(epoch)) == model.epoch
        assert {name: list(map(int, text.split()[:4])) for name, text in headers.items()} == {
            name: [header.run, header.settled, *header.last]
            for name, header in model.headers.items()
        }


def scores_of(reply):
    """Contents and scores, whichever form the client gives them."""
    if reply and isinstance(reply[0], list | tuple):
        return {content: float(score) for content, score in reply}
    return {reply[at]: float(reply[at + 1]) for at in range(0, len(reply), 2)}


def hash_of(reply):
    items = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {name.decode(): text for name, text in items}


def claim_name(field):
    consumer, seq, ordinal = field.split(":")
    return consumer, int(seq), int(ordinal)


def text_of(name):
    return "{}:{}:{}".format(*name)


def mark_of(consumer, seq):
    return f"{consumer}-{seq}"


def waiting(score):
    """Retries left, and the second the wait ends in."""
    return int(score) % 1000, FAR if score > 10**12 else int(score) // 1000


def counts(result):
    return result.new, result.merged, result.repeated


def settled(result):
    return result.claimed, result.moved, result.committed, result.expired


def listed(claims):
    return sorted((claim.seq, claim.ordinal, claim.count) for claim in claims)


def rows_of(claim):
    copies = list(map(copy_in, claim.bodies)) or [None] * len(claim.contents)
    return list(zip(claim.contents, claim.scores, claim.retries_left, copies, strict=True))


def text_with(copy):
    """A body as Redis keeps it."""
    times = {Expiry.LIVES: FAR_MS, Expiry.OVER: LONG_PAST_MS}
    return Body(
        payload=copy.payload,
        headers=copy.headers,
        expires_at_ms=times.get(copy.expiry),
        time_to_live_ms=LONG_MS if copy.expiry == Expiry.TO_LIVE else None,
    ).pack()


def copy_in(text):
    """A body that was found in Redis, in the words of the model; None for no body."""
    if not text:
        return None
    requeued = text.startswith(b"~")
    body, expiry = Body.parse(text.removeprefix(b"~")), Expiry.NEVER
    if body.time_to_live_ms is not None:
        expiry = Expiry.TO_LIVE
    elif body.expires_at_ms is not None:
        expiry = Expiry.LIVES if body.expires_at_ms > 10**12 else Expiry.OVER
    return Copy(body.payload, body.headers, expiry, requeued)


def runs_a_server():
    """RMQ_MODEL_RUNS, else 300 in CI, shared by the servers there are."""
    wanted = int(os.environ.get("RMQ_MODEL_RUNS", RUNS_IN_CI if os.environ.get("CI") else RUNS))
    return -(-wanted // max(1, len(servers.executables())))


@pytest.mark.timeout(600)
def test_random_histories_lose_and_double_nothing(server, pytestconfig):
    # Nobody reads how a mutant failed: its histories need not be made short.
    phases = [Phase.generate] if pytestconfig.getoption("--lua-dir") else list(Phase)
    run_state_machine_as_test(
        lambda: QueueHistory(server),
        settings=settings(
            max_examples=runs_a_server(),
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            phases=phases,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )
