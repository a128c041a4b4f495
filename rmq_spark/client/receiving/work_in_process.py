"""Which readers of this process have messages in progress, so that a suspect message is alone."""

import os
import threading
import time
import weakref
from collections.abc import Callable

# How long a wish to be alone lasts if it is not repeated.
_WISH_LASTS_S = 2.0
# How long others hold back for such a wish. In vain, it rests as long, and then lasts twice that.
_PATIENCE_S = 10.0


class WorkInProcess:
    """The readers of this process that have messages in progress.

    A message that may have ended its last holder is worked on alone. If the process ends meanwhile,
    or gets to renew no lease, then nothing else in it can be the reason. Readers are any objects;
    one that is forgotten has nothing in progress. Any thread can call the methods.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._lock = threading.RLock()  # a signal handler may close a reader amid one of its calls
        self._busy: weakref.WeakSet[object] = weakref.WeakSet()
        self._alone: Callable[[], object] = _nobody
        self._wishing: Callable[[], object] = _nobody
        self._wished_s = self._since_s = self._rests_until_s = 0.0
        self._patience_s = _PATIENCE_S

    def begin(self, reader: object) -> bool:
        """Note that a reader takes messages. Return False if it must not, for another one."""
        with self._lock:
            if self._alone() not in (None, reader) or self._other_wishes(reader):
                return False
            self._busy.add(reader)
            return True

    def begin_alone(self, reader: object, is_idle: bool = True) -> bool:
        """Begin to be alone, if the reader and all others are idle.

        Else others begin nothing for a while, if the reader asks again soon.
        """
        with self._lock:
            if self._other_wishes(reader):
                return False
            if is_idle and not any(busy is not reader for busy in self._busy):
                self._busy.add(reader)
                self._alone, self._wishing = weakref.ref(reader), _nobody
                self._patience_s = _PATIENCE_S
                return True
            self._wish(reader)
            return False

    def end(self, reader: object) -> None:
        with self._lock:
            self._busy.discard(reader)
            if self._alone() is reader:
                self._alone = _nobody

    def is_wished_by(self, reader: object) -> bool:
        with self._lock:
            return self._who_wishes() is reader

    def _other_wishes(self, reader: object) -> bool:
        return self._who_wishes() not in (None, reader)

    def _who_wishes(self) -> object:
        is_fresh = time.monotonic() < self._wished_s + _WISH_LASTS_S
        return self._wishing() if is_fresh else None

    def _wish(self, reader: object) -> None:
        now = time.monotonic()
        if now < self._rests_until_s:
            return
        if self._who_wishes() is not reader:
            self._wishing, self._since_s = weakref.ref(reader), now
        self._wished_s = now
        if now > self._since_s + self._patience_s:  # somebody else takes long, or hangs
            self._wishing, self._rests_until_s = _nobody, now + self._patience_s
            self._patience_s *= 2


def _nobody() -> None:
    return None


IN_PROCESS = WorkInProcess()
os.register_at_fork(after_in_child=IN_PROCESS.clear)
