"""A shop's database and queue, with names that no other test uses."""

import uuid

import psycopg
import pymysql

from rmq_spark.client import Broker
from rmq_spark.outbox import Outbox
from rmq_spark.protocol.pages import QueueKind
from rmq_spark.redis.connection import parse_connection
from rmq_spark.redis.server import Server

from ..waiting import wait_until


class Shop:
    """What a test of the outbox has."""

    def __init__(self, database, redis_url):
        self.database = database
        self.is_postgresql = "postgresql" in database.url
        self.table = f"t{uuid.uuid4().hex[:8]}"
        self.redis_url = redis_url
        self.prefix = f"{self.table}:"
        self.broker = Broker(Server(parse_connection({"url": redis_url})), key_prefix=self.prefix)
        self._threads = []

    def close(self):
        for topic in self.broker.topics():
            self.broker.delete(topic.name)
        self.broker.close()

    def outbox(self, **options):
        login = self.database.environment
        return Outbox(
            self.database.url,
            user=login["RMQ_JDBC_USER"],
            password=login["RMQ_JDBC_PASSWORD"],
            **{"table": self.table, **options},
        )

    def connect(self):
        """A connection of the driver, as a service has one."""
        login = self.database.environment
        user, password = login["RMQ_JDBC_USER"], login["RMQ_JDBC_PASSWORD"]
        if self.is_postgresql:
            url = self.database.url.removeprefix("jdbc:")
            return psycopg.connect(url, user=user, password=password)
        return pymysql.connect(
            host="127.0.0.1",
            port=self.database.port,
            user=user,
            password=password,
            database="shop",
            charset="utf8mb4",
        )

    def relay(self, **options):
        """Relays until nothing is due; messages without a topic go to Orders."""
        return self.outbox().relay(self.broker, **{"topic": "Orders", **options}).run_once()

    def sql(self, sql):
        """Rows of the database, in which {t} stands for this test's own table name."""
        return self.database.sql(sql.replace("{t}", self.table))

    def one(self, sql):
        ((value,),) = self.sql(sql)
        return value

    def insert(self, values, columns="content, fixed_time"):
        self.sql(f"INSERT INTO {{t}} ({columns}) VALUES {values}")

    def states(self):
        return {
            state: int(count)
            for state, count in self.sql("SELECT state, count(*) FROM {t} GROUP BY state")
        }

    def refusals(self):
        """The reasons, by content."""
        return dict(self.sql("SELECT content, reason FROM {t}_exceptions"))

    def entries(self, topic="Orders"):
        """The messages in the store of a topic."""
        queue = self.broker.queue(topic)
        pages = (page for slot in queue.slots for page in queue.pages(QueueKind.STORE, slot))
        return sorted((entry for page in pages for entry in page.entries()), key=lambda e: e.name)

    def contents(self, topic="Orders"):
        """What lies in the store of a topic; of a keyed one, the keys."""
        return [entry.name.decode() for entry in self.entries(topic)]

    def consume(self, topic="Orders"):
        """Takes and commits what is due; the contents."""
        with self.broker.consumer(topic, "c") as consumer:
            found = []
            while batch := consumer.poll():
                found += [message.content.decode() for message in batch]
                batch.commit()
            return sorted(found)

    def arrives(self, content, topic="Orders"):
        wait_until(lambda: content in self.contents(topic), content)


def soon(minutes):
    """SQL for so many minutes from now."""
    sign = "-" if minutes < 0 else "+"
    return f"CURRENT_TIMESTAMP {sign} INTERVAL '{abs(minutes)}' MINUTE"
