"""One claim of a listener: the messages of one slot, for which its function is called in turn."""

import threading
import time
from collections.abc import Sequence

from rmq_spark.protocol.claims import Claim, Delivered

# How long a claim is worked on before the rest of it is given back. A more urgent message that
# arrives meanwhile waits so long, and other slots with due messages do, too.
_LONGEST_S = 1.0


class SlotWork:
    """The messages of one claim, and how far a thread has come with them.

    A thread that hangs in a message can be given up: another goes on behind that message.

    failed: a message whose function has failed, and the reason, until it is rolled back. A commit
    before that would lose it.
    """

    def __init__(self, claim: Claim, messages: Sequence[Delivered]) -> None:
        self.slot = claim.slot
        self.seq = claim.seq
        self.claim_id = claim.claim_id
        # Whether the claim has taken anything out of the store, be it expired.
        self.took_any = bool(messages or claim.expired)
        self._messages = messages
        self._claimed_s = time.monotonic()
        self._lock = threading.Lock()
        self._owner: object = None
        self._at = 0
        self._began_s: float | None = None
        self.failed: tuple[Delivered, str] | None = None

    def __len__(self) -> int:
        return len(self._messages)

    def own(self, owner: object) -> None:
        """Let a thread work on the messages from now on."""
        with self._lock:
            self._owner = owner

    def begin(self, owner: object) -> Delivered | None:
        """Return the next message; None behind the last one, or for a thread that was given up."""
        with self._lock:
            if self._owner is not owner or self._at == len(self._messages):
                return None
            self._began_s = time.monotonic()
            return self._messages[self._at]

    def end(self, owner: object, reason: str | None = None) -> bool:
        """Note that a thread is done with its message. Returns False if it was given up.

        reason: why the function has failed; None if it has not.
        """
        with self._lock:
            if self._owner is not owner:
                return False
            message = self._pass()
            if reason is not None:
                self.failed = message, reason
            return True

    def is_owned_by(self, owner: object) -> bool:
        """Return whether a thread still has the messages."""
        with self._lock:
            return self._owner is owner

    def give_up(self, timeout_s: float, reason: str) -> Delivered | None:
        """Take the messages from a thread that is at one of them for longer than a timeout.

        Returns that message, which has failed for a reason, or None. The next thread goes on behind
        it.
        """
        with self._lock:
            began_s = self._began_s
            if began_s is None or time.monotonic() - began_s <= timeout_s:
                return None
            self._owner = None
            message = self._pass()
            self.failed = message, reason
            return message

    def take_away(self) -> Delivered | None:
        """Take the messages from their thread. Returns the one whose function has not returned."""
        with self._lock:
            self._owner = None
            return None if self._began_s is None else self._pass()

    def _pass(self) -> Delivered:
        """Go on behind a message, and return it."""
        self._began_s = None
        self._at += 1
        return self._messages[self._at - 1]

    @property
    def is_through(self) -> bool:
        """Whether the last message has been worked on."""
        return self._at == len(self._messages)

    @property
    def is_over(self) -> bool:
        """Whether the time for the claim is over. At least one message is worked on."""
        return self._at > 0 and time.monotonic() - self._claimed_s > _LONGEST_S

    @property
    def is_quick(self) -> bool:
        """Whether less than half of the time for the claim has passed."""
        return time.monotonic() - self._claimed_s < _LONGEST_S / 2

    def rest(self) -> Sequence[Delivered]:
        """Return the messages for which the function was not called."""
        with self._lock:
            is_in_call = self._began_s is not None
            return self._messages[self._at + is_in_call :]
