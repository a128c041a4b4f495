"""The driver's part of each_message: checks the function, and runs a Spark job for each batch."""

import inspect
import io
import logging
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from pyspark import cloudpickle
from pyspark.core.broadcast import Broadcast
from pyspark.sql import DataFrame

from rmq_spark.client.receiving.child_process import is_async
from rmq_spark.client.receiving.timings import Timings
from rmq_spark.errors import InvalidOption
from rmq_spark.spark.listener.child import InputFormat, Job
from rmq_spark.spark.listener.task import (
    ERRORS_A_TASK,
    RESULT,
    BatchCounts,
    Counts,
    MessageTask,
    locate_rollback_columns,
)
from rmq_spark.spark.options import ListenerOptions, parse_listener_options

_log = logging.getLogger(__name__)

# The most errors of a batch in the log.
_ERRORS_A_BATCH = 20
_INTERRUPTED = "java.lang.InterruptedException"
_INPUT_FORMATS = {
    False: InputFormat.MESSAGE,
    True: InputFormat.ARROW,
    "arrow": InputFormat.ARROW,
    "pandas": InputFormat.PANDAS,
}


def each_message(
    function: Callable[[Any], Any],
    *,
    batch: bool | str = False,
    timeout: str | None = None,
    delay: str | None = None,
    options: Mapping[str, str] | None = None,
) -> "EachMessage":
    """Create a function for ``foreachBatch`` that calls a function for every message.

    ::

        query = (
            spark.readStream.format("rmq").option("topic", "Orders").load()
            .writeStream.foreachBatch(rmq_spark.each_message(bill, timeout="5s"))
            .option("checkpointLocation", "/data/checkpoints/billing")
            .start()
        )

    function: runs on the executors. It gets a ``Row`` of the query's columns; its result is
    ignored. If it raises, that message alone is rolled back: it is delivered again or, with no
    retry left, moves to the dead queue. It may raise Retry, Bury, Snooze or Hold to decide this.
    The other messages are committed with the batch. With ``batch=True`` the function gets a
    ``pyarrow.RecordBatch``, and with ``batch="pandas"`` a ``pandas.DataFrame``, of up to 1024
    messages of one claim. It then returns the messages that failed: None, positions from 0, a mask
    of booleans, or a dict of positions and an exception for each, such as a Snooze. If it raises,
    or returns anything else, all messages of that call are rolled back.

    Messages of one slot come in order and one at a time, as the source delivers them. A DataFrame
    that you repartition or sort loses this order, and spark.speculation can process a message twice
    at the same time. Delivery is at least once: a batch that Spark replays is processed again.

    timeout: the longest time for a message (with batch, for a call), a duration such as "5s". A
    call that takes longer is killed, wherever it hangs, and its messages are rolled back. This
    includes the time in which the first call opens or imports something. Loading the function
    (unpickling it and the imports that this needs) may take a minute, or the timeout if that is
    longer. Without a timeout nothing is bounded. delay: the wait before a failed message is
    delivered again; the default is the topic's backoff. options: redis.* and keyPrefix, as for the
    source, and logContents. ``RMQ_REDIS_URL`` is read on the driver, in this call.

    Each failure is logged with its topic, slot, claim, error, and the first 80 characters of the
    message. Set the option ``logContents`` to ``false`` to leave out these characters and the text
    of the error, which may quote the message; the class of the error is still logged.

    The function is pickled in this call. Beside each Python worker, it runs in a process of its own
    that lives as long as the worker, or until it is idle for a minute. It can therefore open a
    connection once and keep it in a global. If it kills its process, only its current message
    fails. Broadcast variables work, accumulators do not.

    If the DataFrame has the column headers, and the function's process has a tracer provider of
    OpenTelemetry, each call is a span, linked to the senders of its messages (docs/traces.md).

    Raises InvalidOption. The query fails with InvalidMessage if the DataFrame lacks topic, slot,
    claimId or content, or if a STRING that must be read is not valid UTF-8; with UnusableFunction
    if the function cannot be loaded on an executor; with a ServerError if Redis cannot be reached.
    No message is lost then: the batch is replayed.
    """
    input_format = _INPUT_FORMATS.get(batch) if isinstance(batch, bool | str) else None
    if input_format is None:
        raise InvalidOption(
            f"batch={batch!r} is not accepted. Accepted: False, True or 'arrow', 'pandas'."
        )
    durations = {"timeout": timeout, "delay": delay}
    given = {name: text for name, text in durations.items() if text is not None}
    parsed = parse_listener_options(_texts({**(options or {}), **given}))
    return EachMessage(function, input_format, parsed)


