"""What was sent and what was seen: numbered messages, in files or sent by us, and a comparison."""

import os
import time
from collections import Counter
from collections.abc import Hashable, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from rmq_spark.client.messages import Message
from rmq_spark.client.queue import Queue

T = TypeVar("T", bound=Hashable)
# When a message falls due after its file was laid down, ms: by turns.
DUE_AFTER_MS = (0, 300, 900, 1800)
SLOT_BASES = 97
# The contents that fail when they are delivered for the first time: 2 of 50.
FAILING = "[05]7$"


class Laid:
    """Files that Spark's file source reads in the order in which they were laid down.

    It sorts them by the ms of their last change, so no two may have the same.
    """

    def __init__(self) -> None:
        self._last_ms = 0

    def lay(self, table: pa.Table, hidden: Path, place: Path) -> None:
        """Writes a file, then shows it whole."""
        pq.write_table(table, hidden)
        self._last_ms = max(time.time_ns() // 1_000_000, self._last_ms + 1)
        os.utime(hidden, ns=(self._last_ms * 1_000_000,) * 2)
        os.rename(hidden, place)


class Feed:
    """Lays down files of numbered messages and knows all contents.

    keys: 0, or into how many keys the messages merge. Each file must have fewer messages, so that
    a key has one payload in each, and the payload with the highest number is the last one.
    """

    def __init__(self, folder: Path, keys: int = 0) -> None:
        self.source = folder / "source"
        self.source.mkdir()
        self.given = 0
        self.keys = keys
        self.files = 0
        self._laid = Laid()

    def give(self, count: int) -> None:
        """One more file."""
        numbers = range(self.given, self.given + count)
        now = int(time.time() * 1000)
        of_keys = {"key": [key(n, self.keys) for n in numbers]} if self.keys else {}
        table = pa.table(
            {
                **of_keys,
                "content": [content(n) for n in numbers],
                "slotBasis": [slot_basis(n % self.keys if self.keys else n) for n in numbers],
                "fixedTime": [now + DUE_AFTER_MS[n % len(DUE_AFTER_MS)] for n in numbers],
            }
        )
        place = self.source / f"{self.files:04d}.parquet"
        self._laid.lay(table, self.source / f".{self.files}", place)
        self.given += count
        self.files += 1

    def contents(self) -> set[str]:
        return {content(n) for n in range(self.given)}

    def superseded(self) -> set[str]:
        """The payloads behind which a newer one of their key was sent."""
        return {content(n) for n in range(self.given - self.keys)} if self.keys else set()


class Sends:
    """Numbered messages that this process sends: when ``give`` returns, they are accepted.

    keys: 0, or into how many keys they merge.
    """

    def __init__(self, queue: Queue, keys: int = 0) -> None:
        self.queue = queue
        self.given = 0
        self.keys = keys
        self._forgotten: set[int] = set()

    def give(self, count: int, due_before_ms: int = 0) -> None:
        """Sends that many, all due that long before now."""
        due = int(time.time() * 1000) - due_before_ms
        numbers = range(self.given, self.given + count)
        if self.keys:
            places = [(n, n % self.keys, key(n, self.keys)) for n in numbers]
        else:
            places = [(n, n, None) for n in numbers]
        self.queue.send(
            Message(content(n), slot_basis(basis), fixed_time=due, key=name)
            for n, basis, name in places
        )
        self.given += count

    def forget(self, since: int) -> None:
        """Notes that Redis has forgotten the messages from a number on."""
        self._forgotten.update(range(since, self.given))

    def contents(self, since: int = 0) -> set[str]:
        """All contents, or those from a number on."""
        return {content(n) for n in range(since, self.given)}

    def superseded(self) -> set[str]:
        """The payloads behind which a newer one of their key was sent that Redis remembers."""
        if not self.keys:
            return set()
        return {
            content(older)
            for n in set(range(self.given)) - self._forgotten
            for older in range(n - self.keys, -1, -self.keys)
        }


@dataclass(frozen=True)
class Compared(Generic[T]):
    """What was seen of what was sent. surplus: how often anything was seen once more."""

    lost: Set[T]
    unexpected: Set[T]
    repeated: Set[T]
    surplus: int


def compared(sent: Set[T], seen: Counter[T]) -> Compared[T]:
    """Compare what must be seen once with how often each was seen."""
    return Compared(
        lost=sent - seen.keys(),
        unexpected=seen.keys() - sent,
        repeated={each for each, count in seen.items() if count > 1},
        surplus=seen.total() - len(seen),
    )


def slot_basis(number: int) -> str:
    return f"customer-{number % SLOT_BASES}"


def key(number: int, keys: int) -> str:
    return f"key-{number % keys}"


def number_of(text: str) -> int:
    return int(text.removeprefix("order-"))


def content(number: int) -> str:
    """The number's last two digits decide whether the first delivery fails."""
    return f"order-{number:08d}"
