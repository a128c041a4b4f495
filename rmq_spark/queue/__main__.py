"""python -m rmq_spark.queue: consumer groups of a topic, listed, added and removed."""

import argparse
import sys

from rmq_spark.queue.broker import Broker, connect
from rmq_spark.queue.errors import RmqError
from rmq_spark.queue.topic import group_text


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; 1 if it failed."""
    given = _parser().parse_args(arguments)
    cluster = str(given.redis_cluster)
    try:
        broker = connect(given.redis_url, key_prefix=given.key_prefix, cluster=cluster)
        answer = given.run(broker, given)
    except RmqError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201 - a program
        return 1
    print(answer)  # noqa: T201 - a program
    return 0


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--topic", required=True)
    common.add_argument("--redis-url", help="default: RMQ_REDIS_URL, else the local server")
    common.add_argument("--redis-cluster", action="store_true", help="it is a Redis Cluster")
    common.add_argument("--key-prefix", default="")
    parser = argparse.ArgumentParser(prog="python -m rmq_spark.queue", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    listed = commands.add_parser("groups", parents=[common], help="list the groups of a topic")
    listed.set_defaults(run=_list)
    added = commands.add_parser("add-group", parents=[common], help="add a group to a topic")
    added.set_defaults(run=_add)
    removed = commands.add_parser("remove-group", parents=[common], help="take a group away")
    removed.set_defaults(run=_remove)
    for command in (added, removed):
        command.add_argument("--group", required=True, help="its name; default: the default group")
    removed.add_argument("--drop", action="store_true", help="with all messages that it holds")
    return parser


def _list(broker: Broker, given: argparse.Namespace) -> str:
    queue = broker.queue(given.topic, group=broker.definition(given.topic).groups[0])
    lines = [f"{'group':<24} {'stored':>10} {'in work':>10} {'retry':>10} {'dead':>10}"]
    for group in queue.definition.groups:
        figures = queue.of_group(group).figures()
        queues = (figures.store, figures.prepare, figures.retry, figures.dead)
        lines.append(f"{group_text(group):<24} {' '.join(f'{q.count:>10,}' for q in queues)}")
    return "\n".join(lines)


def _add(broker: Broker, given: argparse.Namespace) -> str:
    before = broker.definition(given.topic).groups
    groups = broker.add_group(given.topic, given.group).groups
    if groups == before:
        return f"{given.topic}: the group {given.group} is there already"
    return (
        f"{given.topic}: the group {given.group} gets what is sent by batches that start from now "
        f"on. Groups: {', '.join(map(group_text, groups))}"
    )


def _remove(broker: Broker, given: argparse.Namespace) -> str:
    gone = broker.remove_group(given.topic, given.group, drop=given.drop)
    groups = broker.definition(given.topic).groups
    return (
        f"{given.topic}: the group {given.group} is gone, and {gone:,} messages with it. "
        f"Groups: {', '.join(map(group_text, groups))}"
    )


if __name__ == "__main__":
    sys.exit(main())
