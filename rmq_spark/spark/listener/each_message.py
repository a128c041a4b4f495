"""each_message: a function for every message of a micro-batch; those it fails are rolled back."""

import inspect
import io
import logging
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from pyspark import cloudpickle
from pyspark.core.broadcast import Broadcast
from pyspark.sql import DataFrame

from rmq_spark.errors import InvalidOption
from rmq_spark.spark.listener.batch_counts import BatchCounts, Counts
from rmq_spark.spark.listener.message_child import Handing, Job
from rmq_spark.spark.listener.message_task import RESULT, MessageTask, locate_needed
from rmq_spark.spark.options import parse_listener_options

_log = logging.getLogger(__name__)

_ERRORS_A_BATCH = 20
_HANDINGS = {
    False: Handing.MESSAGE,
    True: Handing.ARROW,
    "arrow": Handing.ARROW,
    "pandas": Handing.PANDAS,
}


def each_message(
    function: Callable[[Any], Any],
    *,
    batch: bool | str = False,
    timeout: str | None = None,
    delay: str | None = None,
    options: Mapping[str, str] | None = None,
) -> "EachMessage":
    """A listener for ``foreachBatch``: calls a function for every message, on the executors.

    ::

        query = (
            spark.readStream.format("rmq").option("topic", "Orders").load()
            .writeStream.foreachBatch(rmq_spark.each_message(bill, timeout="5s"))
            .option("checkpointLocation", "/data/checkpoints/billing")
            .start()
        )

    function: gets a ``Row`` of all columns; what it returns is ignored. A message for which it
    raises is rolled back alone, to come again or, with no retry left, go to the DeadQueue; the
    others are committed with the batch. With ``batch=True`` it gets a ``pyarrow.RecordBatch`` and
    with ``batch="pandas"`` a ``pandas.DataFrame``, up to 1024 messages of one claim, and returns
    which of them failed: None, positions from 0, or a mask of booleans. If it raises, or returns
    anything else, all of that call are rolled back.

    Messages of one slot come in order and one at a time, as the source hands them out; a DataFrame
    that was repartitioned or sorted before has lost that, and spark.speculation works on some twice
    at once. A batch that Spark runs again is worked on again: at least once.

    timeout: a duration such as "5s" for a message (with batch, a call); what takes longer is
    killed, wherever it hangs, and rolled back. What the function opens or imports in its first
    call is in that time. Loading it (what unpickling it imports) has a minute then, or the timeout
    if that is longer; without a timeout nothing is bounded. delay: the wait before a failed message
    comes again; without it, the topic's backoff. options: redis.* and keyPrefix, as the source
    takes them, and logContents. ``RMQ_REDIS_URL`` is read here, on the driver.

    Each failure is logged with its topic, slot, claim, error, and the first 80 characters of the
    message. The option ``logContents`` set to ``false`` leaves these out, but not the text of the
    error.

    The function is pickled here and now. It runs in a process of its own beside each Python worker,
    kept from batch to batch while the worker lives and until it had nothing to do for a minute: it
    may open a connection once and keep it in a global. One that kills its process takes only its
    own message with it. Broadcast variables work, accumulators do not.

    Raises InvalidOption. The query fails with InvalidMessage when the DataFrame lacks topic, slot,
    claimId or content, or a STRING that must be read is not valid UTF-8; with UnusableFunction
    when the function cannot be loaded on an executor; with a ServerError when Redis cannot be
    reached. Nothing is lost then, the batch comes again.
    """
    return EachMessage(function, batch=batch, timeout=timeout, delay=delay, options=options)


