"""The job ``expire``: give back what consumers will not commit, delete what is long dead."""

import argparse

from rmq_spark.client.broker import Broker
from rmq_spark.client.queue import Queue
from rmq_spark.errors import ScriptFailed, WrongKeyType
from rmq_spark.jobs.chosen_topics import add_topics, broker_of
from rmq_spark.jobs.commands import run_job
from rmq_spark.jobs.program import Job, JobFailed
from rmq_spark.protocol import returning

DESCRIPTION = """\
Give back messages whose lease has ended, and delete dead ones past their retention.

It does so in all topics and consumer groups, or in those that --topics names.
A query or consumer that reads a topic gives messages back by itself, but it deletes no dead ones.
Run the job for topics that nobody reads, and for those with a deadRetention. It also forgets
consumers, and staged batches of senders, that were not seen for 30 days. It takes nothing from a
consumer that is alive.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the job to a parser."""
    add_topics(parser)


def expire(given: argparse.Namespace) -> str:
    """Give back messages whose lease has ended, and delete long dead ones, a topic at a time.

    Return a line for each topic. Raises JobFailed, with the lines, if topics cannot be read; all
    others are then done.
    """
    lines, failed = [], False
    with broker_of(given) as broker:
        for topic in broker.topics(given.topics.fullmatch):
            try:
                lines.append(f"{topic.name}: {_expire(broker, topic.name)}")
            except (ScriptFailed, WrongKeyType) as error:
                failed = True
                lines.append(f"{topic.name}: {error}")
    text = "\n".join(lines) or "No topic matches."
    if failed:
        raise JobFailed(text)
    return text


def _expire(broker: Broker, name: str) -> str:
    # Read again: by a retention that is longer now, less must be deleted.
    topic = broker.find(name)
    if topic is None:
        return "deleted meanwhile"
    forgotten = given_back = 0
    for group in topic.groups:
        queue = Queue(broker.server, topic, key_prefix=broker.key_prefix, group=group)
        forgotten += queue.ask(returning.forget, queue.slots)
        given_back += queue.expire()
    text = f"{given_back:,} messages given back"
    if topic.dead_retention_ms is not None:
        text += f", {forgotten:,} dead messages deleted"
    return text


JOB = Job("expire", DESCRIPTION, add_arguments, expire)

if __name__ == "__main__":
    run_job("expire")
