"""What must hold at the end of a soak: what was sent has come to exactly one end."""

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass

from rmq_spark.protocol.claims import Figures

from ..rounds.ledger import Compared, compared

# The ends that a message can come to, as Redis counts them.
ENDS = ("merged", "committed", "cancelled", "dead", "expired")
HEADINGS = (
    *("topic", "group", "accepted", *ENDS, "waiting", "unaccounted"),
    *("sent", "delivered", "lost", "unexpected", "twice"),
)
NAMED = 3


@dataclass(frozen=True)
class Outcome:
    """What became of one consumer group's messages.

    expected: contents that must have been delivered. allowed: others that may have been. unsure:
    contents that may have come twice. exactly_once: whether no other may. delivered: what consumers
    have had.
    """

    topic: str
    group: str
    figures: Figures
    expected: Set[str]
    delivered: Counter[str]
    exactly_once: bool = False
    allowed: Set[str] = frozenset()
    unsure: Set[str] = frozenset()

    @property
    def unaccounted(self) -> int:
        """Messages that were accepted and are nowhere; below 0, that came to two ends."""
        counters = self.figures.counters
        return counters["accepted"] - sum(counters[name] for name in ENDS) - self.waiting

    @property
    def waiting(self) -> int:
        """Messages that are stored, in progress or to be delivered again."""
        figures = self.figures
        return figures.store.count + figures.prepare.count + figures.retry.count

    @property
    def compared(self) -> Compared[str]:
        return compared(self.expected, self.delivered)

    @property
    def lost(self) -> Set[str]:
        return self.compared.lost

    @property
    def unexpected(self) -> Set[str]:
        return self.compared.unexpected - self.allowed

    @property
    def twice(self) -> Set[str]:
        """What came more than once, and must not."""
        return self.compared.repeated - self.unsure if self.exactly_once else set()

    def wrong(self) -> list[str]:
        """Every law and promise that is broken."""
        texts = {"lost": self.lost, "never sent": self.unexpected, "twice": self.twice}
        found = [f"{len(some)} {what}: {_some(some)}" for what, some in texts.items() if some]
        if self.unaccounted:
            found.append(f"{self.unaccounted} of {self.figures.counters} are unaccounted for")
        if self.waiting:
            found.append(f"{self.waiting} still wait")
        return [f"{self.topic} {self.group or 'default group'}: {each}" for each in found]

    def cells(self) -> list[str]:
        """The columns of HEADINGS."""
        counters = self.figures.counters
        figures = (counters["accepted"], *(counters[name] for name in ENDS), self.waiting)
        found = (self.unaccounted, len(self.expected), self.delivered.total())
        broken = (len(self.lost), len(self.unexpected), len(self.twice))
        return [self.topic, self.group, *(str(each) for each in (*figures, *found, *broken))]


def _some(texts: Set[str]) -> str:
    return ", ".join(sorted(texts)[:NAMED])


def kills_told(kills: Counter[str]) -> str:
    """The kills by what was killed, in one line."""
    parts: Sequence[str] = [f"{name} {count}" for name, count in sorted(kills.items())]
    return f"{kills.total()} disturbances: {', '.join(parts)}"
