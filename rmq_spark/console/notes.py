"""What the console shows a user after a change, on the page to which it leads."""

import secrets
import threading
from collections import OrderedDict
from typing import NamedTuple

NOTES_KEPT = 200


class Note(NamedTuple):
    """A sentence for a user. failed: whether it says why a change was refused."""

    text: str
    failed: bool = False


class Notes:
    """The latest notes. An address names one, so that nobody can put words on a page."""

    def __init__(self) -> None:
        self._notes: OrderedDict[str, Note] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, note: Note) -> str:
        """Keep a note. Returns its name."""
        name = secrets.token_urlsafe(9)
        with self._lock:
            self._notes[name] = note
            while len(self._notes) > NOTES_KEPT:
                self._notes.popitem(last=False)
        return name

    def find(self, name: str) -> Note | None:
        """Return the note with a name; None if there is none."""
        with self._lock:
            return self._notes.get(name)
