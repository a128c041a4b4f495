"""Checks that a checkpoint still fits what Redis knows of its consumer."""

from collections.abc import Iterable

from rmq_spark.client.queue import Queue
from rmq_spark.client.receiving.consumer_runs import ConsumerRuns
from rmq_spark.errors import CheckpointRefused
from rmq_spark.protocol import reading
from rmq_spark.protocol.claims import Header
from rmq_spark.spark.source.offsets import Offset


def checked_run(runs: ConsumerRuns, queues: Iterable[Queue], start: Offset, replays: bool) -> int:
    """Check the checkpoint, and return the highest run of its consumer that any slot knows.

    Raises CheckpointRefused if the consumer has committed a batch after start, or has claimed one
    that this run does not replay.
    """
    headers = [
        header for queue in queues for header in queue.ask(reading.headers, start.consumer)
    ] or [Header()]
    committed = max(runs.committed_up_to(), max(header.settled for header in headers))
    claimed = max(header.last_seq for header in headers)
    if start.seq < committed or (not replays and start.seq < claimed):
        raise CheckpointRefused(
            f"The checkpoint is at batch {start.seq} of topic {start.topic}, but its consumer "
            f"has claimed batch {claimed} and committed batch {committed} (counted from 1; Spark "
            "counts from 0). The checkpoint was restored from a backup or copied. To continue "
            "would commit messages that nobody has read. Use a new checkpointLocation and a new "
            "output folder. Messages in work are delivered again when their lease ends."
        )
    return max(header.run for header in headers)
