"""python -m rmq_spark.workers: what people do about ownership."""

import argparse
import sys

from rmq_spark.queue.broker import connect
from rmq_spark.queue.errors import RmqError
from rmq_spark.queue.topic import parse_group


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; 1 if it failed."""
    parser = argparse.ArgumentParser(prog="python -m rmq_spark.workers", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    lower = commands.add_parser(
        "lower-epochs",
        help="after a ZooKeeper ensemble was replaced",
        description="Makes slots forget under which epoch they were consumed last. The epochs of a "
        "new ensemble begin anew, and a slot refuses one lower than its last. To be run when no "
        "query reads the topic through the old ensemble any more: it would be let in beside the "
        "new owners, and two would work on one slot.",
    )
    lower.add_argument("--topic", required=True)
    lower.add_argument("--group", default="", help="default: the default group")
    lower.add_argument("--redis-url", help="default: RMQ_REDIS_URL, else the local server")
    lower.add_argument("--redis-cluster", action="store_true", help="it is a Redis Cluster")
    lower.add_argument("--key-prefix", default="")
    given = parser.parse_args(arguments)
    try:
        cluster = str(given.redis_cluster)
        broker = connect(given.redis_url, key_prefix=given.key_prefix, cluster=cluster)
        lowered = broker.lower_epochs(given.topic, group=parse_group(given.group))
    except RmqError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201 - a program
        return 1
    nothing = "" if lowered else ": nothing to do, or another topic or Redis is meant"
    print(f"{given.topic}: {lowered} slots forgot their epoch{nothing}")  # noqa: T201 - a program
    return 0


if __name__ == "__main__":
    sys.exit(main())