class EachMessage:
    """What each_message returns. Totals of this driver since it was made, in messages:

    succeeded: for which the function succeeded. failed: for which it did not. left_alone: those of
    the failed that were not rolled back, since their claim did not hold them any more; they come
    again by themselves. A batch that Spark runs again counts again. A batch that ends early (the
    query is stopped, a task fails) counts what was done, except for tasks that are killed from
    outside or cannot reach Redis: of these, the last quarter of a second or more may be missing.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        *,
        batch: bool | str = False,
        timeout: str | None = None,
        delay: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.succeeded = 0
        self.failed = 0
        self.left_alone = 0
        handing = _HANDINGS.get(batch) if isinstance(batch, bool | str) else None
        if handing is None:
            raise InvalidOption(
                f"batch={batch!r} is not accepted. Accepted: False, True or 'arrow', 'pandas'."
            )
        durations = {"timeout": timeout, "delay": delay}
        given = {name: text for name, text in durations.items() if text is not None}
        self._options = parse_listener_options(_texts({**(options or {}), **given}))
        pickled, broadcasts = _pickled(function)
        self._name = f"{getattr(function, '__qualname__', 'function')}-{uuid.uuid4().hex}"
        self._function, self._broadcasts, self._handing = pickled, broadcasts, handing

    def __repr__(self) -> str:
        counts = f"succeeded={self.succeeded}, failed={self.failed}, left_alone={self.left_alone}"
        return f"EachMessage({self._name.partition('-')[0]}, {counts})"

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Work on one micro-batch; Spark calls it."""
        places = locate_needed(frame.schema)
        job = Job(self._name, self._function, self._handing, frame.schema.json())
        told = BatchCounts.new(self._options.connection, self._options.key_prefix)
        task = MessageTask(job, self._options, places, self._broadcasts, told)
        try:
            rows = frame.mapInArrow(task.run, RESULT).collect()
        except BaseException:
            self._count(told.end())
            raise
        returned = {row.task: Counts(row.succeeded, row.failed, row.left_alone) for row in rows}
        # A task that Spark ran again has told what its first attempt did.
        total = self._count({**told.take(), **returned})
        if total.failed:
            self._log(batch_id, total, [error for row in rows for error in row.errors])

    def _count(self, by_task: Mapping[str, Counts]) -> Counts:
        """Add to the totals. Returns what was added."""
        total = sum(by_task.values(), Counts())
        self.succeeded += total.succeeded
        self.failed += total.failed
        self.left_alone += total.left_alone
        return total

    def _log(self, batch_id: int, total: Counts, errors: list[str]) -> None:
        _log.warning(
            "rmq: batch %d: %d of %d messages failed and were rolled back%s",
            batch_id,
            total.failed,
            total.succeeded + total.failed,
            f", but for {total.left_alone} whose claim was gone" if total.left_alone else "",
        )
        for error in errors[:_ERRORS_A_BATCH]:
            _log.warning("rmq: batch %d: %s", batch_id, error)


class _Pickler(cloudpickle.CloudPickler):
    """Notes the broadcast variables it meets."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)  # type: ignore[no-untyped-call]
        self.broadcasts: list[Broadcast[Any]] = []

    def persistent_id(self, value: Any) -> None:
        """Pickle asks for every object; None: pickled as always."""
        if isinstance(value, Broadcast):
            self.broadcasts.append(value)


def _pickled(function: Any) -> tuple[bytes, list[Broadcast[Any]]]:
    """A function as bytes, and the broadcast variables in it. Raises InvalidOption."""
    accepted = "Accepted: a function of one argument that Spark can send to its executors."
    if not callable(function):
        raise InvalidOption(f"each_message got a {type(function).__name__}. {accepted}")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidOption(
            f"The function of each_message is async: nobody would run what it returns. {accepted}"
        )
    file = io.BytesIO()
    pickler = _Pickler(file)
    try:
        pickler.dump(function)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise InvalidOption(
            f"The function of each_message cannot be sent to the executors: "
            f"{type(error).__name__}: {error}. It, or a global it uses, holds something of the "
            "driver, such as a SparkSession, a connection or a lock: make that inside the function."
        ) from error
    return file.getvalue(), pickler.broadcasts


def _texts(options: Mapping[str, Any]) -> dict[str, str]:
    """The options themselves. Raises InvalidOption for a value that is no text."""
    for name, value in options.items():
        if not isinstance(value, str):
            raise InvalidOption(
                f"The option {name} of each_message is a {type(value).__name__}. "
                "Accepted: text, and for a duration a number with its unit, such as '5s'."
            )
    return dict(options)