class EachMessage:
    """The listener that each_message returns, with counts of messages since it was created.

    succeeded, failed: messages for which the function succeeded or failed (Retry and Bury
    included). snoozed: those for which it raised Snooze or Hold. left_alone: failed or snoozed
    messages that were not rolled back because their claim no longer held them; they are delivered
    again anyway. A batch that Spark replays is counted again. A batch that ends early (the query is
    stopped, or a task fails) counts the messages processed so far. If one of its tasks is killed
    from outside or cannot reach Redis, the counts of its last 0.25 s or more can be missing.
    """

    def __init__(
        self, function: Callable[[Any], Any], input_format: InputFormat, options: ListenerOptions
    ) -> None:
        self.succeeded = self.failed = self.left_alone = self.snoozed = 0
        self._timings: defaultdict[str, Timings] = defaultdict(Timings)
        self._function, self._broadcasts = _pickled(function)
        self._name = f"{getattr(function, '__qualname__', 'function')}-{uuid.uuid4().hex}"
        self._input_format, self._options = input_format, options

    def __repr__(self) -> str:
        names = "succeeded", "failed", "snoozed", "left_alone"
        counts = ", ".join(f"{name}={getattr(self, name)}" for name in names)
        return f"EachMessage({self.name}, {counts})"

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Process one micro-batch; Spark calls this."""
        positions = locate_rollback_columns(frame.schema)
        job = Job(self._name, self._function, self._input_format, frame.schema.json())
        reported = BatchCounts.new(self._options.connection, self._options.key_prefix)
        task = MessageTask(job, self._options, positions, self._broadcasts, reported)
        try:
            rows = frame.mapInArrow(task.run, RESULT).collect()
        except BaseException as error:
            self._count(reported.end())
            if str(getattr(error, "java_exception", "")).startswith(_INTERRUPTED):
                raise _QueryStopped from None
            raise
        returned = {row.task: Counts(*row[1:5]) for row in rows}
        for of in (of for row in rows for of in row.timings):
            mine = self._timings[of.topic]
            mine.durations.add_all(of.durations, of.durations_s)
            mine.latenesses.add_all(of.latenesses, of.latenesses_s)
        # An attempt that failed has returned nothing, but reported its counts under its own name.
        total = self._count({**reported.take(), **returned})
        if total.failed:
            self._log(batch_id, total, [error for row in rows for error in row.errors])

    @property
    def name(self) -> str:
        """The name of the function."""
        return self._name.rpartition("-")[0]

    def timings(self) -> dict[str, Timings]:
        """Return by topic how long the calls took until now, and how late they began.

        Of finished tasks. Lateness is that of first deliveries, by the executors' clocks, and needs
        the column dueTime.
        """
        return {topic: Timings.sum_of([of]) for topic, of in list(self._timings.items())}

    def _count(self, by_task: Mapping[str, Counts]) -> Counts:
        total = sum(by_task.values(), Counts())
        self.succeeded += total.succeeded
        self.failed += total.failed
        self.left_alone += total.left_alone
        self.snoozed += total.snoozed
        return total

    def _log(self, batch_id: int, total: Counts, errors: list[str]) -> None:
        shown = errors[:_ERRORS_A_BATCH]
        # An error may be of several messages, and a task that has the most may have left some out.
        is_cut = len(shown) < total.failed and len(errors) >= ERRORS_A_TASK
        _log.warning(
            "rmq: batch %d: %d of %d messages failed and were rolled back%s%s",
            batch_id,
            total.failed,
            total.succeeded + total.failed + total.snoozed,
            f"; the claim of {total.left_alone} was gone" if total.left_alone else "",
            f"; the first {len(shown)} errors follow" if is_cut else "",
        )
        for error in shown:
            _log.warning("rmq: batch %d: %s", batch_id, error)


class _QueryStopped(Exception):
    """Takes the place of py4j's error if ``query.stop()`` interrupts a batch.

    Spark searches the error for this text, with a regular expression (StreamExecution.PROXY_ERROR)
    that overflows the stack of its thread where the text is as long as the trace of Java.
    """

    def __str__(self) -> str:
        return f"py4j.protocol.Py4JJavaError: An error occurred while calling a job: {_INTERRUPTED}"


class _Pickler(cloudpickle.CloudPickler):
    """A pickler that collects the broadcast variables in a function."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)  # type: ignore[no-untyped-call]
        self.broadcasts: list[Broadcast[Any]] = []

    def persistent_id(self, value: Any) -> None:
        """Collect a broadcast variable. Returns None, so that every object is pickled as usual."""
        if isinstance(value, Broadcast):
            self.broadcasts.append(value)


def _pickled(function: Any) -> tuple[bytes, list[Broadcast[Any]]]:
    accepted = "Accepted: a function of one argument that Spark can send to its executors."
    if not callable(function):
        raise InvalidOption(f"each_message got a {type(function).__name__}. {accepted}")
    if is_async(function) or inspect.isasyncgenfunction(function):
        raise InvalidOption(
            f"The function of each_message is async: its coroutine would never run. {accepted}"
        )
    file = io.BytesIO()
    pickler = _Pickler(file)
    try:
        pickler.dump(function)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise InvalidOption(
            f"The function of each_message cannot be sent to the executors: "
            f"{type(error).__name__}: {error}. The function, or a global that it uses, holds an "
            "object of the driver, such as a SparkSession, a connection or a lock. Create it "
            "inside the function."
        ) from error
    return file.getvalue(), pickler.broadcasts


def _texts(options: Mapping[str, Any]) -> dict[str, str]:
    for name, value in options.items():
        if not isinstance(value, str):
            raise InvalidOption(
                f"The option {name} of each_message is a {type(value).__name__}. "
                "Accepted: text, and for a duration a number with its unit, such as '5s'."
            )
    return dict(options)
