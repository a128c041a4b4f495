"""``jobs/expire.py``: gives back what consumers hold that do not come back."""

import argparse
from collections.abc import Sequence

from rmq_spark.client.broker import Broker
from rmq_spark.client.queue import Queue
from rmq_spark.jobs.chosen_topics import add_topics, broker_of
from rmq_spark.jobs.job_arguments import new_parser
from rmq_spark.jobs.program import run
from rmq_spark.topics.definition import TopicDefinition

DESCRIPTION = """\
Gives back, in all topics and consumer groups, the messages of claims whose lease has run out.
Whoever reads a topic does so by the way; this is for topics that nobody reads. It also forgets
consumers, and what senders have staged, that nobody came back to for 30 days. Takes nothing from
anybody who is alive.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the job. Returns its exit code."""
    return run(new_job_parser(), expire, arguments)


def new_job_parser() -> argparse.ArgumentParser:
    """The arguments of the job."""
    parser = new_parser("expire", DESCRIPTION)
    add_topics(parser)
    return parser


def expire(given: argparse.Namespace) -> str:
    """Does it, and says what it did topic by topic."""
    with broker_of(given) as broker:
        lines = [_expire(broker, topic) for topic in broker.topics(given.topics.fullmatch)]
    return "\n".join(lines) or "There is no such topic."


def _expire(broker: Broker, topic: TopicDefinition) -> str:
    given_back = sum(
        Queue(broker.server, topic, key_prefix=broker.key_prefix, group=group).expire()
        for group in topic.groups
    )
    return f"{topic.name}: {given_back:,} messages given back"
