"""What a round of debouncing ends with: which payload of each key was delivered when."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from rmq_spark.protocol.names import ClaimId

from .verdict import PHASES

NAMED = 5  # of the keys of which something is wrong


@dataclass(frozen=True)
class Attempt:
    """A run of a batch of the sink. rows: key, payload and claim of what it delivers."""

    batch: int
    rows: Sequence[tuple[str, str, str]]

    def payloads(self) -> Counter[tuple[str, int]]:
        """Key and version of each row."""
        return Counter((key, int(payload)) for key, payload, _ in self.rows)

    def in_order(self) -> list[tuple[str, int]]:
        """Key and version of each row; a key lies in one slot, whose claims have an order."""
        ordered = sorted(self.rows, key=lambda row: ClaimId.parse(row[2]).ordinal)
        return [(key, int(payload)) for key, payload, _ in ordered]


@dataclass
class Outcome:
    """The counts, and by key what is wrong.

    kills: of the consumer, by phase. sent, merged, rolled_back: as Redis counts. delivered: rows in
    the sink; replays: attempts of a batch after its first one. lost: the last payload is not in the
    sink. not_last: it is, and another came after it. overtaken: a payload came after a newer one,
    or again in another batch. unexpected: a payload that was never sent. altered: batches whose
    attempts differ, or differ from the sink. uncounted: updates that were neither merged nor
    delivered; below 0 if too many were.
    """

    kills: Counter[str]
    keys: int
    sent: int
    merged: int
    rolled_back: int
    delivered: int = 0
    batches: int = 0
    replays: int = 0
    lost: set[str] = field(default_factory=set)
    not_last: set[str] = field(default_factory=set)
    overtaken: set[str] = field(default_factory=set)
    unexpected: set[str] = field(default_factory=set)
    altered: set[int] = field(default_factory=set)
    uncounted: int = 0

    def judge(
        self,
        keys: Collection[str],
        versions: range,
        attempts: Sequence[Attempt],
        sink: dict[int, Counter[tuple[str, int]]],
    ) -> None:
        """Fills in the rest.

        versions: the payloads of each key, in the order in which they were sent. attempts: in the
        order in which they were made. sink: what it holds of each batch.
        """
        self.delivered = sum(rows.total() for rows in sink.values())
        self.batches = len(sink)
        self.replays = len(attempts) - len({attempt.batch for attempt in attempts})
        self.uncounted = self.sent - self.merged - self.delivered
        self._judge_order(attempts)
        held = {pair for rows in sink.values() for pair in rows}
        self.lost = {key for key in keys if (key, versions[-1]) not in held}
        self.not_last &= set(keys) - self.lost
        self.unexpected = {f"{key}: {v}" for key, v in held if key not in keys or v not in versions}
        self.altered = {
            each.batch for each in attempts if each.payloads() != sink.get(each.batch, Counter())
        } | (sink.keys() - {each.batch for each in attempts})

    def _judge_order(self, attempts: Sequence[Attempt]) -> None:
        """A replay may deliver the same payload again: it is the same batch."""
        newest: dict[str, tuple[int, int]] = {}
        last: dict[str, int] = {}
        for attempt in attempts:
            for key, version in attempt.in_order():
                seen, batch = newest.get(key, (-1, -1))
                if version < seen or (version == seen and batch != attempt.batch):
                    self.overtaken.add(key)
                newest[key] = max(newest.get(key, (-1, -1)), (version, attempt.batch))
                last[key] = version
        self.not_last = {key for key, version in last.items() if version != newest[key][0]}

    def faults_found(self, updates: int) -> list[str]:
        """Everything that makes the round fail. updates: how many were to be sent."""
        texts = {
            "the last payload of {} is lost": self.lost,
            "the last payload of {} is not the last one delivered": self.not_last,
            "after a newer payload, or twice, came one of {}": self.overtaken,
            "payloads were delivered that were never sent: {}": self.unexpected,
            "a batch came again with other messages: {}": self.altered,
        }
        found = [text.format(named(wrong)) for text, wrong in texts.items() if wrong]
        if self.sent != updates:
            found.append(f"Redis has accepted {self.sent} updates of {updates}")
        if self.uncounted:
            found.append(f"{self.uncounted} updates were neither merged nor delivered")
        if not self.delivered < updates:
            found.append("nothing merged, so nothing was debounced")
        return found

    def cells(self) -> dict[str, str]:
        """The table's columns."""
        by_phase = "/".join(str(self.kills[phase]) for phase in PHASES)
        figures = {
            **{"keys": self.keys, "sent": self.sent, "merged": self.merged},
            **{"delivered": self.delivered, "batches": self.batches, "replays": self.replays},
            **{"rolled back": self.rolled_back, "lost": len(self.lost)},
            **{"not last": len(self.not_last), "overtaken": len(self.overtaken)},
            **{"unexpected": len(self.unexpected), "altered": len(self.altered)},
        }
        kills = {"kills (read/write/commit)": f"{self.kills.total()} ({by_phase})"}
        return {**kills, **{name: str(figure) for name, figure in figures.items()}}


def named(wrong: Collection[object]) -> str:
    """Some of them, and how many there are."""
    some = sorted(map(str, wrong))
    rest = f" and {len(some) - NAMED} more" if len(some) > NAMED else ""
    return ", ".join(some[:NAMED]) + rest
