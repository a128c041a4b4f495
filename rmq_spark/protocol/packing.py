"""Packing for the scripts: MessagePack of scores and contents, and parts of a bounded size."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, TypeVar

_T = TypeVar("_T")
VALUES_A_ROW = 2
# A script takes 5 to 10 ns for each byte, so that the calls of others wait some 10 ms.
BYTES_A_CALL = 1024 * 1024
# Headers of MessagePack strings. Up to _FIXED bytes, the first byte contains the length. For longer
# strings: the most bytes, the first byte, and the number of bytes of the length that follows it.
_FIXED, _FIXED_MARK = 31, 0xA0
_FIXED_HEADS = [bytes([_FIXED_MARK | length]) for length in range(_FIXED + 1)]
_SIZED = ((0xFF, b"\xd9", 1), (0xFFFF, b"\xda", 2), (0xFFFFFFFF, b"\xdb", 4))


def chunks(values: Sequence[_T], size: int) -> list[Sequence[_T]]:
    """Split values into parts of at most ``size``, in order."""
    return [values[at : at + size] for at in range(0, len(values), size)]


def chunks_in_bytes(
    values: Sequence[_T], size: int, most_bytes: int, bytes_of: Callable[[_T], int]
) -> list[Sequence[_T]]:
    """Split values into parts of at most ``size`` and of ``most_bytes``, or of one value."""
    parts, first, size_of_part = [], 0, 0
    for at, value in enumerate(values):
        size_of_part += bytes_of(value)
        if at > first and (at - first == size or size_of_part > most_bytes):
            parts.append(values[first:at])
            first, size_of_part = at, bytes_of(value)
    return parts + ([values[first:]] if first < len(values) else [])


def in_parts(calls: Sequence[_T], run: Callable[[Sequence[_T]], list[Any]], size: int) -> list[Any]:
    """Run calls in parts of at most ``size``. Return the replies to all of them, in order."""
    return [reply for part in chunks(calls, size) for reply in run(part)]


class PackedPairs:
    """Pairs of score and content, packed into one text.

    text: the packed values in a row. starts: the offset in text of each row (a score
    and its content), and the end of the last row; a list or an array. lowest: a lower bound of the
    scores. largest: an upper bound of the bytes of the contents. Slices must begin and end between
    rows.
    """

    def __init__(self, text: memoryview, starts: Any, lowest: int, largest: int) -> None:
        self._text = text
        self._starts = starts
        self.lowest = lowest
        self.largest = largest

    def __len__(self) -> int:
        return VALUES_A_ROW * (len(self._starts) - 1)

    def __getitem__(self, at: slice) -> "PackedPairs":
        start, stop, _ = at.indices(len(self))
        rows = slice(start // VALUES_A_ROW, stop // VALUES_A_ROW + 1)
        return PackedPairs(self._text, self._starts[rows], self.lowest, self.largest)

    def __bytes__(self) -> bytes:
        return bytes(self._text[self._starts[0] : self._starts[-1]])

    def rows_within(self, first: int, size: int) -> int:
        """Count the rows from row ``first`` on that fit into ``size`` bytes."""
        end = bisect_right(self._starts, self._starts[first] + size)
        return end - 1 - first


Pairs = Sequence[Any] | PackedPairs


def packed_alike(score: int, contents: Sequence[bytes]) -> PackedPairs:
    """Pack contents that have one score."""
    text = str(score).encode()
    before = head_of(len(text)) + text
    heads = {length: before + head_of(length) for length in set(map(len, contents))}
    rows = [heads[len(content)] + content for content in contents]
    starts = [0, *accumulate(map(len, rows))]
    return PackedPairs(memoryview(b"".join(rows)), starts, score, max(heads, default=0))


def calls_of(pairs: Pairs, messages: int, bodies: Pairs = ()) -> list[tuple[Pairs, Pairs]]:
    """Split pairs and bodies into parts of at most ``messages`` messages, one per call.

    A part has at most BYTES_A_CALL bytes of pairs, and as many of bodies. A message larger than
    that gets a part of its own, which Redis may refuse. bodies: of the same messages, or empty.
    """
    parts: list[tuple[Pairs, Pairs]] = []
    at, rows = 0, len(pairs) // VALUES_A_ROW
    while at < rows:
        fitting = min(_rows_within(each, at, messages) for each in (pairs, bodies) if len(each))
        end = at + max(1, min(messages, rows - at, fitting))
        of_part = slice(VALUES_A_ROW * at, VALUES_A_ROW * end)
        parts.append((pairs[of_part], bodies[of_part]))
        at = end
    return parts


def _rows_within(pairs: Pairs, first: int, messages: int) -> int:
    if isinstance(pairs, PackedPairs):
        return pairs.rows_within(first, BYTES_A_CALL)
    size = 0
    contents = pairs[VALUES_A_ROW * first + 1 : VALUES_A_ROW * (first + messages) : VALUES_A_ROW]
    for rows, content in enumerate(contents):
        size += len(content)
        if size > BYTES_A_CALL:
            return rows
    return len(contents)


def lowest_of(pairs: Pairs) -> int:
    """Return a lower bound of the scores in pairs."""
    return pairs.lowest if isinstance(pairs, PackedPairs) else min(pairs[::VALUES_A_ROW])


def largest_of(pairs: Pairs) -> int:
    """Return an upper bound of the bytes of the contents in pairs."""
    return pairs.largest if isinstance(pairs, PackedPairs) else max(map(len, pairs[1::2]))


def packed(pairs: Pairs) -> bytes:
    """Pack pairs into the bytes that a script unpacks."""
    if isinstance(pairs, PackedPairs):
        return bytes(pairs)
    parts: list[bytes] = []
    for value in pairs:
        text = value if isinstance(value, bytes) else str(value).encode()
        parts += (head_of(len(text)), text)
    return b"".join(parts)


def head_of(length: int) -> bytes:
    """Return the MessagePack header of a string of ``length`` bytes."""
    if length <= _FIXED:
        return _FIXED_HEADS[length]
    mark, size = next((mark, size) for most, mark, size in _SIZED if length <= most)
    return mark + length.to_bytes(size)
