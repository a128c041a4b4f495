"""A shop's database and queue, with names that no other test uses, and its jobs in this process."""

import json
import time
import uuid

from rmq_spark.client import Broker
from rmq_spark.jobs.program import new_parser
from rmq_spark.redis.connection import parse_connection
from rmq_spark.redis.server import Server

# Makes columns of the content that ``order`` returns.
SELECT = (
    "CAST(get_json_object(content, '$.id') AS INT) AS id, get_json_object(content, '$.sku') AS sku"
)


def order(number, sku="A"):
    return json.dumps({"id": number, "sku": sku})


class Killed(Exception):
    """Stands for a kill of the driver at that moment."""


class Trade:
    """What a test of a job has."""

    def __init__(self, spark, database, redis_url, name, folder):
        self.spark = spark
        self.database = database
        self.folder = folder
        self.table = f"t{uuid.uuid4().hex[:8]}"
        self.prefix = f"{name[-40:]}-{uuid.uuid4().hex[:8]}:"
        self.broker = Broker(Server(parse_connection({"url": redis_url})), key_prefix=self.prefix)
        self.redis = ["-o", f"redis.url={redis_url}", "-o", f"keyPrefix={self.prefix}"]

    def close(self):
        for topic in self.broker.topics():
            self.broker.delete(topic.name)
        self.broker.close()

    def job(self, name, *arguments):
        """Runs a job in the session of the tests. Returns what it says."""
        given = new_parser().parse_args([name, *self.redis, *map(str, arguments)])
        return given.job.work(*([self.spark] if given.job.needs_spark else []), given)

    def sql(self, sql):
        """Rows of the database, in which {t} stands for this test's own table name."""
        return self.database.sql(sql.replace("{t}", self.table))

    def psql(self, sql):
        """The same, in tests that only PostgreSQL passes."""
        return self.sql(sql)

    def count(self, sql):
        ((number,),) = self.sql(sql)
        return int(number)

    def relay(self, *arguments):
        """The outbox job, on a message table of this test's own."""
        return self.job("relay_outbox", "--table", self.table, "--once", *arguments)

    def export(self, *arguments):
        """The export, of the topic Orders."""
        return self.job("export", "--topic", "Orders", "--once", *arguments)

    def contents(self, topic="Orders"):
        """What lies in the store of a topic; of a keyed one, the keys."""
        return sorted(entry.name.decode() for entry in self.entries(topic))

    def entries(self, topic="Orders"):
        """The messages in the store of a topic."""
        from rmq_spark.protocol.pages import QueueKind

        queue = self.broker.queue(topic)
        pages = (page for slot in queue.slots for page in queue.pages(QueueKind.STORE, slot))
        return sorted((entry for page in pages for entry in page.entries()), key=lambda e: e.name)

    def orders(self, contents, **values):
        """Sends messages that are due at once."""
        if self.broker.find("Orders") is None:
            self.broker.create("Orders", "FixedTime", slot_amount=4)
        self.broker.queue("Orders").send(
            list(contents), fixed_time=int(time.time() * 1000), **values
        )
