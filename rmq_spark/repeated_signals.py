"""Distinguishes a second signal from a first one that came twice."""

import time

# timeout(1) and supervisors signal a program and then its process group: the program gets two
# signals at the same moment. A person takes longer to press Ctrl-C again.
_SAME_MOMENT_S = 0.3


class RepeatedSignals:
    """Notes when the first signal came."""

    def __init__(self) -> None:
        self._first_s: float | None = None

    def note(self) -> bool:
        """Note a signal. Returns whether it is a second one, which ends a program at once."""
        now = time.monotonic()
        if self._first_s is None:
            self._first_s = now
        return now - self._first_s > _SAME_MOMENT_S
