"""The arguments of jobs whose values are durations or numbers."""

from rmq_spark.options.option import Option
from rmq_spark.topics.parsers import duration, whole

TRIGGER = Option("--trigger", duration(0), "how often to start a batch, such as 10s")
HORIZON = Option(
    "--horizon",
    duration(0),
    "relay messages that are due within this time; choose more than the longest stop of this job",
    default="10m",
)
LIMIT = Option("--limit", whole(1), "most messages in one transaction", default="10000")
INTERVAL = Option(
    "--interval",
    duration(1),
    "how often to look for messages that nobody announced (default: 1s in PostgreSQL, which "
    "announces those of services; 10ms in MariaDB)",
)
KEEP = Option(
    "--keep",
    duration(0),
    "delete rows so long after their messages were sent, such as 30d (default: keep them)",
)
MAX_REFUSED = Option(
    "--max-refused",
    whole(1),
    "fail if more messages of a batch are refused: the job itself is wrong then",
    default="1000",
)
