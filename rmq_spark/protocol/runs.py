"""Requests about a consumer's own key: its runs, and the last batch that it has committed.

The key is the hash ``consumer:<id>``, which all topics of the consumer share.
"""

from rmq_spark.protocol.calls import Call, Request, text_of


def open_run(
    key: str, topics: str, known_run: int, earlier: str | None = None, replays: int | None = None
) -> Request[int]:
    """Begin a run of a consumer. The answer is the number of the run.

    topics: the topics that the consumer reads, as text. known_run: the highest run in any of its
    headers. earlier: the topics that it read when it was last seen, if they may differ. replays:
    the batch that the run replays, if any. Raises CheckpointRefused if the key belongs to a
    consumer of other topics.
    """
    before = topics if earlier is None else earlier
    args = [topics, known_run, before, text_of(replays)]
    return Request([Call("open", [key], args)], lambda replies: int(replies[0]))


def replayed_by(key: str, seq: int) -> Request[int | None]:
    """Look up the run that last replayed a batch; None if Redis knows no such run."""

    def read(replies: list[bytes | None]) -> int | None:
        batch, run = map(int, replies[0].split()) if replies[0] else (None, None)
        return run if batch == seq else None

    return Request([("HGET", key, "replayed")], read)


def topics_of(key: str) -> Request[str | None]:
    """Look up the topics that the consumer's last run read; None before its first run."""
    return Request([("HGET", key, "topic")], lambda replies: replies[0] and replies[0].decode())


def note_committed(key: str, seq: int) -> Request[None]:
    """Note that the consumer has committed everything up to batch ``seq``."""
    return Request([Call("settle", [key], [seq])], lambda replies: None)


def committed_up_to(key: str) -> Request[int]:
    """Look up the batch up to which everything is noted as committed; 0 at first."""
    return Request([("HGET", key, "settled")], lambda replies: int(replies[0] or 0))
