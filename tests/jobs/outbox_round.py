"""Orders come into PostgreSQL while the outbox job is killed (-9) again and again; then a count.

A business inserts orders, each with its message in the same transaction: several sessions at once,
so that lower ids are committed after higher ones, some transactions rolled back. The relay brings
the messages into a topic and is killed at random moments; an export brings them into a table whose
constraint refuses some, and is killed as well. In the end every order that was committed must be in
the table or, if it was to be refused, in the exceptions. ``make outbox`` runs it.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rmq_spark.client import connect
from rmq_spark.dev_servers.redis_server import LocalRedis

from .. import ROOT, postgres, quick_spark

JOBS = ROOT / "jobs"
SESSIONS = 4
# What the topic refuses has no time, what the table refuses a negative amount.
TABLES = """
CREATE TABLE orders (number INT PRIMARY KEY, amount INT NOT NULL, untimed BOOLEAN NOT NULL);
CREATE TABLE delivered (number INT NOT NULL, amount INT CHECK (amount >= 0));
"""
SELECT = (
    "CAST(get_json_object(content, '$.number') AS INT) AS number, "
    "CAST(get_json_object(content, '$.amount') AS INT) AS amount"
)
REFUSED_NUMBERS = "SELECT (content::json->>'number')::int AS number FROM %s_exceptions"


@dataclass(frozen=True)
class Outcome:
    """What was counted in the end. in_a_round: kills that hit while a round's transaction was open.

    missing: committed orders that are nowhere. wrongly: exceptions that should be none, and refused
    orders that are not among them. twice: rows of orders that are there already.
    """

    orders: int
    kills: int
    in_a_round: int
    export_kills: int
    delivered: int
    twice: int
    refused_by_topic: int
    refused_by_table: int
    missing: int
    unexpected: int
    wrongly: int

    @property
    def is_right(self) -> bool:
        """Whether every order is where it must be."""
        return self.missing == self.unexpected == self.wrongly == 0 < self.delivered


class OutboxRound:
    """One round, in a folder of its own."""

    def __init__(self, database, redis_url, folder, seed, orders, seconds):
        self.database = database
        self.folder = folder
        self.chance = random.Random(seed)
        self.orders = orders
        self.seconds = seconds
        self.environment = {
            **database.environment,
            "RMQ_REDIS_URL": redis_url,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            **quick_spark.variables(),
        }
        self.queue_of = lambda: connect(redis_url).queue("Orders")
        self.running = []

    def job(self, name, *arguments):
        """Starts a job, as the leader of a group that can be killed as one."""
        log = (self.folder / f"{name}.log").open("ab")
        driver = f"spark.jars={postgres.driver()}"
        process = subprocess.Popen(
            [sys.executable, JOBS / f"{name}.py", "--conf", driver, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        self.running.append(process)
        return process

    def relay(self, *arguments):
        topic = ("--topic", "Orders", "-o", "topicType=FixedTime", "-o", "slotAmount=4")
        return self.job("relay_outbox", *topic, "--limit", "300", *arguments)

    def export(self, *arguments):
        into = ("--to", "jdbc", "--table", "delivered", "--select", SELECT)
        kept = ("--checkpoint", str(self.folder / "export"), "--max-refused", "100000")
        return self.job("export", "--topic", "Orders", *into, *kept, *arguments)

    def end(self):
        """Leaves nothing running."""
        for process in self.running:
            if process.poll() is None:
                _kill(process)

    def begin_business(self):
        """Sessions that insert orders for about so many seconds."""
        numbers = list(range(1, self.orders + 1))
        for at in range(SESSIONS):
            script = self.folder / f"session-{at}.sql"
            script.write_text("".join(self._transactions(numbers[at::SESSIONS])))
            self.running.append(
                subprocess.Popen(
                    [*self.database.psql_command, "-f", script],
                    env=self.environment,
                    stdout=subprocess.DEVNULL,
                )
            )
        return self.running[-SESSIONS:]

    def _transactions(self, numbers):
        """Of one session: each inserts some orders with messages, waits, and commits or not."""
        pause = self.seconds / max(1, len(numbers) / 5) / 2
        at = 0
        while at < len(numbers):
            amount = self.chance.randint(1, 9)
            yield "BEGIN;\n"
            for number in numbers[at : at + amount]:
                yield self._order(number)
            yield f"SELECT pg_sleep({self.chance.uniform(0, 2 * pause):.3f});\n"
            yield "ROLLBACK;\n" if self.chance.random() < 0.03 else "COMMIT;\n"
            yield f"SELECT pg_sleep({self.chance.uniform(0, 2 * pause):.3f});\n"
            at += amount

    def _order(self, number):
        amount = self.chance.randint(1, 999) * (-1 if self.chance.random() < 0.01 else 1)
        untimed = amount > 0 and self.chance.random() < 0.01
        due = "NULL" if untimed else f"now() + {self.chance.randint(-5, 3)} * interval '1 s'"
        content = f'{{"number": {number}, "amount": {amount}}}'
        return (
            f"INSERT INTO orders VALUES ({number}, {amount}, {untimed}); INSERT INTO rmq_outbox "
            f"(content, slot_basis, fixed_time) VALUES ('{content}', '{number % 50}', {due});\n"
        )

    def rounds(self):
        """How many rounds of the relay were committed."""
        return int(self.database.psql("SELECT rounds FROM rmq_outbox_checkpoint")[0][0])

    def in_transaction(self):
        """Whether the relay has one open."""
        sql = (
            "SELECT count(*) FROM pg_stat_activity WHERE xact_start IS NOT NULL "
            "AND application_name = 'PostgreSQL JDBC Driver' AND query LIKE '%rmq_outbox%'"
        )
        return self.database.psql(sql) != [["0"]]

    def kill_relay(self, is_last):
        """Starts a relay, lets it work for a random while, kills it. Returns if within a round."""
        before, relay = self.rounds(), self.relay("--interval", "100ms")
        while self.rounds() == before:
            if relay.poll() is not None:
                raise RuntimeError(f"relay_outbox ended: see {self.folder}/relay_outbox.log")
            if is_last():
                break  # nothing is left to relay
            time.sleep(0.05)
        time.sleep(self.chance.uniform(0, 4))
        within = self.in_transaction()
        _kill(relay)
        return within

    def drain(self):
        """Relays and exports until nothing is new, stored or in work."""
        while True:
            assert self.relay("--once").wait(300) == 0, "relay_outbox"
            assert self.export("--once").wait(300) == 0, "export"
            if not self.queue_of().figures().messages:
                return

    def count(self, kills, in_a_round, export_kills):
        """The outcome, from what is in the tables."""

        def number(sql):
            return int(self.database.psql(sql)[0][0])

        topic, table = REFUSED_NUMBERS % "rmq_outbox", REFUSED_NUMBERS % "delivered"
        wrong = [
            f"({topic}) EXCEPT SELECT number FROM orders WHERE untimed",
            f"SELECT number FROM orders WHERE untimed EXCEPT ({topic})",
            f"({table}) EXCEPT SELECT number FROM orders WHERE amount < 0",
            f"SELECT number FROM orders WHERE amount < 0 EXCEPT ({table})",
        ]
        everywhere = f"SELECT number FROM delivered UNION ({topic}) UNION ({table})"
        return Outcome(
            orders=number("SELECT count(*) FROM orders"),
            kills=kills,
            in_a_round=in_a_round,
            export_kills=export_kills,
            delivered=number("SELECT count(DISTINCT number) FROM delivered"),
            twice=number("SELECT count(*) - count(DISTINCT number) FROM delivered"),
            refused_by_topic=number("SELECT count(*) FROM rmq_outbox_exceptions"),
            refused_by_table=number("SELECT count(*) FROM delivered_exceptions"),
            missing=number(
                f"SELECT count(*) FROM (SELECT number FROM orders EXCEPT ({everywhere})) x"
            ),
            unexpected=number(
                f"SELECT count(*) FROM (({everywhere}) EXCEPT SELECT number FROM orders) x"
            ),
            wrongly=sum(number(f"SELECT count(*) FROM ({sql}) x") for sql in wrong),
        )


def _kill(process):
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_round(seed, orders, kills, export_kills, seconds):
    """Runs one, and returns its outcome."""
    with (
        postgres.Postgres() as database,
        LocalRedis(settings={"appendfsync": "always"}) as redis,
        tempfile.TemporaryDirectory(prefix="rmq-outbox-") as folder,
    ):
        this = OutboxRound(database, redis.url, Path(folder), seed, orders, seconds)
        try:
            return _run(this, kills, export_kills)
        except BaseException:
            for log in Path(folder).glob("*.log"):
                sys.stderr.write(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}\n")
            raise
        finally:
            this.end()


def _run(this, kills, export_kills):
    this.database.psql(TABLES)
    assert this.relay("--create-tables", "--once").wait(300) == 0
    business = this.begin_business()
    export = this.export()
    export_at = set(this.chance.sample(range(kills), export_kills))
    in_a_round = 0
    for at in range(kills):
        in_a_round += this.kill_relay(lambda: all(one.poll() is not None for one in business))
        if at in export_at:
            _kill(export)
            export = this.export()
    for session in business:
        assert session.wait(600) == 0, "the business"
    _kill(export)
    this.drain()
    return this.count(kills, in_a_round, export_kills + 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--orders", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--export-kills", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=240, help="in which the orders come")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    outcome = run_round(given.seed, given.orders, given.kills, given.export_kills, given.seconds)
    for name, value in vars(outcome).items():
        sys.stdout.write(f"{name:17} {value:,}\n")
    sys.stdout.write("All orders are where they must be.\n" if outcome.is_right else "WRONG.\n")
    return 0 if outcome.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
