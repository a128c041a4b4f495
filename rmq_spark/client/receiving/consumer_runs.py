"""The runs of a consumer, and the last batch that it has committed, in a key of its own."""

from rmq_spark.protocol import runs
from rmq_spark.topics.keys import consumer_key
from rmq_spark.transport.server import Server


class ConsumerRuns:
    """The hash ``consumer:<id>``, which all topics of the consumer share."""

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
        """Begin a run. Return its number.

        topics: the topics that the consumer reads, as text. known_run: the highest run in any of
        its headers. earlier: the topics that it read when it was last seen, if they may differ.
        replays: the batch that the run replays, if any. Raises CheckpointRefused if the key belongs
        to a consumer of other topics.
        """
        return self._server.ask(runs.open_run(self._key, topics, known_run, earlier, replays))

    def replayed_by(self, seq: int) -> int | None:
        """Return the run that last replayed a batch; None if Redis knows no such run."""
        return self._server.ask(runs.replayed_by(self._key, seq))

    def topics(self) -> str | None:
        """Return the topics that the consumer's last run read; None before its first run."""
        return self._server.ask(runs.topics_of(self._key))

    def forget(self) -> None:
        """Delete the hash, for a consumer that never comes back."""
        self._server.command("UNLINK", self._key)

    def note_committed(self, seq: int) -> None:
        """Note that the consumer has committed everything up to batch ``seq``."""
        self._server.ask(runs.note_committed(self._key, seq))

    def committed_up_to(self) -> int:
        """Return the batch up to which everything is noted as committed; 0 at first."""
        return self._server.ask(runs.committed_up_to(self._key))
