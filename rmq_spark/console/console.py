"""What all pages of the console share: the connection, the last look, and what is remembered."""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from rmq_spark.client.broker import Broker
from rmq_spark.client.overview import Row, look
from rmq_spark.client.queue import Queue
from rmq_spark.console.bulk_jobs import BulkJobs
from rmq_spark.console.console_settings import ConsoleSettings
from rmq_spark.console.guard import Sessions
from rmq_spark.console.lasting_broker import LastingBroker
from rmq_spark.console.lasting_ensemble import LastingEnsemble
from rmq_spark.console.notes import Notes
from rmq_spark.console.references import References
from rmq_spark.errors import ServerError
from rmq_spark.ownership.ensemble import EnsembleOptions
from rmq_spark.topics.definition import TopicDefinition, group_text, parse_group
from rmq_spark.views.rates import Rates
from rmq_spark.views.server_checks import Finding, check_server

# Pages that ask within this time share one look at all topics.
LOOK_S = 3.0
# What the checks look at changes seldom.
CHECK_S = 60.0
RATES_KEPT = 300


class Unreadable(NamedTuple):
    """A consumer group whose keys cannot be read, and why."""

    topic: str
    group: str
    reason: str


class Console:
    """What the pages share. connect: connects to Redis. ensemble: the ZooKeeper to look at."""

    def __init__(
        self,
        settings: ConsoleSettings,
        connect: Callable[[], Broker],
        ensemble: EnsembleOptions | None = None,
    ) -> None:
        self.settings = settings
        self.ensemble = None if ensemble is None else LastingEnsemble(ensemble)
        self.connection = LastingBroker(connect)
        self.sessions = Sessions()
        self.references = References()
        self.notes = Notes()
        self.jobs = BulkJobs()
        self.rates = Rates(RATES_KEPT, LOOK_S / 2)
        self._looking = threading.Lock()
        self._looked_s, self._rows = 0.0, list[Row]()
        self._unreadable: list[Unreadable] = []
        self._checking = threading.Lock()
        self._checked_s, self._findings = 0.0, list[Finding]()

    @property
    def broker(self) -> Broker:
        """The broker. Raises ServerError."""
        return self.connection.get()

    def definition(self, topic: str) -> TopicDefinition:
        """Return the definition of a topic. Raises UnknownTopic."""
        return self.broker.definition(topic)

    def queue(self, topic: str, group: str | None) -> Queue:
        """Return the queue of a group; None or an empty text for the topic's usual one.

        Raises UnknownTopic, and InvalidOption for a group that the topic does not have.
        """
        return self.broker.queue(topic, group=parse_group(group) if group else None)

    def look(self) -> tuple[list[Row], list[Unreadable]]:
        """Return the state of all topics, at most LOOK_S old, and the groups that have none."""
        broker = self.broker
        with self._looking:
            if time.monotonic() - self._looked_s > LOOK_S or not self._looked_s:
                self._unreadable = []
                self._rows = look(broker, failed=self._note_unreadable)
                self._looked_s = time.monotonic()
                for row in self._rows:
                    self.rates.note(row.topic, row.group, row.figures.counters)
            return self._rows, self._unreadable

    def _note_unreadable(self, queue: Queue, error: ServerError) -> None:
        group = group_text(queue.keys.group)
        self._unreadable.append(Unreadable(queue.definition.name, group, str(error)))

    def findings(self) -> list[Finding]:
        """Return what the checks of the server have found, at most CHECK_S ago."""
        broker = self.broker
        with self._checking:
            if time.monotonic() - self._checked_s > CHECK_S or not self._checked_s:
                self._findings = list(check_server(broker))
                self._checked_s = time.monotonic()
            return self._findings

    def changed(self) -> None:
        """Look again at the next request, because a user has changed something."""
        self._looked_s = 0.0

    def close(self) -> None:
        """Stop what runs, and close the connection."""
        self.jobs.stop_all()
        self.connection.close()
        if self.ensemble is not None:
            self.ensemble.close()
