"""The job ``expire``: give back messages that consumers hold and will not commit."""

import argparse

from rmq_spark.client.broker import Broker
from rmq_spark.client.queue import Queue
from rmq_spark.errors import ScriptFailed, WrongKeyType
from rmq_spark.jobs.chosen_topics import add_topics, broker_of
from rmq_spark.jobs.commands import run_job
from rmq_spark.jobs.program import Job, JobFailed
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
    """Give back messages whose lease has expired. Return a line for each topic.

    Raises JobFailed, with the lines, if topics cannot be read; all others are then done.
    """
    lines, failed = [], False
    with broker_of(given) as broker:
        for topic in broker.topics(given.topics.fullmatch):
            try:
                lines.append(f"{topic.name}: {_expire(broker, topic):,} messages given back")
            except (ScriptFailed, WrongKeyType) as error:
                failed = True
                lines.append(f"{topic.name}: {error}")
    text = "\n".join(lines) or "No topic matches."
    if failed:
        raise JobFailed(text)
    return text


def _expire(broker: Broker, topic: TopicDefinition) -> int:
    return sum(
        Queue(broker.server, topic, key_prefix=broker.key_prefix, group=group).expire()
        for group in topic.groups
    )


JOB = Job("expire", DESCRIPTION, add_arguments, expire)

if __name__ == "__main__":
    run_job("expire")
