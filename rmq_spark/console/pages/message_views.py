"""The pages about messages: a queue part by part, one message, and the dead by their reasons."""

import json
from collections.abc import Mapping
from typing import Any

from rmq_spark.client.queue import Queue
from rmq_spark.console.console import Console
from rmq_spark.errors import InvalidOption
from rmq_spark.protocol import reading
from rmq_spark.protocol.pages import Entry, QueueKind
from rmq_spark.topics.definition import group_text
from rmq_spark.topics.reasons import class_of
from rmq_spark.views.browsing import (
    ENTRIES_A_SEARCH,
    Found,
    Position,
    Wanted,
    browse,
    deaths_from,
    find_named,
    read_entry,
)
from rmq_spark.views.json_fields import definition_json, entry_json
from rmq_spark.views.shown_texts import content_text, time_json

Query = Mapping[str, str]

MESSAGES_A_PAGE = 50
MOST_A_PAGE = 500
# A page shows at most so many bytes of a content, as text or as a dump.
TEXT_SHOWN, DUMP_SHOWN = 64 * 1024, 2 * 1024
BYTES_A_LINE = 16
# What an entry carries that --hide-contents hides.
_CARRIED = ("content", "contentBase64", "key", "keyBase64", "headers", "reason")


class MessageGone(InvalidOption):
    """An error for a message that the queue does not hold any more, or that is not known."""


def messages(console: Console, query: Query, name: str) -> dict[str, Any]:
    """Return a part of a queue of a topic.

    query: group; queue; slot; limit; after, the reference of the message to continue after; find,
    a text, and by: "prefix", or "name" for a whole content or key; reason, a class. Raises
    UnknownTopic, InvalidOption.
    """
    queue, kind = console.queue(name, query.get("group")), _kind_of(query)
    slots = _slots_of(queue, query.get("slot", ""))
    text, by, reason = query.get("find", ""), query.get("by", "prefix"), query.get("reason", "")
    if console.settings.hide_contents and text:
        raise InvalidOption(
            "A search is not accepted with --hide-contents: it would show what is in messages."
        )
    if text and by == "name" and kind is not QueueKind.PREPARE:
        entries = find_named(queue, kind, text.encode())
        found = Found(entries, len(entries), None)
    else:
        wanted = _wanted(text.encode(), by, reason)
        after = _position_of(console, query.get("after", ""))
        most = _limit_of(query)
        found = browse(queue, kind, slots=slots, after=after, most=most, wanted=wanted)
    sizes = queue.ask(reading.sizes, [kind], slots or queue.slots)
    return {
        **definition_json(queue.definition),
        "group": group_text(queue.keys.group),
        "queue": kind.value,
        "slot": query.get("slot", ""),
        "find": text,
        "by": by,
        "reason": reason,
        "after": query.get("after", ""),
        "held": sum(sizes),
        "looked": found.looked,
        "lookedAtMost": ENTRIES_A_SEARCH if text or reason else None,
        "messages": [_listed_json(console, queue, kind, *one) for one in found.entries],
        "next": None if found.after is None else console.references.name(queue, kind, found.after),
    }


def _kind_of(query: Query) -> QueueKind:
    return QueueKind(query.get("queue") or QueueKind.STORE.value)


def _slots_of(queue: Queue, text: str) -> list[int] | None:
    if not text.strip():
        return None
    if not text.strip().isdecimal() or len(text) > 9:
        raise InvalidOption(
            f"slot={text[:50]!r} is not accepted. Accepted: 0 to {queue.slots[-1]}."
        )
    return [queue.definition.check_slot(int(text))]


def _limit_of(query: Query) -> int:
    text = query.get("limit") or str(MESSAGES_A_PAGE)
    if not text.isdecimal() or not 1 <= int(text[:9]) <= MOST_A_PAGE:
        raise InvalidOption(f"limit={text[:50]!r} is not accepted. Accepted: 1 to {MOST_A_PAGE}.")
    return int(text)


def _position_of(console: Console, reference: str) -> Position | None:
    if not reference:
        return None
    found = console.references.find(reference)
    if found is None:
        raise MessageGone(
            "The place to continue at is not known any more: the console was restarted, or has "
            "listed many messages since. Begin at the first page again."
        )
    return found


def _wanted(text: bytes, by: str, reason: str) -> Wanted | None:
    """Return what chooses entries; None for all."""
    if not text and not reason:
        return None

    def is_wanted(name: bytes, death: str | None) -> bool:
        fits = not text or (name == text if by == "name" else name.startswith(text))
        return fits and (not reason or class_of(death or "") == reason)

    return is_wanted


