"""A Redis server and its topics, and who reads them: the first object of a plain Python program."""

from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Self

from redis.credentials import CredentialProvider

from rmq_spark.client import schedules
from rmq_spark.client.administration import Administration
from rmq_spark.client.messages import Message
from rmq_spark.client.receiving.consumer import Consumer
from rmq_spark.client.receiving.listener import Listener
from rmq_spark.client.receiving.listener_settings import (
    DEFAULT_WORKERS,
    ListenerSettings,
    parse_lease_ms,
)
from rmq_spark.client.scheduler import Scheduler
from rmq_spark.client.schedules import ONE, SEND, Schedule, parse_schedule
from rmq_spark.errors import InvalidOption
from rmq_spark.options import DEFAULT_VISIBILITY_TIMEOUT
from rmq_spark.ownership.zookeeper import EnsembleOptions, parse_ensemble
from rmq_spark.protocol.claims import Delivered
from rmq_spark.redis.connection import ConnectionOptions, parse_connection
from rmq_spark.redis.server import Server
from rmq_spark.topics.keys import DEFAULT_GROUP
from rmq_spark.topics.parsing import Duration

ZooKeeper = str | Mapping[str, str]


class Broker(Administration):
    """The topics of one Redis database. ``key_prefix`` separates them from others there.

    A context manager, which closes the connections.
    """

    def close(self) -> None:
        """Close the connections to Redis."""
        self.server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def consumer(
        self,
        topic: str,
        name: str,
        *,
        group: str = DEFAULT_GROUP,
        visibility_timeout: Duration = DEFAULT_VISIBILITY_TIMEOUT,
        zookeeper: ZooKeeper | None = None,
    ) -> Consumer:
        """Return a consumer of a topic. Only one process at a time may use a name.

        visibility_timeout: the lease of a batch, such as "60s", up to 366 days; only batch.renew
        renews it.
        zookeeper: shares the slots out among all readers of the topic, each with a name of its own,
        so that one key is in work at one reader: ``"host:port"``, or a mapping of the options that
        begin with ``zookeeper.``, without that prefix. Makes the topic exclusive. Raises
        UnknownTopic, InvalidOption, OwnershipError, and ExclusiveSlot for an exclusive topic
        without a zookeeper. See Consumer.
        """
        ensemble = parse_zookeeper(zookeeper)
        open_queue = partial(self.queue, topic, group=group)
        lease_ms = parse_lease_ms(visibility_timeout)
        return Consumer(open_queue, name, lease_ms=lease_ms, ensemble=ensemble)

    def listen(
        self,
        topic: str,
        name: str,
        function: Callable[[Delivered], Any],
        *,
        workers: int = DEFAULT_WORKERS,
        processes: bool = False,
        timeout: Duration | None = None,
        delay: Duration | None = None,
        group: str = DEFAULT_GROUP,
        visibility_timeout: Duration = DEFAULT_VISIBILITY_TIMEOUT,
        zookeeper: ZooKeeper | None = None,
        loop: AbstractEventLoop | None = None,
    ) -> Listener:
        """Return a listener that calls a function for every message. Call its ``run``.

        Messages of one slot come one after another, those of several slots beside each other, in
        ``workers`` threads. function: may be async; all async functions of a process share an event
        loop, in a thread of its own. If it raises, its message alone is rolled back, with the error
        as its reason, and is redelivered after ``delay`` or its topic's backoff unless the error is
        a Retry, Bury, Snooze or Hold. processes: whether each worker calls the function in a
        process of its own, which imports it from its module. timeout: the longest time for a
        message, which is then rolled back. Its process is killed, or its async function cancelled;
        a thread cannot be ended, and is replaced. name, visibility_timeout, zookeeper: as for
        consumer; leases are renewed while it runs. loop: another event loop for an async function,
        which runs in another thread (rmq_spark.aio). Raises UnknownTopic, InvalidOption,
        OwnershipError, ExclusiveSlot.
        """
        settings = ListenerSettings.parse(
            function,
            workers=workers,
            processes=processes,
            timeout=timeout,
            delay=delay,
            visibility_timeout=visibility_timeout,
            ensemble=parse_zookeeper(zookeeper),
            loop=loop,
        )
        return Listener(partial(self.queue, topic, group=group), name, settings)

    # -- schedules

    def schedule(
        self,
        name: str,
        topic: str,
        message: Message | bytes | str,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        timezone: str = "UTC",
        first: int | datetime | None = None,
        last: int | datetime | None = None,
        catch_up: str = ONE,
        overlap: str = SEND,
    ) -> Schedule:
        """Send a message again and again, while a scheduler runs. Creates or changes a schedule.

        cron: an expression of five fields, such as "0 3 * * *", or six, which begin with seconds.
        every: in its place, an interval of at least 1 s. It begins at ``first``, or with the first
        call. timezone: of the expression. first, last: bounds, as ms since 1970 or a datetime with
        a time zone. catch_up: what becomes of occurrences while no scheduler ran: "one" sends the
        last of them, "all" sends each, "none" sends none that is more than a minute late. overlap:
        while a message of an earlier occurrence waits or is in progress, "skip" leaves out an
        occurrence, "wait" sends it later, and "send" lets the two merge. The message gets two
        headers: ``rmq-schedule`` and ``rmq-scheduled-time``. In a FixedTime topic it is due at the
        time of the occurrence, or a ``delay`` later.

        A call with the same arguments changes nothing, so a service can make it at each start.
        Raises UnknownTopic, InvalidOption, InvalidMessage.
        """
        wanted = parse_schedule(
            self.definitions([topic])[0],
            name,
            message,
            cron=cron,
            every=every,
            timezone=timezone,
            first=first,
            last=last,
            catch_up=catch_up,
            overlap=overlap,
            now_ms=self.server.now_ms,
        )
        return schedules.put(self, wanted)

    def schedules(self) -> list[Schedule]:
        """Return all schedules, sorted by name. The log names what it cannot read, once."""
        return schedules.schedules(self)

    def unschedule(self, name: str) -> bool:
        """Remove a schedule. Return whether there was one. Messages that it has sent stay."""
        return schedules.remove(self, name)

    def pause_schedule(self, name: str) -> Schedule:
        """Let a schedule send nothing until it is resumed. Raises InvalidOption if unknown."""
        return schedules.pause(self, name, True)

    def resume_schedule(self, name: str) -> Schedule:
        """Let a schedule send again, from now on: what the pause kept back is not sent."""
        return schedules.pause(self, name, False)

    def scheduler(self) -> Scheduler:
        """Return a scheduler, which sends the messages of all schedules: ``with`` or ``run``.

        Any number of programs may have one; each occurrence is sent once.
        """
        return Scheduler(self)


