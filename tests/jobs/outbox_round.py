"""Orders come into a database while the outbox job is killed (-9) again and again; then a count.

A business inserts orders, each with its message in the same transaction: several sessions at once,
so that lower ids are committed after higher ones, some transactions rolled back; some write rows
themselves, some call ``Outbox.send``. The relay brings the messages into a topic and is killed at
random moments, half of them within a round; an export brings them into a table whose constraint
refuses some, and is killed as well. It writes back what became of each message. In the end every
order that was committed must be once in the table or, if it was to be refused, in the exceptions,
and be marked so. ``make outbox`` runs it.
"""

import argparse
import json
import random
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

from rmq_spark.client import Message, connect
from rmq_spark.outbox import Outbox

from .. import mariadb, postgres
from ..rounds.jobs import jobs_on_a_redis, kill, run_each
from ..rounds.ledger import compared

SESSIONS = 4
KINDS = {"postgresql": (postgres.Postgres, postgres), "mariadb": (mariadb.MariaDB, mariadb)}
SELECT = (
    "CAST(get_json_object(content, '$.number') AS INT) AS number, "
    "CAST(get_json_object(content, '$.amount') AS INT) AS amount"
)
# Within a round, it is killed at most so much later than it is seen to have begun.
WITHIN_S = 0.03


