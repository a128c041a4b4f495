"""One start of a consumer in plain Python: it takes over the name from an earlier process."""

import re
from dataclasses import dataclass

from rmq_spark.client.administration import Administration
from rmq_spark.client.queue import Queue
from rmq_spark.client.receiving.consumer_runs import ConsumerRuns
from rmq_spark.client.receiving.owned_slots import Ownership, ownership_of
from rmq_spark.errors import InvalidOption
from rmq_spark.ownership.ensemble import EnsembleOptions
from rmq_spark.protocol import reading, returning
from rmq_spark.protocol.names import ScopedName
from rmq_spark.topics.definition import refuse_exclusive

_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")


@dataclass(frozen=True)
class Session:
    """A start of a consumer: its number among all starts of that name, its run.

    last_seq: the highest number of a batch that earlier runs of the name have claimed. ownership:
    says which slots the consumer may claim.
    """

    name: str
    run: int
    last_seq: int
    runs: ConsumerRuns
    ownership: Ownership


def open_session(queue: Queue, name: str, ensemble: EnsembleOptions | None) -> Session:
    """Take over a name: older runs are barred, and what they hold is given back.

    ensemble: the ZooKeeper through which to own slots, which makes the topic exclusive. Raises
    InvalidOption for a name that is not accepted, ExclusiveSlot for an exclusive topic without an
    ensemble, and OwnershipError.
    """
    if not _NAME.fullmatch(name):
        raise InvalidOption(
            f"The consumer name {name!r} is not accepted. Accepted: 1 to 200 of A-Z a-z 0-9 . _ -"
        )
    if ensemble is None:
        refuse_exclusive(queue.definition)
    scoped = ScopedName(queue.keys.topic, queue.keys.group, name)
    known_run = max(header.run for header in queue.ask(reading.headers, name))
    runs = ConsumerRuns(queue.server, str(scoped), queue.key_prefix)
    run = runs.open(queue.keys.topic, known_run)
    queue.ask(returning.give_back, queue.slots, name, run)
    # Read only now: older runs of this name could claim until give_back barred them.
    headers = queue.ask(reading.headers, name)
    last_seq = max(max(header.last_seq, header.settled) for header in headers)
    ownership = ownership_of(queue, name, ensemble)
    try:
        if ownership.exclusive and not queue.definition.exclusive:
            # Only now that ZooKeeper has answered: others without it are refused from here on.
            administration = Administration(queue.server, key_prefix=queue.key_prefix)
            administration.alter(queue.definition.name, exclusive=True)
        ownership.wait_for_slots()
    except BaseException:
        ownership.stop()
        raise
    return Session(name, run, last_seq, runs, ownership)
