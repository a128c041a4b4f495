"""What is kept of a consumer beside its headers in the slots: its runs, and what it has settled."""

from rmq_spark.topics.definition import consumer_key
from rmq_spark.transport.server import Server


class ConsumerBook:
    """The hash ``consumer:<id>``; one for all topics that the consumer reads."""

    def __init__(self, server: Server, consumer: str, key_prefix: str = "") -> None:
        self._server = server
        self._key = consumer_key(consumer, key_prefix)

    def open(
        self,
        topics: str,
        known_run: int,
        earlier: str | None = None,
        replays: int | None = None,
    ) -> int:
        """Begins a run and returns its number.

        topics: what it reads, as text. known_run: the highest run in any of its headers. earlier:
        what it read when it was last seen, if that may differ. replays: the batch that the run
        replays, if any. Raises CheckpointRefused when it reads something else.
        """
        before = topics if earlier is None else earlier
        arguments = [topics, known_run, before, "" if replays is None else replays]
        return int(self._server.call("open", [self._key], arguments))

    def replayed_by(self, seq: int) -> int | None:
        """The run that has replayed a batch last; None if none is known. A plain read."""
        noted = self._server.command("HGET", self._key, "replayed")
        batch, run = map(int, noted.split()) if noted else (None, None)
        return run if batch == seq else None

    def topics(self) -> str | None:
        """What it read when it was opened last; None at first. A plain read."""
        text = self._server.command("HGET", self._key, "topic")
        return None if text is None else text.decode()

    def settle(self, seq: int) -> None:
        """Notes that everything up to seq is committed."""
        self._server.call("settle", [self._key], [seq])

    def settled(self) -> int:
        """The batch up to which it is known to be settled; 0 at first. A plain read."""
        return int(self._server.command("HGET", self._key, "settled") or 0)
