"""The reasons for which messages are rolled back, as dead messages keep them.

And ``printable``, which makes a text of others fit for a terminal, a log or a page.
"""

import os
import re
import sysconfig
import traceback
from collections.abc import Callable

from rmq_spark.errors import InvalidOption

# The most characters of a reason. Redis keeps one for each dead message.
LONGEST_REASON = 500
# The reasons that scripts give, and the class of an exception in front of its text: as class_of in
# lua/include/dead.lua counts them.
_OF_SCRIPTS = ("given back", "lease ran out", "expired")
_CLASS = re.compile(r"([A-Za-z_][A-Za-z0-9_.]*)(?::|$)")
_LONGEST_CLASS = 64
# Names that programs give to classes of exceptions, and people hardly to anything else.
_EXCEPTION = re.compile(r"(?:\w+\.)*(?:(?:[A-Z]+[a-z]+){2,}|[A-Z]\w*(?:Error|Exception))")
# The files that are not the caller's own code, by where they are.
_THIS_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
_OF_PYTHON = tuple(os.path.join(sysconfig.get_path(n), "") for n in ("stdlib", "platstdlib"))
_PACKAGES = re.compile(r"[\\/](?:site|dist)-packages[\\/]")


def printable(text: str, kept: str = "") -> str:
    """Escape the characters of a text that could change how other text is shown.

    These are control characters, line ends, and marks such as a right-to-left override. kept: those
    that stay as they are.
    """
    if text.isprintable():
        return text
    # By ascii: at the end of a program, Python no longer finds the codec unicode_escape.
    return "".join(c if c.isprintable() or c in kept else ascii(c)[1:-1] for c in text)


def reason_of(error: BaseException) -> str:
    """Describe an error by its class, text and place, in one line of at most 500 characters.

    The place is the last one in the caller's own code, or else the one that raised the error.
    """
    name = _read(lambda: type(error).__name__, "BaseException")
    text = _read(lambda: str(error)[:LONGEST_REASON], "(its text cannot be read)")
    return one_line(f"{name}: ", text, _place_of(error))


def _place_of(error: BaseException) -> str:
    lines = [
        (frame.f_code.co_filename, number)
        for frame, number in traceback.walk_tb(error.__traceback__)
    ]
    if not lines:
        return ""
    nearest = min(_distance_of(file) for file, _ in lines)
    file, number = [line for line in lines if _distance_of(line[0]) == nearest][-1]
    return f" ({os.path.basename(file)}:{number})"


def _distance_of(file: str) -> int:
    """Return how far code is from the caller's own: 0, of a package 1, of Python or this one 2."""
    if file.startswith((_THIS_PACKAGE, "<frozen ")):
        return 2
    if _PACKAGES.search(file):  # a folder of Python's own library may contain them
        return 1
    return 2 if file.startswith(_OF_PYTHON) else 0


def _read(read: Callable[[], object], otherwise: str) -> str:
    """Read a text of an error, whose class may raise anything."""
    try:
        return str(read())
    except BaseException:
        return otherwise


def one_line(before: str, text: str, behind: str = "") -> str:
    """Join texts to a reason of one line. If it is too long, ``text`` loses its end."""
    # Also half a surrogate pair, which is not valid UTF-8: neither Redis nor Arrow would take it.
    before, clean, behind = map(printable, (before, " ".join(text.split()), behind))
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
        raise InvalidOption.of("reason", given, "a text or an exception")
    return one_line("", given)


def class_of(reason: str) -> str:
    """Return what a reason is counted under, as the counters of the dead queue do."""
    if not reason or reason in _OF_SCRIPTS:
        return reason or "none"
    return exception_class_of(reason) or "other"


def public_class_of(reason: str) -> str:
    """Return class_of, but "other" for what may be a word of somebody's text."""
    found = class_of(reason)
    is_known = found == "none" or found in _OF_SCRIPTS or _EXCEPTION.fullmatch(found)
    return found if is_known else "other"


def exception_class_of(reason: str) -> str | None:
    """Return the class of an exception with which a reason begins; None if it does not."""
    found = _CLASS.match(reason)
    return found[1][:_LONGEST_CLASS] if found else None
