"""Names for messages in addresses of pages, which reveal nothing of their contents."""

import hashlib
import hmac
import secrets
import threading
from collections import OrderedDict

from rmq_spark.client.queue import Queue
from rmq_spark.protocol.pages import QueueKind
from rmq_spark.views.browsing import Position

# How many bytes of contents and keys are remembered at most, and how many messages.
BYTES_REMEMBERED = 64 * 2**20
MESSAGES_REMEMBERED = 50_000


class References:
    """The messages that pages have listed, by a name for each.

    A content may be long, and may be a secret: it must not stand in an address. So a message is
    named by a digest with a key of this process, and found by that name as long as it is
    remembered. The messages listed first are forgotten first.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._known: OrderedDict[str, Position] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def name(self, queue: Queue, kind: QueueKind, position: Position) -> str:
        """Name a message of a queue."""
        place = (*_place(queue, kind), position.slot, f"{position.score:.17g}", position.claim)
        text = "\n".join(map(str, place)).encode() + b"\n" + position.name
        reference = hmac.new(self._key, text, hashlib.sha256).hexdigest()[:32]
        with self._lock:
            if reference not in self._known:
                self._known[reference] = position
                self._bytes += len(position.name)
            self._known.move_to_end(reference)
            while self._bytes > BYTES_REMEMBERED or len(self._known) > MESSAGES_REMEMBERED:
                _, oldest = self._known.popitem(last=False)
                self._bytes -= len(oldest.name)
        return reference

    def find(self, reference: str) -> Position | None:
        """Return where a message was when it was listed; None for a name that is not known."""
        with self._lock:
            return self._known.get(reference)


def _place(queue: Queue, kind: QueueKind) -> tuple[str, str, str]:
    return queue.keys.topic, queue.keys.group, kind.value
