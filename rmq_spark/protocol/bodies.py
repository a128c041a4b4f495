"""Bodies: what a message carries beside the content or key by which it merges, as one text."""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, count, pairwise, takewhile
from typing import overload

# The layout, which lua/include/bodies.lua reads in part: a character, "0" plus these; for EXPIRES
# and TO_LIVE a time in ms, in 16 digits; the headers; the payload.
_PAYLOAD, _HEADERS, _EXPIRES, _TO_LIVE = 1, 2, 4, 8
_TIME_DIGITS = 16
# Of headers: their number; of each the length of its name, the name, the length of its value, and
# the value. A value that is null has no length, but this number.
_LENGTH = struct.Struct(">I")
_NULL = 0xFFFFFFFF
Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Body:
    """What a message carries beside the content or key by which it merges.

    payload: of a message with a key; None if it has none. headers: names and values, in order.
    expires_at_ms: when it expires, by Redis' clock. time_to_live_ms: the same, as a time after it
    is due. At most one of the two is set.
    """

    payload: bytes | None = None
    headers: Headers = ()
    expires_at_ms: int | None = None
    time_to_live_ms: int | None = None

    def __bool__(self) -> bool:
        """Return whether there is anything in it."""
        return self != Body()

    def pack(self) -> bytes:
        """Pack the body into the text that Redis keeps."""
        kind, time = b"0"[0], self.expires_at_ms
        if self.payload is not None:
            kind += _PAYLOAD
        if self.headers:
            kind += _HEADERS
        if self.expires_at_ms is not None:
            kind += _EXPIRES
        elif self.time_to_live_ms is not None:
            kind, time = kind + _TO_LIVE, self.time_to_live_ms
        parts = [bytes([kind]), b"" if time is None else b"%016d" % time]
        if self.headers:
            parts += _packed_headers(self.headers)
        return b"".join([*parts, self.payload or b""])

    @staticmethod
    def parse(text: bytes) -> "Body":
        """Parse a text that pack returned; an empty one stands for no body."""
        if not text:
            return Body()
        kind, at, time = text[0] - b"0"[0], 1, None
        if kind >= _EXPIRES:
            at += _TIME_DIGITS
            time = int(text[1:at])
        headers: Headers = ()
        if kind & _HEADERS:
            headers, at = _headers_at(text, at)
        return Body(
            payload=text[at:] if kind & _PAYLOAD else None,
            headers=headers,
            expires_at_ms=time if kind & _EXPIRES else None,
            time_to_live_ms=time if kind & _TO_LIVE else None,
        )


def payloads_of(bodies: Sequence[bytes]) -> list[bytes | None]:
    """Return the payload of each packed body."""
    only_payload = Body(b"").pack()
    return [body[1:] if body[:1] == only_payload else Body.parse(body).payload for body in bodies]


def bytes_before_payload(first: int) -> int | None:
    """Return the length before a payload, by the first byte; None if it varies or there is none."""
    kind = first - b"0"[0]
    if not kind & _PAYLOAD or kind & _HEADERS:
        return None
    return 1 + (_TIME_DIGITS if kind >= _EXPIRES else 0)


def _packed_headers(headers: Headers) -> list[bytes]:
    parts = [_LENGTH.pack(len(headers))]
    for name, value in headers:
        text = name.encode()
        parts += [_LENGTH.pack(len(text)), text]
        parts += [_LENGTH.pack(_NULL)] if value is None else [_LENGTH.pack(len(value)), value]
    return parts


def _headers_at(text: bytes, at: int) -> tuple[Headers, int]:
    """Return the headers that begin at an index, and the index of what follows them."""
    headers: list[tuple[str, bytes | None]] = []
    how_many, at = _length_at(text, at)
    for _ in range(how_many):
        size, at = _length_at(text, at)
        name, at = text[at : at + size].decode(), at + size
        size, at = _length_at(text, at)
        if size == _NULL:
            headers.append((name, None))
        else:
            headers.append((name, text[at : at + size]))
            at += size
    return tuple(headers), at


def _length_at(text: bytes, at: int) -> tuple[int, int]:
    return _LENGTH.unpack_from(text, at)[0], at + _LENGTH.size


class PackedBodies(Sequence[bytes]):
    """The packed bodies of the messages of a claim, or of some of them, in delivery order.

    text: bodies, one behind the other. ends: where each begins in the text, and where the last one
    ends.
    """

    __slots__ = ("ends", "text")

    def __init__(self, text: bytes, ends: Sequence[int]) -> None:
        self.text = text
        self.ends = ends

    @staticmethod
    def of_claim(fields: Mapping[bytes, bytes]) -> "PackedBodies":
        """Parse the hash of a claim's bodies, whose layout is in lua/include/claim_bodies.lua."""
        names = takewhile(fields.__contains__, (b"%d" % number for number in count()))
        lengths: list[int] = []
        texts: list[memoryview] = []
        for name in names:
            part = memoryview(fields[name])
            (how_many,) = _LENGTH.unpack_from(part)
            lengths += struct.unpack_from(f">{how_many}I", part, _LENGTH.size)
            texts.append(part[_LENGTH.size * (how_many + 1) :])
        return PackedBodies(b"".join(texts), list(accumulate(lengths, initial=0)))

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __iter__(self) -> Iterator[bytes]:
        return (self.text[start:end] for start, end in pairwise(self.ends))

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> "PackedBodies": ...
    def __getitem__(self, at: int | slice) -> "bytes | PackedBodies":
        if isinstance(at, int):
            at = range(len(self))[at]
            return self.text[self.ends[at] : self.ends[at + 1]]
        start, stop, _ = at.indices(len(self))
        return PackedBodies(self.text, self.ends[start : max(start, stop) + 1])

    @property
    def size(self) -> int:
        """The size of all these bodies, in bytes."""
        return self.ends[-1] - self.ends[0]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PackedBodies) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(tuple(self))


NO_BODIES = PackedBodies(b"", [0])
