"""The options of ``rmq_spark.each_message``."""

from rmq_spark.options.connection_options import CONNECTION
from rmq_spark.options.option import Option, OptionTable
from rmq_spark.topics.parsers import FLAG, duration

TIMEOUT = Option(
    "timeout",
    duration(1),
    "Time for a message, or for a call with a batch; then it is ended and rolled back",
    otherwise="no limit",
)
DELAY = Option(
    "delay",
    duration(0),
    "Wait before a message that failed comes again",
    otherwise="the topic's backoff",
)
LOG_CONTENTS = Option(
    "logContents",
    FLAG,
    "Whether the log of a failure shows the first 80 characters of the message, and the text of "
    "the error, which may quote more of it. Otherwise it shows the class of the error",
    default="true",
)
LISTENER = OptionTable("each_message", (TIMEOUT, DELAY, LOG_CONTENTS, *CONNECTION.options))