def _listed_json(
    console: Console, queue: Queue, kind: QueueKind, entry: Entry, position: Position
) -> dict[str, Any]:
    """Return an entry of a list: its content is cut, as a text that is safe to show."""
    fields = entry_json(queue.definition.name, entry)
    own = {field: fields.pop(field) for field in _CARRIED if field in fields}
    hidden = console.settings.hide_contents
    return {
        "ref": console.references.name(queue, kind, position),
        **fields,
        "preview": None if hidden else content_text(entry.content),
        "keyPreview": None if hidden or entry.key is None else content_text(entry.key),
        "bytes": len(entry.content or b""),
        "headers": len(entry.headers),
        "reasonClass": class_of(entry.reason) if entry.reason is not None else None,
        "reason": None if hidden else own.get("reason"),
        "hidden": hidden,
    }


def message(console: Console, query: Query, name: str, reference: str) -> dict[str, Any]:
    """Return one message with all that it carries. query: group, queue.

    reference: as a list has named it. Raises UnknownTopic, MessageGone, InvalidOption.
    """
    queue, kind = console.queue(name, query.get("group")), _kind_of(query)
    position = console.references.find(reference)
    found = None if position is None else read_entry(queue, kind, position)
    if found is None:
        raise MessageGone(
            "The message is not in this queue any more: it was delivered, moved or deleted, or the "
            "console was restarted. Look for it in the list again."
        )
    entry, hidden = found[0], console.settings.hide_contents
    fields = entry_json(queue.definition.name, entry)
    if hidden:
        fields = {field: value for field, value in fields.items() if field not in _CARRIED}
    return {
        **definition_json(queue.definition),
        "group": group_text(queue.keys.group),
        "ref": reference,
        "message": fields,
        "bytes": len(entry.content or b""),
        "keyBytes": None if entry.key is None else len(entry.key),
        "hidden": hidden,
        "now": time_json(queue.now_ms()),
        "reasonClass": class_of(entry.reason) if entry.reason is not None else None,
        "shown": None if hidden else content_shown(entry.content),
        "keyShown": None if hidden or entry.key is None else content_text(entry.key),
        "headersShown": []
        if hidden
        else [{"name": key, "value": content_text(value)} for key, value in entry.headers],
    }


def content_shown(content: bytes | None) -> dict[str, Any]:
    """Return a content as a page shows it: a text, or a dump of bytes that are not UTF-8.

    Control characters are escaped, except line ends and tabs. cut: whether its end is left out.
    """
    if content is None:
        return {"form": "none", "text": "", "cut": False}
    try:
        text = content[:TEXT_SHOWN].decode()
    except UnicodeDecodeError as error:
        if error.start < len(content[:TEXT_SHOWN]) - 3 or len(content) <= TEXT_SHOWN:
            return {
                "form": "bytes",
                "text": _dump(content[:DUMP_SHOWN]),
                "cut": len(content) > DUMP_SHOWN,
            }
        text = content[: error.start].decode()
    cut = len(content) > TEXT_SHOWN
    indented = None if cut else _indented(text)
    return {
        "form": "text" if indented is None else "JSON",
        "text": _escaped(text if indented is None else indented),
        "cut": cut,
    }


def _escaped(text: str) -> str:
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text
    )


def _indented(text: str) -> str | None:
    """Return JSON indented; None for a text that is not a JSON object or array."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def _dump(content: bytes) -> str:
    lines = []
    for at in range(0, len(content), BYTES_A_LINE):
        part = content[at : at + BYTES_A_LINE]
        plain = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:06x}  {part.hex(' '):<{3 * BYTES_A_LINE}} {plain}")
    return "\n".join(lines)


def dead(console: Console, query: Query, name: str) -> dict[str, Any]:
    """Return the dead messages of a group by the class of their reasons. query: group, after.

    Reads a bounded number of them, and says how many. Raises UnknownTopic, InvalidOption.
    """
    queue = console.queue(name, query.get("group"))
    after = _position_of(console, query.get("after", ""))
    found = deaths_from(queue, after)
    figures = queue.figures()
    reasons: dict[str, dict[str, Any]] = {}
    for reason, died_ms in found.reasons:
        _count_death(reasons, reason, died_ms, console.settings.hide_contents)
    listed = sorted(reasons.values(), key=lambda one: (-one["messages"], one["reason"]))
    return {
        **definition_json(queue.definition),
        "group": group_text(queue.keys.group),
        "dead": figures.dead.count,
        "firstDied": time_json(figures.dead.oldest_ms),
        "looked": len(found.reasons),
        "after": query.get("after", ""),
        "next": None
        if found.after is None
        else console.references.name(queue, QueueKind.DEAD, found.after),
        "reasons": [
            {**one, "first": time_json(one["first"]), "last": time_json(one["last"])}
            for one in listed
        ],
        "diedEver": figures.deaths,
        "hidden": console.settings.hide_contents,
    }


def _count_death(
    reasons: dict[str, dict[str, Any]], reason: str, died_ms: int, hidden: bool
) -> None:
    new = {"messages": 0, "first": died_ms, "last": died_ms, "example": None}
    of = reasons.setdefault(class_of(reason), {"reason": class_of(reason), **new})
    of["messages"] += 1
    of["first"] = min(of["first"], died_ms)
    if died_ms >= of["last"]:
        of["last"] = died_ms
        of["example"] = None if hidden else reason