@dataclass(frozen=True)
class Outcome:
    """What was counted in the end. in_a_round: kills that left a round to be finished.

    missing: committed orders that are nowhere. wrongly: exceptions that should be none, and refused
    orders that are not among them. twice: orders that are anywhere once more. unmarked: messages
    that are marked as neither delivered nor refused, and marks that found another state.
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
    unmarked: int

    @property
    def is_right(self) -> bool:
        """Whether every order is where it must be, once."""
        wrong = (self.missing, self.unexpected, self.wrongly, self.twice, self.unmarked)
        return not any(wrong) and self.delivered > 0


class OutboxRound:
    """One round. jobs: those that it starts, in a folder of its own."""

    def __init__(self, database, driver, redis_url, jobs, seed, orders, seconds):
        self.database = database
        self.driver = driver
        self.jobs = jobs
        self.seed = seed
        self.chance = random.Random(seed)
        self.orders = orders
        self.seconds = seconds
        self.queue_of = lambda: connect(redis_url).queue("Orders")
        self.committed = {}
        login = database.variables
        self.outbox = Outbox(
            database.url, user=login["RMQ_JDBC_USER"], password=login["RMQ_JDBC_PASSWORD"]
        )

    def relay(self, *arguments):
        topic = ("--topic", "Orders", "-o", "topicType=FixedTime", "-o", "slotAmount=4")
        return self.jobs.start("relay_outbox", *topic, "--tracked", "--limit", "300", *arguments)

    def export(self, *arguments):
        into = ("--to", "jdbc", "--table", "delivered", "--select", SELECT)
        kept = ("--checkpoint", str(self.jobs.folder / "export"), "--max-refused", "100000")
        jar = ("--conf", f"spark.jars={self.driver}")
        back = ("--outbox", self.database.url)
        return self.jobs.start("export", *jar, "--topic", "Orders", *into, *kept, *back, *arguments)

    def create_tables(self):
        """The tables of the business and of the outbox, and the topic."""
        options = self.database.table_options
        self.database.sql(
            f"CREATE TABLE orders (number INT PRIMARY KEY){options};"
            "CREATE TABLE delivered (number INT NOT NULL, amount INT CHECK (amount >= 0))"
            f"{options};"
        )
        assert self.relay("--create-tables", "--once").wait(300) == 0

    def begin_business(self):
        """Sessions that insert orders for about so many seconds."""
        numbers = list(range(1, self.orders + 1))
        sessions = [
            threading.Thread(target=self._session, args=(at, numbers[at::SESSIONS]), daemon=True)
            for at in range(SESSIONS)
        ]
        for session in sessions:
            session.start()
        return sessions

    def _session(self, at, numbers):
        """Inserts some orders with messages, waits, and commits or not; again and again."""
        chance = random.Random(f"{self.seed} {at}")
        pause_s = self.seconds / max(1, len(numbers) / 5) / 2
        connection = self.outbox._database.connect()
        done = 0
        while done < len(numbers):
            some = numbers[done : done + chance.randint(1, 9)]
            orders = {number: _order(chance) for number in some}
            with suppress(_RolledBack), connection.transaction():
                self._insert(connection, orders, by_hand=bool(at % 2))
                time.sleep(chance.uniform(0, 2 * pause_s))
                if chance.random() < 0.03:
                    raise _RolledBack
            if not connection.query("SELECT 1 FROM orders WHERE number = %s", [some[0]]):
                orders = {}
            connection.driver.commit()
            self.committed |= orders
            time.sleep(chance.uniform(0, 2 * pause_s))
            done += len(some)
        connection.close()

    def _insert(self, connection, orders, by_hand):
        connection.run_each("INSERT INTO orders VALUES (%s)", [[number] for number in orders])
        given = [
            (_content(number, order), str(number % 50), order[1])
            for number, order in orders.items()
        ]
        if by_hand:
            connection.run_each(
                "INSERT INTO rmq_outbox (content, slot_basis, delay) VALUES (%s, %s, %s)", given
            )
        else:
            self.outbox.send(
                connection.driver,
                [Message(content, slot_basis=basis, delay=ms) for content, basis, ms in given],
            )

    def round(self):
        """How many rounds of the relay have begun, and whether one is open."""
        ((rounds, done),) = self.database.sql("SELECT rounds, done FROM rmq_outbox_relay")
        return int(rounds), rounds != done

    def kill_relay(self, within, is_last):
        """Starts a relay, lets it work for a random while, kills it. Returns if within a round."""
        (before, _), relay = self.round(), self.relay()
        connection = self.outbox._database.connect()
        connection.driver.autocommit = True
        try:
            while self.round()[0] == before and not is_last():
                if relay.poll() is not None:
                    raise RuntimeError(f"relay_outbox ended: {self.jobs.log_ends()}")
            time.sleep(self.chance.uniform(0, 4))
            open_round = "SELECT 1 FROM rmq_outbox_relay WHERE rounds <> done"
            while within and not is_last() and not connection.query(open_round):
                pass
            time.sleep(self.chance.uniform(0, WITHIN_S))
        finally:
            connection.close()
        kill(relay)
        return self.round()[1]

    def drain(self):
        """Relays and exports until nothing is new, stored or in progress."""
        while True:
            assert self.relay("--once").wait(300) == 0, "relay_outbox"
            assert self.export("--once").wait(300) == 0, "export"
            if not self.queue_of().figures().messages:
                return

    def count(self, kills, in_a_round, export_kills):
        """The outcome, from what is in the tables."""

        def refused(table):
            rows = self.database.sql(
                f"SELECT content FROM {table}_exceptions WHERE content IS NOT NULL"
            )
            return Counter(json.loads(content)["number"] for (content,) in rows)

        delivered = Counter(int(n) for (n,) in self.database.sql("SELECT number FROM delivered"))
        by_topic, by_table = refused("rmq_outbox"), refused("delivered")
        found = compared(self.committed.keys(), delivered + by_topic + by_table)
        untimed = {number for number, (_, delay) in self.committed.items() if delay is None}
        negative = {number for number, (amount, _) in self.committed.items() if amount < 0}
        states = dict(self.database.sql("SELECT state, count(*) FROM rmq_outbox GROUP BY state"))
        marked = {"delivered": len(delivered), "refused": len(by_topic) + len(by_table)}
        unmarked = sum(
            abs(int(states.get(state, 0)) - marked.get(state, 0)) for state in states | marked
        )
        ((surprised,),) = self.database.sql(
            "SELECT count(*) FROM rmq_outbox_exceptions WHERE content IS NULL"
        )
        return Outcome(
            orders=len(self.committed),
            kills=kills,
            in_a_round=in_a_round,
            export_kills=export_kills,
            delivered=len(delivered),
            twice=found.surplus,
            refused_by_topic=len(by_topic),
            refused_by_table=len(by_table),
            missing=len(found.lost),
            unexpected=len(found.unexpected),
            wrongly=len(untimed ^ by_topic.keys()) + len(negative ^ by_table.keys()),
            unmarked=unmarked + int(surprised),
        )


class _RolledBack(Exception):
    """Ends a transaction that the business gives up."""


def _order(chance):
    """An amount and a delay. The table refuses negative amounts, the topic what has no delay."""
    amount = chance.randint(1, 999) * (-1 if chance.random() < 0.01 else 1)
    return amount, None if amount > 0 and chance.random() < 0.01 else chance.randint(0, 3000)


def _content(number, order):
    return json.dumps({"number": number, "amount": order[0]})


def run_round(kind, seed, orders, kills, export_kills, seconds):
    """Runs one, and returns its outcome."""
    server, module = KINDS[kind]
    with server() as database, jobs_on_a_redis(**database.variables) as (redis, jobs):
        given = (module.driver(), redis.url, jobs, seed, orders, seconds)
        return _run(OutboxRound(database, *given), kills, export_kills)


def _run(this, kills, export_kills):
    this.create_tables()
    business = this.begin_business()
    export = this.export()
    export_at = set(this.chance.sample(range(kills), export_kills))
    in_a_round = 0
    for at in range(kills):
        in_a_round += this.kill_relay(
            within=bool(at % 2), is_last=lambda: not any(one.is_alive() for one in business)
        )
        if at in export_at:
            kill(export)
            export = this.export()
    for session in business:
        session.join(600)
    kill(export)
    this.drain()
    return this.count(kills, in_a_round, export_kills + 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--database", choices=KINDS, help="default: one after the other")
    parser.add_argument("--orders", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--export-kills", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=120, help="in which the orders come")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()

    def run(kind):
        outcome = run_round(
            kind, given.seed, given.orders, given.kills, given.export_kills, given.seconds
        )
        return outcome.is_right, vars(outcome)

    return run_each([given.database] if given.database else list(KINDS), run)


if __name__ == "__main__":
    sys.exit(main())
