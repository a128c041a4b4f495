"""What was seen of a slot on the way to a state, as far as the promises ask for it.

It is made of calls and their answers alone, never of what Redis holds, so that a script which
forgets something is found out.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

# The calls by which a slot comes to know of a run.
RAISING = ("plan", "claim", "replay", "commit", "renew", "release", "abandon")
# Content, score in the store, or None on a retry, retries left, and the payload in keyed topics.
Row = tuple[str, int | None, int, str | None]
NO_BODY = b"no body"  # in place of a payload


@dataclass(frozen=True)
class Ghost:
    """Of one slot. Sorted tuples stand for dicts, so that equal pasts are equal.

    newest, done: the highest run, and the highest batch committed, of each consumer. made: every
    claim there ever was. read: claim, run and rows of the last read. listed: consumer and run, and
    what its replay listed that it has not read yet. epoch: the highest that made a claim. plans:
    the mark of each consumer's last plan, as far as the server cannot have forgotten it, and unless
    a pause has ended it. paused: whether the slot is.
    Of keyed topics: sent: each content, and its payloads in the order in which they came to wait
    last. given: each content, and the payload that a new claim gave last.
    """

    newest: tuple = ()
    done: tuple = ()
    made: frozenset[str] = frozenset()
    read: tuple = ()
    listed: tuple = ()
    epoch: int = 0
    plans: tuple = ()
    paused: bool = False
    sent: tuple = ()
    given: tuple = ()

    @cached_property
    def _hash(self) -> int:
        seen = (self.newest, self.done, self.made, self.read, self.listed, self.epoch, self.plans)
        return hash((*seen, self.paused, self.sent, self.given))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def runs(self) -> dict[str, int]:
        return dict(self.newest)

    @cached_property
    def settled(self) -> dict[str, int]:
        return dict(self.done)

    @cached_property
    def reads(self) -> dict[str, tuple[int, tuple[Row, ...]]]:
        return {name: (run, rows) for name, run, rows in self.read}

    @cached_property
    def marks(self) -> dict[str, str]:
        return dict(self.plans)

    @cached_property
    def unread(self) -> dict[tuple[str, int], frozenset[str]]:
        return dict(self.listed)

    @cached_property
    def payloads(self) -> dict[str, tuple[str, ...]]:
        return dict(self.sent)

    @cached_property
    def last_given(self) -> dict[str, str]:
        return dict(self.given)

    def latest(self, consumer: str) -> tuple[int, int]:
        """Batch and number of the last claim that a consumer made."""
        numbers = [name.split(":")[1:] for name in self.made if name.startswith(f"{consumer}:")]
        return max(((int(seq), int(ordinal)) for seq, ordinal in numbers), default=(0, 0))


def after(step: Any) -> Ghost:
    """The past of the state that a step leads to, one that was not refused."""
    ghost, by = step.ghost, step.action
    if step.unnamed is not None or step.forgotten or (step.paused and not step.knows_the_plan):
        return ghost
    changes: dict[str, Any] = {}
    if by.kind in RAISING and not found_nothing(step):
        changes["newest"] = raised(ghost.runs, by.consumer, by.run)
    if by.kind == "pause":
        changes["paused"] = by.paused
    if step.paused:  # whoever asked has seen an empty claim
        plans = {name: mark for name, mark in ghost.plans if name != by.consumer}
        return replace(ghost, **changes, plans=tuple(sorted(plans.items())))
    if by.kind == "plan":
        changes["plans"] = tuple(sorted({**ghost.marks, by.consumer: by.mark}.items()))
    if by.kind == "commit":
        changes["done"] = raised(ghost.settled, by.consumer, by.seq)
    if by.kind == "abandon":  # what was claimed is over
        last = max(by.seq, ghost.latest(by.consumer)[0])
        changes["done"] = raised(ghost.settled, by.consumer, last)
    if step.brings:
        changes["sent"] = sent_after(step)
    if step.makes_a_claim and step.keyed:
        given = {content: payload for content, _, _, payload in step.answer}
        changes["given"] = tuple(sorted({**ghost.last_given, **given}.items()))
    if by.kind in ("claim", "replay"):
        changes["listed"] = listed_after(step)
    if by.kind == "claim":
        changes["made"] = ghost.made | {by.claim}
    if step.makes_a_claim:  # reading again never looks at epochs
        changes["epoch"] = max(ghost.epoch, by.epoch or 0)
    changes["read"] = reads_after(step)
    return replace(ghost, **changes)


def sent_after(step: Any) -> tuple:
    """What it brings comes last."""
    sent = dict(step.ghost.payloads)
    for content, copy in step.brings.items():
        sent[content] = (*(p for p in sent.get(content, ()) if p != copy.payload), copy.payload)
    return tuple(sorted(sent.items()))


def found_nothing(step: Any) -> bool:
    """Whether a renewal or a release met no claim; then it leaves no trace of its run."""
    renewed = step.answer.values() if step.action.kind == "renew" else [step.answer]
    return step.action.kind in ("renew", "release") and not any(renewed)


def forgotten(saved: Ghost, now: Ghost) -> Ghost:
    """The past of a server that fell back: it forgets, but nobody forgets what it has read.

    A claim that was made is never made again, whatever the server knows of it.
    """
    return replace(saved, made=now.made, plans=())


def raised(numbers: dict[str, int], name: str, to: int) -> tuple:
    return tuple(sorted({**numbers, name: max(to, numbers.get(name, 0))}.items()))


def reads_after(step: Any) -> tuple:
    """The last reads of the claims there are, less what they hold no more."""
    reads = dict(step.ghost.reads)
    by = step.action
    if by.kind == "claim":
        reads[by.claim] = (by.run, step.answer)
    return tuple(
        (name, run, tuple(row for row in rows if row[0] in step.after.held(name)))
        for name, (run, rows) in sorted(reads.items())
        if name in step.after.claims
    )


def listed_after(step: Any) -> tuple:
    """What the run has still to read of what its replay listed."""
    unread, by = dict(step.ghost.unread), step.action
    caller = (by.consumer, by.run)
    if by.kind == "replay":
        unread[caller] = frozenset(f"{by.consumer}:{c.seq}:{c.ordinal}" for c in step.answer)
    elif caller in unread:
        unread[caller] -= {by.claim}
    return tuple(sorted(unread.items(), key=lambda item: item[0]))
