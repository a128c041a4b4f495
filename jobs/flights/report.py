"""The table at the end, and the verdict."""

from collections.abc import Sequence
from dataclasses import dataclass

from jobs.flights.check import Compared
from jobs.flights.lateness import Lateness
from rmq_spark.client import TopicType

LEGEND = """\
sent, merged: counted by Redis. delivered, lost, duplicated: the Parquet files against the CSV.
sent/s: until Redis has them. received/s: by the time of the triggers that had messages;
the first two topics are received as they fall due, the third as fast as it goes.
late: from the due time until the Parquet file that holds the message was complete."""


@dataclass(frozen=True)
class Outcome:
    """One topic: what Redis counted, how the files compare with the input, and how fast it was."""

    topic: str
    type: TopicType
    sent: int
    merged: int
    compared: Compared
    sent_per_s: float
    received_per_s: float
    lateness: Lateness | None

    @property
    def lost(self) -> int:
        """Messages that were new and never delivered, or keys of the input that are missing."""
        unique = self.compared.delivered - self.compared.duplicated
        return max(self.sent - self.merged - unique, self.compared.missing, 0)


def differences(outcome: Outcome) -> list[str]:
    """What is not as it must be, a sentence each; empty when all is well."""
    compared = outcome.compared
    merging = outcome.type == TopicType.RANGE_MERGE
    new = outcome.sent - outcome.merged
    found = [
        (outcome.sent != compared.expected, f"{outcome.sent} sent, input has {compared.expected}"),
        (outcome.merged and not merging, f"{outcome.merged} merged, though each is unique"),
        (compared.delivered != new, f"{compared.delivered} delivered, {new} were new"),
        (outcome.lost, f"{outcome.lost} lost"),
        (compared.duplicated, f"{compared.duplicated} delivered more than once"),
        (compared.unexpected, f"{compared.unexpected} delivered that the input does not have"),
        (compared.altered, f"{compared.altered} with another time or priority than the input"),
    ]
    return [f"{outcome.topic}: {text}" for differs, text in found if differs]


def gain(outcome: Outcome) -> str:
    """Say in a sentence what a topic was good for; empty if there is nothing to say."""
    delivered, late = outcome.compared.delivered, outcome.lateness
    if outcome.merged and delivered:
        merged = f"{outcome.merged / outcome.sent:.0%} merged with an equal one that waited."
        sent = f"{outcome.topic}: {_grouped(outcome.sent)} changes"
        return f"{sent} took {_grouped(delivered)} pieces of work, because {merged}"
    if late is None:
        return ""
    late_ms = f"half came within {late.p50_ms:.0f} ms of it, 99% within {late.p99_ms:.0f} ms."
    return (
        f"{outcome.topic}: {_grouped(delivered)} messages waited for a time of their own; {late_ms}"
    )


def table(outcomes: Sequence[Outcome]) -> str:
    """One line for each topic, below a heading."""
    rows = [_HEADING, *(_cells(outcome) for outcome in outcomes)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_HEADING))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at < _TEXTS else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


_HEADING = (
    *("topic", "type", "sent", "merged", "delivered", "lost", "duplicated"),
    *("sent/s", "received/s", "late p50", "late p99"),
)
_TEXTS = 2


def _cells(outcome: Outcome) -> tuple[str, ...]:
    late = outcome.lateness
    counts = (outcome.sent, outcome.merged, outcome.compared.delivered, outcome.lost)
    speeds = (outcome.sent_per_s, outcome.received_per_s)
    return (
        outcome.topic,
        outcome.type.name,
        *(_grouped(count) for count in (*counts, outcome.compared.duplicated)),
        *(_grouped(round(speed)) for speed in speeds),
        *(("-", "-") if late is None else (f"{late.p50_ms:.0f} ms", f"{late.p99_ms:.0f} ms")),
    )


def _grouped(number: int) -> str:
    return f"{number:,}".replace(",", " ")
