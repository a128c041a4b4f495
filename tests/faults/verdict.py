"""What a cell ends with: sets of messages compared, one line of the table each."""

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from ..rounds.ledger import compared

PHASES = ("read", "write", "commit")
HEADINGS = (
    *("fault", "sink", "lease", "promise", "injected (read/write/commit)", "sent", "delivered"),
    *("lost", "unexpected", "duplicated", "redelivered", "verdict"),
)


@dataclass
class Verdict:
    """One cell. promise: "exactly once" or "at least once"; injected: by phase.

    sent: messages that the producer has sent and Redis accepted. delivered: rows in the sink.
    lost: sent, and not in the sink. forgotten: the same, of messages that Redis may forget as it
    falls back to a state from before they were sent. unexpected: in the sink, and never sent.
    duplicated: rows too many. redelivered: rows that were not the first delivery of their message.
    stopped: errors that ended the consumer's query where it must go on. overtaken: payloads that
    came to the sink behind a newer one of their key; in a keyed cell, forgotten are payloads that a
    newer one has replaced.
    """

    fault: str
    sink: str
    lease: str
    promise: str
    injected: Counter[str] = field(default_factory=Counter)
    least: int = 5
    sent: int = 0
    delivered: int = 0
    lost: int = 0
    forgotten: int = 0
    unexpected: int = 0
    duplicated: int = 0
    redelivered: int = 0
    overtaken: int = 0
    stopped: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def compare(
        self,
        sent: set[str],
        rows: Sequence[tuple[str, int]],
        forgettable: Set[str] = frozenset(),
    ) -> None:
        """Fills in the figures.

        rows: content and delivery count. forgettable: what need not be in the sink.
        """
        found = compared(sent, Counter(content for content, _ in rows))
        self.sent, self.delivered = len(sent), len(rows)
        self.lost = len(found.lost - forgettable)
        self.forgotten = len(found.lost & forgettable)
        self.unexpected = len(found.unexpected)
        self.duplicated = found.surplus
        self.redelivered = sum(count > 1 for _, count in rows)

    def faults_found(self) -> list[str]:
        """Everything that makes the cell fail."""
        found = list(self.troubles)
        if sum(self.injected.values()) < self.least:
            found.append(f"injected {sum(self.injected.values())} times, needed {self.least}")
        found += [f"never injected inside a {each}" for each in PHASES if not self.injected[each]]
        if self.lost or self.unexpected:
            found.append(f"{self.lost} lost, {self.unexpected} unexpected")
        if self.overtaken:
            found.append(f"{self.overtaken} came behind a newer payload of their key")
        if self.duplicated and self.promise == "exactly once":
            found.append(f"{self.duplicated} duplicated where exactly once is promised")
        found += [f"the query stopped, and must go on: {error}" for error in self.stopped]
        if not self.redelivered:
            found.append("no message was delivered a second time, so no retry was among them")
        return found

    def cells(self) -> list[str]:
        """The columns of HEADINGS."""
        by_phase = "/".join(str(self.injected[phase]) for phase in PHASES)
        lost = f"{self.lost} ({self.forgotten} forgotten)" if self.forgotten else str(self.lost)
        figures = (self.sent, self.delivered, lost, self.unexpected, self.duplicated)
        return [
            *(self.fault, self.sink, self.lease, self.promise),
            f"{sum(self.injected.values())} ({by_phase})",
            *(str(figure) for figure in (*figures, self.redelivered)),
            "FAILED" if self.faults_found() else "ok",
        ]


def overtaken(rows: Sequence[tuple[str, int, Any]]) -> int:
    """Count the payloads that were claimed later than a newer one of their key.

    rows: of each payload its key, its number among all payloads, and when it was claimed. Batches
    of two consumers can be compared by nothing else.
    """
    newest: dict[str, int] = {}
    found = 0
    for _, key, number in sorted((claimed, key, number) for key, number, claimed in rows):
        found += number < newest.get(key, number)
        newest[key] = max(number, newest.get(key, number))
    return found
