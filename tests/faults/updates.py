"""Updates of keys in random order, laid down at a random pace as files for two queries to send.

A key belongs to one of the queries, and a file is one batch of one task. So the updates of a key
reach Redis in the order of their versions, and the highest version is the newest. Two senders of
one key would have no such order: whatever reaches Redis last would be the newest.
"""

import random
import threading
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa

from ..rounds.ledger import Laid

SENDERS = ("sender-1", "sender-2")
SCHEMA = pa.schema({"key": pa.string(), "content": pa.string()})
# Into which what is given is divided; each part is a file for each sender.
PARTS = 10
# Between two calls of give that belong together there is less.
LEAST_SPREAD_S = 4.0
# The last version ends in it, so that it fails when it is first delivered (ledger.FAILING).
LAST_DIGITS = 7


class Updates:
    """Every key is updated equally often; its payload is its version."""

    def __init__(self, folder: Path, keys: int, updates: int, seed: str) -> None:
        self.sources = {sender: folder / sender for sender in SENDERS}
        for source in self.sources.values():
            source.mkdir()
        self.keys = [f"key-{number}" for number in range(keys)]
        last = -(-(updates - LAST_DIGITS) // 100) * 100 + LAST_DIGITS
        self.versions = range(last - updates + 1, last + 1)
        self._dice = random.Random(seed)
        self._order = [number for number in range(keys) for _ in self.versions]
        self._dice.shuffle(self._order)
        self._sent: Counter[int] = Counter()
        self._since, self._spread_s = time.monotonic(), LEAST_SPREAD_S
        self._laid_before = 0
        self._part = len(SENDERS)  # updates
        self.given = self.laid = 0  # updates that were asked for, and that are in files
        self._files = 0
        self._laid = Laid()
        self._more = threading.Condition()
        threading.Thread(target=self._lay, daemon=True).start()

    def give(self, count: int) -> None:
        """Has so many more laid down while the caller goes on, for as long as it last took.

        A fixed pace would end long before a driver is back on a machine that has much else to do.
        """
        with self._more:
            now = time.monotonic()
            if now - self._since > LEAST_SPREAD_S:
                self._spread_s = now - self._since
                self._laid_before = self.laid
            self._since = now
            self._part = max(self._part, count // PARTS)  # the rest in the end is small
            self.given += count
            self._more.notify()

    def all_laid(self) -> bool:
        """Whether all that was asked for is in files."""
        return self.laid == self.given

    def _lay(self) -> None:
        while self.laid < len(self._order):
            with self._more:
                self._more.wait_for(lambda: self.laid < self.given)
                until = min(self.given, self.laid + self._part)
                mean_s = self._spread_s * self._part / (self.given - self._laid_before)
            self._lay_files(self._order[self.laid : until])
            self.laid = until
            time.sleep(self._dice.uniform(0, 2 * mean_s))

    def _lay_files(self, numbers: list[int]) -> None:
        rows: dict[str, list[dict[str, str]]] = {sender: [] for sender in SENDERS}
        for number in numbers:
            version = self.versions[self._sent[number]]
            self._sent[number] += 1
            row = {"key": self.keys[number], "content": str(version)}
            rows[SENDERS[number % len(SENDERS)]].append(row)
        for sender, source in self.sources.items():
            table = pa.Table.from_pylist(rows[sender], SCHEMA)
            place = source / f"{self._files:05d}.parquet"
            self._laid.lay(table, source / f".{self._files}", place)
        self._files += 1
