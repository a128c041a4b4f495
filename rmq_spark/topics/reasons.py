"""The reasons for which messages are rolled back, as dead messages keep them."""

import os
import re
import traceback

from rmq_spark.errors import InvalidOption

# The most characters of a reason. Redis keeps one for each dead message.
LONGEST_REASON = 500
# The reasons that scripts give, and the class of an exception in front of its text: as class_of in
# lua/include/dead.lua counts them.
_OF_SCRIPTS = ("given back", "lease ran out", "expired")
_CLASS = re.compile(r"([A-Za-z_][A-Za-z0-9_.]*)(?::|$)")
_LONGEST_CLASS = 64


def reason_of(error: BaseException) -> str:
    """Describe an error by its class, text and place, in one line of at most 500 characters."""
    try:
        text = str(error)[:LONGEST_REASON]
    except Exception:
        text = "(its text cannot be read)"
    trace = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(trace[-1].filename)}:{trace[-1].lineno})" if trace else ""
    return one_line(f"{type(error).__name__}: ", text, place)


def one_line(before: str, text: str, behind: str = "") -> str:
    """Join texts to a reason of one line. If it is too long, ``text`` loses its end."""
    words = " ".join(text.split())
    # Half a surrogate pair is not valid UTF-8: neither Redis nor Arrow would take it.
    clean = words.encode("utf-8", "backslashreplace").decode()
    room = max(0, LONGEST_REASON - len(before) - len(behind))
    return f"{before}{clean[:room]}{behind}"[:LONGEST_REASON]


def parse_reason(given: str | BaseException | None) -> str:
    """Return the reason that a program gives: a text, an exception, or None for no reason.

    Raises InvalidOption for anything else.
    """
    if given is None:
        return ""
    if isinstance(given, BaseException):
        return reason_of(given)
    if not isinstance(given, str):
        raise InvalidOption(f"reason={given!r} is not accepted. Accepted: a text or an exception.")
    return one_line("", given)


def class_of(reason: str) -> str:
    """Return what a reason is counted under, as the counters of the dead queue do."""
    if not reason:
        return "none"
    found = _CLASS.match(reason)
    if reason in _OF_SCRIPTS or found is None:
        return reason if reason in _OF_SCRIPTS else "other"
    return found[1][:_LONGEST_CLASS]
