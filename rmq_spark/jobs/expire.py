"""The job ``expire``: give back messages that consumers hold and will not commit."""

import argparse

from rmq_spark.client.broker import Broker
from rmq_spark.client.queue import Queue
from rmq_spark.jobs.chosen_topics import add_topics, broker_of
from rmq_spark.jobs.commands import run_job
from rmq_spark.jobs.program import Job
from rmq_spark.topics.definition import TopicDefinition

DESCRIPTION = """\
Give back the messages of claims whose lease has ended, in all topics and consumer groups.

A query or consumer that reads a topic does this by itself: run the job for topics that nobody
reads. It also forgets consumers, and staged batches of senders, that were not seen for 30 days.
It takes nothing from a consumer that is alive.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the job to a parser."""
    add_topics(parser)


def expire(given: argparse.Namespace) -> str:
    """Give back messages whose lease has expired. Return a line for each topic."""
    with broker_of(given) as broker:
        lines = [_expire(broker, topic) for topic in broker.topics(given.topics.fullmatch)]
    return "\n".join(lines) or "No topic matches."


def _expire(broker: Broker, topic: TopicDefinition) -> str:
    given_back = sum(
        Queue(broker.server, topic, key_prefix=broker.key_prefix, group=group).expire()
        for group in topic.groups
    )
    return f"{topic.name}: {given_back:,} messages given back"


JOB = Job("expire", DESCRIPTION, add_arguments, expire)

if __name__ == "__main__":
    run_job("expire")
