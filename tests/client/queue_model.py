"""The protocol in plain Python: one slot, kept in dicts.

Time is three words here: a lease has run out or never does, a message is due or never will be, and
a wait is over or never is. Scores below 10_000 are due; FAR stands for those that are not. Scores
below 0 are those of suspects. A body
has expired or lives, or its time to live begins when its message is due.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import floor

from rmq_spark.topics.verdicts import Ending

FAR = None
DUE_BEFORE_MS = 1500  # the one bound that claims use here, between scores and between retries
LONGEST_RETRY = 16
# With how many others of their level suspects come again. The last ones are all their holder has.
SUSPECTS = {1: 256, 2: 16, 3: 1, 4: 1}
ALONE = 4


def score_of(level, deliveries):
    return -(32 * level + deliveries) if level or deliveries > LONGEST_RETRY else deliveries


def level_of(score):
    return -score // 32 if score is not FAR and score < 0 else 0


def deliveries_of(score):
    return -score % 32 if score < 0 else score


class Expiry(StrEnum):
    """When a body expires. TO_LIVE: an hour after its message is due."""

    NEVER = "never"
    LIVES = "lives"
    OVER = "over"
    TO_LIVE = "to live"


@dataclass(frozen=True)
class Copy:
    """What a copy of a message carries beside its content or key."""

    payload: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    expiry: Expiry = Expiry.NEVER
    requeued: bool = False  # and not claimed or sent since

    def claimed(self, score: int) -> "Copy":
        """The body in a claim. A due message was due long ago; a retry has no due time."""
        if self.expiry != Expiry.TO_LIVE:
            return replace(self, requeued=False)
        return replace(self, expiry=Expiry.OVER if score > LONGEST_RETRY else Expiry.LIVES)


@dataclass
class Header:
    run: int = 0
    settled: int = 0
    last: tuple[int, int] = (0, 0)


@dataclass
class Record:
    run: int
    expired: bool
    sealed: int
    moved: int
    max_retries: int
    charged: int = 0
    replayed: int = 0
    with_bodies: bool = False  # whether its bodies have a key
    has_expired: int = 0  # messages that making it found expired
    given_up: bool = False  # by its consumer, when its lease ended

    def left(self, score):
        return max(0, self.left_at_first(score) - self.charged)

    def left_at_first(self, score):
        return deliveries_of(score) - 1 if score <= LONGEST_RETRY else self.max_retries


@dataclass
class Held:
    claim: tuple[str, int, int]
    score: float  # in the store


@dataclass
class Model:
    descending: bool
    merges_first: bool
    max_retries: int
    backoff: bool
    store: dict[bytes, int | None] = field(default_factory=dict)
    prepare: dict[bytes, Held] = field(default_factory=dict)
    # The score for the store without its sign, and the due second.
    retry: dict[bytes, tuple[int, int | None]] = field(default_factory=dict)
    dead: set[bytes] = field(default_factory=set)
    records: dict[tuple[str, int, int], Record] = field(default_factory=dict)
    headers: dict[str, Header] = field(default_factory=dict)
    room: float = math.inf  # how many messages may wait
    is_unique: bool = False  # whether one that was accepted is not accepted again, for a time
    recent: set[bytes] = field(default_factory=set)
    taken: int = 0  # messages claimed so far
    numbered: int = 0  # messages that were accepted or moved
    used: bool = False  # whether a message has ever been sent; a slot of a deleted topic has none
    epoch: int | None = None
    plans: dict[str, str] = field(default_factory=dict)  # consumer -> mark of its last plan
    paused: bool = False
    keeps_first: bool = False  # payloads of messages that wait
    buries_expired: bool = False
    bodies: dict[bytes, Copy] = field(default_factory=dict)  # of messages that wait
    held_bodies: dict[bytes, Copy | None] = field(default_factory=dict)
    dead_bodies: dict[bytes, Copy | None] = field(default_factory=dict)

    # -- senders

    def send(self, contents, score, copies: Sequence[Copy] = ()):
        """copies: those of the contents, or none."""
        contents, copies, repeated = self.without_repeated(contents, copies)
        comes = set(contents) - self.store.keys() - self.retry.keys()
        waiting = len(self.store) + len(self.retry)
        if comes and waiting and waiting + len(comes) > self.room:  # an empty slot takes any call
            return "TopicFull"
        if self.is_unique:
            self.recent |= set(contents)
        self.used |= bool(contents)
        self.set_bodies(contents, copies)
        new = 0
        for k, content in enumerate(contents):
            new += content not in self.store and self.retry.pop(content, None) is None
            if content not in self.store or not self.merges_first:
                self.store[content] = self.in_turn(score, k)
        self.numbered += len(contents)
        return new, len(contents) - new, repeated

    def without_repeated(self, contents, copies):
        if not self.is_unique:
            return contents, copies, 0
        firsts = [
            at
            for at, content in enumerate(contents)
            if content not in self.recent and content not in contents[:at]
        ]
        return (
            [contents[at] for at in firsts],
            [copies[at] for at in firsts if copies],
            len(contents) - len(firsts),
        )

    def in_turn(self, score, later):
        """A later message, of the same call or not, has a lower score among its equals."""
        return score + 1 - (self.numbered + later + 1) / 2**32 if self.descending else score

    def set_bodies(self, contents, copies):
        for content, copy in zip(contents, copies, strict=False):
            # Priority messages are due at once.
            starts = self.descending and copy.expiry == Expiry.TO_LIVE
            known = replace(copy, expiry=Expiry.LIVES) if starts else copy
            waiting = self.bodies.get(content) if self.keeps_first else None
            self.bodies[content] = replace(waiting, requeued=False) if waiting else known
        if not copies:
            for content in contents:
                self.bodies.pop(content, None)

    def cancel(self, contents):
        found = 0
        for content in contents:
            self.bodies.pop(content, None)
            for queue in (self.store, self.retry):
                found += content in queue
                queue.pop(content, None)
        return found

    def move(self, contents, score):
        """What was rolled back keeps its retries, and waits for a time in the retry queue."""
        moved = 0
        for content in contents:
            stored = self.store.get(content, LONGEST_RETRY)
            if stored is FAR or stored > LONGEST_RETRY:
                self.store[content] = self.in_turn(score, moved)
            elif self.descending or (content not in self.store and content not in self.retry):
                continue
            elif content in self.retry:
                second = FAR if score is FAR else -(-score // 1000)
                self.retry[content] = (self.retry[content][0], second)
            elif score is FAR:
                self.retry[content] = (abs(self.store.pop(content)), FAR)
            moved += 1
        self.numbered += moved
        return moved

    def requeue(self, contents, score):
        found = [content for content in contents if content in self.dead]
        for k, content in enumerate(found):
            self.dead.discard(content)
            copy = self.dead_bodies.pop(content)
            if copy is not None and content not in self.store and content not in self.retry:
                self.bodies[content] = replace(copy, expiry=Expiry.NEVER, requeued=True)
            self.retry.pop(content, None)
            self.store.setdefault(content, self.in_turn(score, k))
        self.numbered += len(found)
        return len(found)

    def forget(self, contents):
        """Dead messages whose retention has ended."""
        for content in contents:
            self.dead.discard(content)
            del self.dead_bodies[content]
        return len(contents)

    # -- the first phase

    def is_deserted(self):
        """Nothing was ever here, as in a slot of a deleted topic: nobody leaves a key behind."""
        return not (self.used or self.headers or self.paused) and self.epoch is None

    def plan(self, consumer, run, mark):
        header = self.headers.get(consumer, Header())
        if run < header.run:
            return "Fenced"
        if not self.is_deserted():
            header.run = run
            self.headers[consumer] = header
            self.plans[consumer] = mark
        return None

    def due(self, consumer, due_before, epoch):
        """Messages due, those held back, the claims to give back, and whether one must be alone.

        Or the name of the error.
        """
        if self.epoch is not None and epoch is None:
            return "ExclusiveSlot"
        count = len(self.due_messages(due_before)) + len(self.retries_due(due_before))
        expired = self.expired()
        count += sum(held.claim in expired for held in self.prepare.values())
        others = any(name[0] != consumer for name in self.holding().difference(expired))
        fenced = epoch is not None and self.epoch is not None and epoch < self.epoch
        held = self.paused or fenced or (epoch is not None and others)
        if held:
            return 0, count, expired, False
        return count, 0, expired, self.has_one_to_be_alone_with(due_before)

    def has_one_to_be_alone_with(self, due_before):
        """In the store, or first among the retries."""
        retries = [
            (float("inf") if s is FAR else s, score, c) for c, (score, s) in self.retry.items()
        ]
        first = min(retries, default=None)
        of_retries = first is not None and first[2] in self.retries_due(due_before)
        in_store = any(level_of(score) == ALONE for score in self.store.values())
        return in_store or (of_retries and level_of(-first[1]) == ALONE)

    def claim(self, name, run, limit, lease, due_before, epoch, replay_only, mark, alone=False):
        """Contents with scores and retries left, in order; or the name of the error."""
        consumer, seq, _ = name
        header = self.headers.get(consumer, Header())
        if run < header.run:
            return "Fenced"
        if seq <= header.settled:
            return "AlreadyCommitted"
        record = self.records.get(name)
        if record is None and (replay_only or name[1:] <= header.last):
            return "LeaseLost"
        if record is None and mark and self.plans.get(consumer) != mark:
            return []
        if record is None and self.epoch is not None and epoch is None:
            return "ExclusiveSlot"
        if self.is_deserted():
            return []
        header.run = run
        self.headers[consumer] = header
        if record is not None:
            return self.redeliver(name, record, run, lease)
        if self.paused:
            self.plans.pop(consumer, None)
            return []
        moved = self.due_retries(due_before)
        fenced = epoch is not None and self.epoch is not None and epoch < self.epoch
        held = epoch is not None and any(h.claim[0] != consumer for h in self.prepare.values())
        if epoch is not None and not fenced:
            self.epoch = epoch
        popped = {} if fenced or held else self.take(limit, due_before, alone)
        with_bodies = bool(self.bodies)
        over = self.move_bodies(popped)
        self.prepare |= {content: Held(name, score) for content, score in popped.items()}
        self.records[name] = Record(run, not lease, len(popped), moved, self.max_retries)
        self.records[name].with_bodies, self.records[name].has_expired = with_bodies, over
        header.last = name[1:]
        return self.held_by(name)

    def move_bodies(self, popped):
        """Those of messages for a claim; removes the expired ones from these, and counts them."""
        bodies = {
            content: self.bodies[content].claimed(score) if content in self.bodies else None
            for content, score in popped.items()
        }
        over = [c for c, copy in bodies.items() if copy and copy.expiry == Expiry.OVER]
        for content in popped:
            self.bodies.pop(content, None)
        for content in over:
            del popped[content]
            copy = bodies.pop(content)
            if self.buries_expired:
                self.dead.add(content)
                self.dead_bodies[content] = copy
        self.held_bodies |= bodies
        self.taken += len(popped) + len(over)
        return len(over)

    def redeliver(self, name, record, run, lease):
        record.charged += 0 < record.run < run
        record.run, record.expired, record.given_up = run, not lease, False
        return self.held_by(name)

    def held_by(self, name):
        held = [(h.score, content) for content, h in self.prepare.items() if h.claim == name]
        held.sort(reverse=self.descending)
        record = self.records[name]
        return [(c, floor(score), record.left(score), self.held_bodies[c]) for score, c in held]

    def retries_due(self, due_before):
        until = DUE_BEFORE_MS if due_before else 10_000
        return [c for c, (_, second) in self.retry.items() if second and second * 1000 <= until]

    def due_messages(self, due_before):
        """Scores and contents in the store, in delivery order."""
        until = DUE_BEFORE_MS if due_before and not self.descending else 10_000
        due = [(s, c) for c, s in self.store.items() if s is not FAR and s <= until]
        return sorted(due, reverse=self.descending)

    def due_retries(self, due_before):
        due = self.retries_due(due_before)
        for content in due:
            score, _ = self.retry.pop(content)
            self.store.setdefault(content, -score if score > LONGEST_RETRY else score)
        return len(due)

    def take(self, limit, due_before, alone):
        due = self.due_messages(due_before)
        popped = self.suspects(due, limit, alone) or self.others(due, limit)
        for _, content in popped:
            del self.store[content]
        return {content: score for score, content in popped}

    def suspects(self, due, limit, alone):
        free = [pair for pair in due if pair[1] not in self.prepare]
        for level in range(ALONE if alone else ALONE - 1, 0, -1):
            of_level = [pair for pair in free if level_of(pair[0]) == level]
            if of_level:
                return of_level[: min(limit, SUSPECTS[level])]
        return []

    def others(self, due, limit):
        due = [pair for pair in due if level_of(pair[0]) < 1]
        retries = [pair for pair in due if pair[0] <= LONGEST_RETRY]
        firsts = [pair for pair in due if pair[0] > LONGEST_RETRY]
        lead, last = (firsts, retries) if self.descending else (retries, firsts)
        kept = min(len(last), max(1, limit // 8))
        if limit == 1 and self.taken % 2 == 0 and lead:
            kept = 0
        popped = [pair for pair in lead if pair[1] not in self.prepare][: limit - kept]
        popped += [p for p in last if p[1] not in self.prepare][: limit - len(popped)]
        if limit == 1 and not popped:
            popped = [pair for pair in lead if pair[1] not in self.prepare][:1]
        return popped

    def replay(self, consumer, run, seq_from, seq_to, lease):
        header = self.headers.get(consumer, Header())
        if run < header.run:
            return "Fenced"
        if self.is_deserted():
            return []
        header.run = run
        self.headers[consumer] = header
        listed = []
        for name, record in self.records.items():
            if name[0] == consumer and seq_from < name[1] <= seq_to:
                record.expired, record.replayed, record.given_up = not lease, run, False
                listed.append((*name[1:], record.sealed))
        return sorted(listed)

    # -- the second phase, and the ways back

    def commit(self, consumer, run, seq, since, finisher, named):
        """named: whether the caller names claims."""
        header = self.headers.get(consumer, Header())
        if run < header.run:
            return "Fenced"
        if not (named and self.is_deserted()):
            header.run, header.settled = run, max(header.settled, seq)
            self.headers[consumer] = header
        done = [
            name
            for name, record in self.records.items()
            if name[0] == consumer
            and since < name[1] <= seq
            and (finisher == 0 or {run, finisher} & {record.run, record.replayed})
        ]
        committed = [content for content, h in self.prepare.items() if h.claim in done]
        for content in committed:
            del self.prepare[content], self.held_bodies[content]
        claimed = sum(self.records[name].sealed for name in done)
        expired = sum(self.records[name].has_expired for name in done)
        moved = sum(self.records.pop(name).moved for name in done)
        return claimed, moved, len(committed), expired

    def set_leases(self, consumer, run, lease):
        header = self.headers.get(consumer, Header())
        if run < header.run:
            return "Fenced"
        own = [record for name, record in self.records.items() if name[0] == consumer]
        for record in own:
            record.expired, record.given_up = not lease, False
        if own:
            header.run = run
            self.headers[consumer] = header
        return len(own)

    def leave(self, consumer, run, seq, failed=False):
        """The claims that it has to give back; or the name of the error."""
        header = self.headers.get(consumer, Header())
        if run < header.run:
            return "Fenced"
        if not (seq and self.is_deserted()):
            header.run, header.settled = run, max(header.settled, header.last[0], seq)
            self.headers[consumer] = header
        own = [name for name in self.records if name[0] == consumer]
        holding = self.holding()
        for name in own:
            self.records[name].expired = True
            self.records[name].given_up = not failed and self.records[name].run >= run
            if name not in holding:
                del self.records[name]
        return sorted(holding.intersection(own))

    def let_go(self, consumer, run, seq, failed):
        left = self.leave(consumer, run, seq, failed)
        return left if left == "Fenced" else sum(map(self.give_back_claim, left))

    def unread(self, consumer, run, seq):
        if run < self.headers.get(consumer, Header()).run:
            return "Fenced"
        marked = [r for n, r in self.records.items() if n[:2] == (consumer, seq) and r.run == run]
        for record in marked:
            record.run = 0
        return len(marked)

    def rollback(self, name, run, contents, delay, ending=Ending.RETRY):
        """delay: None for the topic's backoff, or none if uncharged; else whether there is one."""
        record = self.records.get(name)
        rolled = 0
        for content in contents:
            held = self.prepare.get(content)
            if record is not None and record.run == run and held and held.claim == name:
                del self.prepare[content]
                left = record.left(held.score)
                if ending is Ending.BURY:
                    self.give_back(content, 0, False)
                elif ending is Ending.RETRY:
                    self.give_back(content, left, self.backoff if delay is None else delay)
                elif ending is Ending.UNREAD:
                    self.return_as_it_was(content, record, held.score)
                elif delay:
                    self.give_back(content, left + 1, True)
                elif level_of(held.score):
                    self.return_uncharged(content, score_of(0, left + 1))
                else:
                    self.return_as_it_was(content, record, held.score)
                rolled += 1
        return rolled, len(contents) - rolled

    def give_back(self, content, left, waits, level=0):
        copy = self.held_bodies.pop(content)
        if left == 0:
            self.dead.add(content)
            self.dead_bodies[content] = copy
        elif content in self.store:
            self.keep_newer_body(content, copy)
        elif not waits:
            self.store[content] = score_of(level, left)
            self.keep_body(content, copy)
        else:
            self.retry[content] = (abs(score_of(level, left)), FAR)
            self.keep_body(content, copy)

    def keep_body(self, content, copy):
        if copy is not None:
            self.bodies[content] = copy

    def keep_newer_body(self, content, copy):
        """The copy that waits is newer, unless it was requeued."""
        if content in self.bodies and self.bodies[content].requeued:
            self.keep_body(content, copy)

    def holding(self):
        return {held.claim for held in self.prepare.values()}

    def expired(self):
        """The claims that may be given back."""
        return sorted(name for name in self.holding() if self.records[name].expired)

    def give_back_expired(self):
        return sum(map(self.give_back_claim, self.expired()))

    def give_back_claim(self, name):
        if name not in self.expired():
            return 0
        record = self.records.pop(name)
        held = [(c, h.score) for c, h in self.prepare.items() if h.claim == name]
        is_lost = record.run > 0 and not record.given_up
        size = next((n for n in (1, 2) if len(held) > SUSPECTS[n]), 3)
        for content, score in held:
            del self.prepare[content]
            left = record.left(score)
            if record.run > 0 and not is_lost:
                self.give_back(content, left, self.backoff)
            elif is_lost and level_of(score) == ALONE:
                self.give_back(content, left, self.backoff, ALONE)
            elif is_lost:  # it costs nothing
                level = max(size, level_of(score) + 1)
                self.return_uncharged(content, score_of(level, left + 1))
            else:
                self.return_as_it_was(content, record, score)
        return len(held)

    def return_as_it_was(self, content, record, score):
        """As it was, but for what replays have cost."""
        left = record.left(score)
        is_charged = left < record.left_at_first(score)
        again = score_of(level_of(score), left + 1) if is_charged else score
        self.return_uncharged(content, again)

    def return_uncharged(self, content, score):
        copy = self.held_bodies.pop(content)
        if content not in self.store:
            self.store[content] = score
            self.keep_body(content, copy)
        else:
            self.keep_newer_body(content, copy)
