"""Requests about a consumer's own key: its runs, and how far it has committed.

The key is the hash ``consumer:<id>``, one for all topics that the consumer reads.
"""

from rmq_spark.protocol.calls import Call, Request, text_of


def open_run(
    key: str, topics: str, known_run: int, earlier: str | None = None, replays: int | None = None
) -> Request[int]:
    """Begin a run; answer its number.

    topics: the topics that the consumer reads, as text. known_run: the highest run in any of its
    headers. earlier: the topics that it read when it was last seen, if they may differ. replays:
    the batch that the run replays, if any. Raises CheckpointRefused when the
    consumer reads something else.
    """
    before = topics if earlier is None else earlier
    args = [topics, known_run, before, text_of(replays)]
    return Request([Call("open", [key], args)], lambda replies: int(replies[0]))


def replayed_by(key: str, seq: int) -> Request[int | None]:
    """Look up the run that has replayed a batch last; None if none is known."""

    def read(replies: list[bytes | None]) -> int | None:
        batch, run = map(int, replies[0].split()) if replies[0] else (None, None)
        return run if batch == seq else None

    return Request((), read, [("HGET", key, "replayed")])


def topics_of(key: str) -> Request[str | None]:
    """Look up the topics that the consumer's last run read; None at first."""
    return Request((), lambda replies: replies[0] and replies[0].decode(), [("HGET", key, "topic")])


def note_committed(key: str, seq: int) -> Request[None]:
    """Note that the consumer has committed everything up to a batch."""
    return Request([Call("settle", [key], [seq])], lambda replies: None)


def committed_up_to(key: str) -> Request[int]:
    """Look up the last batch up to which the consumer is noted as committed; 0 at first."""
    return Request((), lambda replies: int(replies[0] or 0), [("HGET", key, "settled")])
