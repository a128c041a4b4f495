"""Many scores and contents as the bytes that Redis' protocol makes of them.

Who has messages in columns can write these bytes many times faster than one argument at a time; a
connection then sends them as they are.
"""

from collections.abc import Iterator, Sequence
from typing import Any, overload

VALUES_A_ROW = 2


class PackedPairs(Sequence[Any]):
    """score, content, score, content, ...: the last arguments of a call, packed already.

    text: ``$<length>\\r\\n<value>\\r\\n`` of each value, one after the other. starts: where each
    row of two values begins in it, and where the last one ends; a list or an array. Slices begin
    and end between rows.
    """

    def __init__(self, text: memoryview, starts: Any) -> None:
        self._text = text
        self._starts = starts

    def __len__(self) -> int:
        return VALUES_A_ROW * (len(self._starts) - 1)

    @property
    def text(self) -> memoryview:
        """The bytes."""
        return self._text[self._starts[0] : self._starts[-1]]

    @overload
    def __getitem__(self, at: int) -> Any: ...

    @overload
    def __getitem__(self, at: slice) -> "PackedPairs": ...

    def __getitem__(self, at: int | slice) -> Any:
        if not isinstance(at, slice):
            return list(self)[at]
        start, stop, _ = at.indices(len(self))
        rows = slice(start // VALUES_A_ROW, stop // VALUES_A_ROW + 1)
        return PackedPairs(self._text, self._starts[rows])

    def __iter__(self) -> Iterator[bytes]:
        text, at = bytes(self.text), 0
        while at < len(text):
            value = text.index(b"\r\n", at) + 2
            at = value + int(text[at + 1 : value - 2]) + 2
            yield text[value : at - 2]


def packed_call(words: Sequence[Any], pairs: PackedPairs) -> list[bytes | memoryview]:
    """A command of these words and pairs, ready to be sent."""
    values = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    head = b"".join(b"$%d\r\n%b\r\n" % (len(value), value) for value in values)
    return [b"*%d\r\n%b" % (len(values) + len(pairs), head), pairs.text]
