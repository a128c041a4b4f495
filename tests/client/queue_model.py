"""The protocol in plain Python: one slot, kept in dicts.

Time is three words here: a lease has run out or never does, a message is due or never will be, and
a wait is over or never is. Scores below 10_000 are due; FAR stands for those that are not.
"""

from dataclasses import dataclass, field

FAR = None
DUE_BEFORE_MS = 1500  # the one bound that claims use here, between scores and between retries
LONGEST_RETRY = 16


@dataclass
class Header:
    run: int = 0
    settled: int = 0
    last: tuple[int, int] = (0, 0)


@dataclass
class Record:
    run: int
    expired: bool
    first: dict[bytes, int]  # content -> score in the store, in delivery order
    moved: int
    replayed: int = 0


@dataclass
class Held:
    claim: tuple[str, int, int]
    left: int
    rank: int


@dataclass
class Model:
    descending: bool
    merges_first: bool
    max_retries: int
    backoff: bool
    store: dict[bytes, int | None] = field(default_factory=dict)
    prepare: dict[bytes, Held] = field(default_factory=dict)
    retry: dict[bytes, tuple[int, int | None]] = field(default_factory=dict)  # left, due second
    dead: set[bytes] = field(default_factory=set)
    records: dict[tuple[str, int, int], Record] = field(default_factory=dict)
    headers: dict[str, Header] = field(default_factory=dict)
    taken: int = 0  # messages claimed so far
    epoch: int | None = None
    plans: dict[str, str] = field(default_factory=dict)  # consumer -> mark of its last plan
    paused: bool = False

    # -- senders

    def send(self, contents, score):
        new = 0
        for content in contents:
            new += content not in self.store and self.retry.pop(content, None) is None
            if content not in self.store or not self.merges_first:
                self.store[content] = score
        return new, len(contents) - new

    def cancel(self, contents):
        found = 0
        for content in contents:
            for queue in (self.store, self.retry):
                found += content in queue
                queue.pop(content, None)
        return found

    def requeue(self, contents, score):
        found = [content for content in contents if content in self.dead]
        for content in found:
            self.dead.discard(content)
            self.retry.pop(content, None)
            self.store.setdefault(content, score)
        return len(found)

    # -- the first phase

    def plan(self, consumer, run, mark):
        header = self.headers.get(consumer, Header())
        if run < header.run:
            return "Superseded"
        header.run = run
        self.headers[consumer] = header
        self.plans[consumer] = mark
        return None

    def claim(self, name, run, limit, lease, due_before, epoch, replay_only, mark):
        """Contents with scores and retries left, in order; or the name of the error."""
        consumer, seq, _ = name
        header = self.headers.get(consumer, Header())
        if run < header.run:
            return "Superseded"
        if seq <= header.settled:
            return "Settled"
        record = self.records.get(name)
        if record is None and (replay_only or name[1:] <= header.last):
            return "Lost"
        if record is None and mark and self.plans.get(consumer) != mark:
            return []
        if record is None and self.epoch is not None and epoch is None:
            return "ExclusiveSlot"
        header.run = run
        self.headers[consumer] = header
        if record is not None:
            return self.redeliver(name, record, run, lease)
        if self.paused:
            self.plans.pop(consumer, None)
            return []
        moved = self.due_retries(due_before) + self.reap(spared=name[:2])
        fenced = epoch is not None and self.epoch is not None and epoch < self.epoch
        held = epoch is not None and any(h.claim[0] != consumer for h in self.prepare.values())
        if epoch is not None and not fenced:
            self.epoch = epoch
        popped = {} if fenced or held else self.take(limit, due_before)
        for rank, (content, score) in enumerate(popped.items()):
            left = score - 1 if score <= LONGEST_RETRY else self.max_retries
            self.prepare[content] = Held(name, left, rank)
        self.records[name] = Record(run, not lease, popped, moved)
        header.last = name[1:]
        return self.held_by(name)

    def redeliver(self, name, record, run, lease):
        if 0 < record.run < run:
            for held in self.prepare.values():
                if held.claim == name:
                    held.left = max(0, held.left - 1)
        record.run, record.expired = run, not lease
        return self.held_by(name)

    def held_by(self, name):
        held = [(h.rank, content, h.left) for content, h in self.prepare.items() if h.claim == name]
        first = self.records[name].first
        return [(content, first[content], left) for _, content, left in sorted(held)]

    def due_retries(self, due_before):
        until = DUE_BEFORE_MS if due_before else 10_000
        due = [c for c, (_, second) in self.retry.items() if second and second * 1000 <= until]
        for content in due:
            left, _ = self.retry.pop(content)
            self.store.setdefault(content, left)
        return len(due)

    def take(self, limit, due_before):
        until = DUE_BEFORE_MS if due_before and not self.descending else 10_000
        due = [(s, c) for c, s in self.store.items() if s is not FAR and s <= until]
        due.sort(reverse=self.descending)
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
        self.taken += len(popped)
        for _, content in popped:
            del self.store[content]
        return {content: score for score, content in popped}

    def replay(self, consumer, run, seq_from, seq_to, lease):
        header = self.headers.get(consumer, Header())
        if run < header.run:
            return "Superseded"
        header.run = run
        self.headers[consumer] = header
        listed = []
        for name, record in self.records.items():
            if name[0] == consumer and seq_from < name[1] <= seq_to:
                record.expired, record.replayed = not lease, run
                listed.append((*name[1:], len(record.first)))
        return sorted(listed)

    # -- the second phase, and the ways back

    def commit(self, consumer, run, seq, since, finisher):
        header = self.headers.get(consumer, Header())
        if run < header.run:
            return "Superseded"
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
            del self.prepare[content]
        claimed = sum(len(self.records[name].first) for name in done)
        moved = sum(self.records.pop(name).moved for name in done)
        return claimed, moved, len(committed)

    def set_leases(self, consumer, run, lease):
        header = self.headers.get(consumer, Header())
        if run < header.run:
            return "Superseded"
        own = [record for name, record in self.records.items() if name[0] == consumer]
        for record in own:
            record.expired = not lease
        if own:
            header.run = run
            self.headers[consumer] = header
        return len(own)

    def let_go(self, consumer, run, seq):
        header = self.headers.get(consumer, Header())
        if run < header.run:
            return "Superseded"
        header.run, header.settled = run, max(header.settled, header.last[0], seq)
        self.headers[consumer] = header
        own = [name for name in self.records if name[0] == consumer]
        return sum(self.give_back_claim(name) for name in own)

    def unread(self, consumer, run, seq):
        if run < self.headers.get(consumer, Header()).run:
            return "Superseded"
        marked = [r for n, r in self.records.items() if n[:2] == (consumer, seq) and r.run == run]
        for record in marked:
            record.run = 0
        return len(marked)

    def rollback(self, name, run, contents, delay):
        """delay: None for the topic's backoff, else whether there is one."""
        record = self.records.get(name)
        rolled = 0
        for content in contents:
            held = self.prepare.get(content)
            if record is not None and record.run == run and held and held.claim == name:
                del self.prepare[content]
                self.give_back(content, held.left, self.backoff if delay is None else delay)
                rolled += 1
        return rolled, len(contents) - rolled

    def give_back(self, content, left, waits):
        if left == 0:
            self.dead.add(content)
        elif not waits:
            self.store.setdefault(content, left)
        elif content not in self.store:
            self.retry[content] = (left, FAR)

    def reap(self, spared=None):
        moved = 0
        for name, record in list(self.records.items()):
            holds = any(h.claim == name for h in self.prepare.values())
            if record.expired and name[:2] != spared and holds:
                moved += self.give_back_claim(name)
        return moved

    def give_back_claim(self, name):
        record = self.records.pop(name)
        held = [(c, h) for c, h in self.prepare.items() if h.claim == name]
        for content, h in held:
            del self.prepare[content]
            if record.run == 0:
                self.store.setdefault(content, self.unread_score(record, content, h.left))
            else:
                self.give_back(content, h.left, self.backoff)
        return len(held)

    def unread_score(self, record, content, left):
        score = record.first[content]
        at_first = score - 1 if score <= LONGEST_RETRY else self.max_retries
        return left + 1 if left < at_first else score
