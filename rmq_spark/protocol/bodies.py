"""Bodies: what a message carries beside the content or key by which it merges, as one text."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

# The layout, which lua/include/bodies.lua reads in part: a character, "0" plus these; for EXPIRES
# and TO_LIVE a time in ms, in 16 digits; the headers; the payload.
_PAYLOAD, _HEADERS, _EXPIRES, _TO_LIVE = 1, 2, 4, 8
_TIME_DIGITS = 16
# Of headers: their number; of each the length of its name, the name, the length of its value, and
# the value. A value that is null has no length, but this number.
_LENGTH = struct.Struct(">I")
_NULL = 0xFFFFFFFF
# A claim keeps its bodies in parts of so many messages (lua/include/claim_bodies.lua).
BODIES_A_PART = 1024

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
    only_payload, nothing = Body(b"").pack()[0], Body().pack()[0]
    return [
        body[1:]
        if body[0] == only_payload
        else None
        if body[0] == nothing
        else Body.parse(body).payload
        for body in bodies
    ]


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


def part_fields(rows: int, first: int = 0) -> list[str]:
    """Name the fields with the bodies of a claim's messages, from one on. rows: how many."""
    last = first + max(1, rows) - 1
    return [f"b{part}" for part in range(first // BODIES_A_PART, last // BODIES_A_PART + 1)]


def texts_of_part(part: bytes) -> list[bytes]:
    """Return the texts of a part: bodies, or contents."""
    lengths, _, texts = part.partition(b"\n")
    ends = accumulate(map(int, lengths.split(b",")), initial=0)
    return [texts[start:end] for start, end in pairwise(ends)]


def texts_of_parts(parts: Sequence[bytes | None]) -> list[bytes]:
    """Return the texts of several parts, up to the first that is missing."""
    texts: list[bytes] = []
    for part in parts:
        if part is None:
            break
        texts += texts_of_part(part)
    return texts


def bodies_by_content(fields: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return all bodies that a claim was made with, by content. fields: those of its hash."""
    parts = range(len(fields) // 2)
    contents = texts_of_parts([fields.get(b"c%d" % part) for part in parts])
    bodies = texts_of_parts([fields.get(b"b%d" % part) for part in parts])
    return dict(zip(contents, bodies, strict=True))