def parse_zookeeper(zookeeper: ZooKeeper | None) -> EnsembleOptions | None:
    """Parse the argument zookeeper of Broker.listen. Raises InvalidOption."""
    if zookeeper is None:
        return None
    return parse_ensemble({"hosts": zookeeper} if isinstance(zookeeper, str) else zookeeper)


def _text(name: str, value: Any) -> str:
    """Convert an option to text, the form that its parser takes."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int):
        return str(value)
    raise InvalidOption(f"{name} is a {type(value).__name__}. Accepted: text, see connect.")


def connect(
    url: str | None = None, *, key_prefix: str = "", patience_s: float | None = None, **options: Any
) -> Broker:
    """Connect to Redis from a plain Python program.

    url: ``redis://``, ``rediss://`` or ``unix://``; by default RMQ_REDIS_URL, or else the local
    server. options: the options that begin with ``redis.``, without that prefix, such as
    ``password``, ``socketTimeout="5s"``, ``cluster=True``, ``min_replicas=1``, or
    ``sentinels="host:port,..."`` with ``sentinelMaster``. credentialProvider can also be an object
    of redis-py. patience_s: how long to retry a broken connection; None for 10 s, or for 25 s if a
    replica may take over. Raises InvalidOption, ServerError.

    Warns if Redis keeps nothing on disk.
    """
    server = Server(connection_from(url, options), patience_s)
    server.warn_if_not_on_disk()
    return Broker(server, key_prefix=key_prefix)


def connection_from(url: str | None, options: Mapping[str, Any]) -> ConnectionOptions:
    """Parse the arguments of connect. Raises InvalidOption."""
    found = {name: value for name, value in options.items() if _is_provider(name, value)}
    given = {name: _text(name, options[name]) for name in options.keys() - found.keys()}
    given |= {} if url is None else {"url": url}
    parsed = parse_connection(given)
    return replace(parsed, provider=next(iter(found.values()), parsed.provider))


def _is_provider(name: str, value: Any) -> bool:
    by_name = name.lower().replace("_", "") == "credentialprovider"
    return by_name and isinstance(value, CredentialProvider)
