"""Serial streams: messages whose slotBasis makes them one after the other, and the verdict on that.

Each message names its stream, its number there, and how long it takes to work on it. Who works on
one notes when, where and in which batch.
"""

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ..rounds.ledger import compared

STREAMS = 200
SHORTEST_MS, LONGEST_MS = 5, 50


@dataclass(frozen=True)
class Work:
    """One message's processing. start, end: s of the machine's clock since it was started.

    place: the process; consumer and batch: of the claim.
    """

    stream: int
    number: int
    start: float
    end: float
    place: str
    consumer: str
    batch: int


def contents(seed: int) -> Iterator[tuple[int, str]]:
    """Stream and content of messages without end, numbered within each stream."""
    chance = random.Random(seed)
    numbers: Counter[int] = Counter()
    while True:
        stream = chance.randrange(STREAMS)
        numbers[stream] += 1
        ms = chance.randint(SHORTEST_MS, LONGEST_MS)
        # Sorted as texts they are in order, too: so Redis sorts what is due at the same time.
        number = f"{numbers[stream]:06d}"
        yield stream, json.dumps({"number": number, "stream": stream, "ms": ms})


def read_works(folder: Path) -> list[Work]:
    """What all processes have noted; a line that a killed one left half-written is no work."""
    works = []
    for file in folder.glob("*.jsonl"):
        for line in file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                works.append(Work(**json.loads(line)))
    return works


@dataclass(frozen=True)
class Verdict:
    """Counts; all but sent, processed and repeated are to be 0.

    repeated: messages processed again after a kill. overlaps: pairs of messages of one stream that
    were in work at the same time. mixed: streams that went back to a batch after another one.
    disordered: messages whose first processing began after that of a later one of their stream.
    """

    sent: int
    processed: int
    repeated: int
    lost: int
    unexpected: int
    overlaps: int
    mixed: int
    disordered: int

    @property
    def holds(self) -> bool:
        return not (self.lost or self.unexpected or self.overlaps or self.mixed or self.disordered)


def verdict(sent: Iterable[tuple[int, str]], works: Sequence[Work]) -> Verdict:
    """What the notes say of what was sent."""
    wanted = {(stream, int(json.loads(content)["number"])) for stream, content in sent}
    done = Counter((work.stream, work.number) for work in works)
    found = compared(wanted, done)
    streams: dict[int, list[Work]] = defaultdict(list)
    for work in sorted(works, key=lambda work: work.start):
        streams[work.stream].append(work)
    return Verdict(
        sent=len(wanted),
        processed=len(done),
        repeated=found.surplus,
        lost=len(found.lost),
        unexpected=len(found.unexpected),
        overlaps=sum(_overlaps(stream) for stream in streams.values()),
        mixed=sum(_is_mixed(stream) for stream in streams.values()),
        disordered=sum(_disordered(stream) for stream in streams.values()),
    )


def _overlaps(stream: Sequence[Work]) -> int:
    found, latest = 0, stream[0]
    for work in stream[1:]:
        found += work.start < latest.end
        latest = max(latest, work, key=lambda work: work.end)
    return found


def _is_mixed(stream: Sequence[Work]) -> bool:
    batches = [(work.consumer, work.batch) for work in stream]
    begun = [batches[0]] + [after for before, after in pairwise(batches) if after != before]
    return len(begun) != len(set(begun))


def _disordered(stream: Sequence[Work]) -> int:
    found, highest, seen = 0, 0, set()
    for work in stream:
        found += work.number < highest and work.number not in seen
        highest = max(highest, work.number)
        seen.add(work.number)
    return found
