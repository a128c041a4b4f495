"""A job between a topic and another system is killed (-9) again and again; then a count.

``make ports`` runs a round for each port. An export brings numbered messages into the system, or
``send --stream`` brings numbered rows from it into a topic. The job is killed at random moments:
one third of them soon after it is seen at work, one third anywhere between its start and its work,
one third amid a write, where the port can tell.
After the kills it runs to its end, and what is in the target is counted.

To add a port, write a class in a module of its own, as ``kafka_ports.py`` does, and put it into
``port_table.py``:

- a context manager that starts the servers (in ``__enter__``) and ends them;
- ``arguments``: what the job needs beside its topic and checkpoint, such as ``--to``;
- ``is_once``: whether doubled must be 0;
- the target of an export (``job = "export"``) has ``delivered()``: for each row of the target its
  number and its id, any value that a repeat must share and no other number may have. Where there is
  no such id, return the number again;
- the source of a stream (``job = "send"``) has ``feed(numbers)``: writes rows whose content, as
  ``arguments`` selects it, is the number;
- ``is_within()``, if the port can tell: whether the target is amid a write just now;
- ``figures()``: more figures to print, by name; may be empty.
"""

import argparse
import random
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

from rmq_spark.client import connect

from ..rounds.jobs import jobs_on_a_redis, kill, run_each
from ..rounds.ledger import compared
from ..waiting import wait_until

TOPIC = "Orders"
SLOTS = 8
# A batch takes about a second, so that many kills fall into one.
ROWS_A_BATCH = 400
# How long after it is seen at work the job is killed, at most.
WITHIN_S = 2.0
WORKS_S = 120


@dataclass(frozen=True)
class Outcome:
    """What was counted in the end.

    in_work: kills of a job that was seen at work. wrong_ids: numbers whose repeats have another id,
    or that share one with another number.
    """

    sent: int
    kills: int
    in_work: int
    delivered: int
    lost: int
    doubled: int
    unexpected: int
    wrong_ids: int

    def is_right(self, is_once: bool) -> bool:
        """Whether nothing is lost or wrong, and nothing doubled where that is promised."""
        wrong = self.lost + self.unexpected + self.wrong_ids + (self.doubled if is_once else 0)
        return wrong == 0 and self.delivered > 0


def counted(sent, found, kills, in_work):
    """The outcome. sent: numbers. found: pairs of number and id in the target."""
    times = Counter(number for number, _ in found)
    numbers = compared(sent, times)
    pairs = set(found)
    ids, owners = Counter(number for number, _ in pairs), Counter(each for _, each in pairs)
    wrong = {number for number, each in pairs if ids[number] > 1 or owners[each] > 1}
    return Outcome(
        sent=len(sent),
        kills=kills,
        in_work=in_work,
        delivered=len(times),
        lost=len(numbers.lost),
        doubled=numbers.surplus,
        unexpected=len(numbers.unexpected),
        wrong_ids=len(wrong),
    )


class _Round:
    """One round, in a folder of its own. A subclass knows the way of the messages."""

    def __init__(self, port, redis_url, jobs, seed, messages):
        self.port = port
        self.jobs = jobs
        self.chance = random.Random(seed)
        self.messages = messages
        self.broker = connect(redis_url)
        self.broker.create(TOPIC, "FixedTime", slot_amount=SLOTS)
        self.queue = self.broker.queue(TOPIC)

    def start(self, *arguments):
        kept = ("--topic", TOPIC, "--checkpoint", str(self.jobs.folder / "checkpoint"))
        given = (*kept, *self.port.arguments, *self.limits, *arguments)
        return self.jobs.start(self.port.job, *given)

    def run(self, kills):
        """Run it all, and return the outcome."""
        bounds = [self.messages * at // kills for at in range(kills + 1)]
        in_work, takes_s = 0, 10.0
        for at, (first, end) in enumerate(pairwise(bounds)):
            feeder = threading.Thread(target=self.feed, args=(range(first, end),), daemon=True)
            feeder.start()
            begun, before = time.monotonic(), self.work_done()
            job = self.start()

            def is_at_work(job=job, before=before):
                assert job.poll() is None, f"the job ended: {self.jobs.log_ends()}"
                return self.work_done() != before

            if at % 3 == 1:
                with suppress(AssertionError):
                    wait_until(is_at_work, "work", self.chance.uniform(0.3, 1.3) * takes_s)
            else:
                wait_until(is_at_work, f"{self.port.job} works", WORKS_S)
                takes_s = time.monotonic() - begun
                self.wait_at_work(amid_a_write=at % 3 == 2)
            in_work += is_at_work()
            kill(job)
            feeder.join(300)
        self.drain()
        return counted(set(range(self.messages)), self.found(), kills, in_work)

    def wait_at_work(self, amid_a_write):
        """Wait for the moment of the kill, in a job that works."""
        is_within = getattr(self.port, "is_within", None)
        if not (amid_a_write and is_within):
            time.sleep(self.chance.uniform(0, WITHIN_S))
            return
        is_within()
        with suppress(AssertionError):  # it may have done all before
            wait_until(is_within, "a write", 5)

    def finish(self):
        """Run the job until there is nothing left for it."""
        assert self.start("--once").wait(600) == 0, self.jobs.log_ends()


class ExportRound(_Round):
    """Messages of a topic go into the system."""

    limits = ("-o", f"maxRecordsPerTrigger={ROWS_A_BATCH}")

    def feed(self, numbers):
        for number in numbers:
            self.queue.send([str(number)], slot_basis=str(number % 50), fixed_time=0)

    def work_done(self):
        counters = self.queue.figures().counters
        return counters["claimed"], counters["committed"]

    def drain(self):
        while self.queue.figures().messages:
            self.finish()

    def found(self):
        return list(self.port.delivered())


class SendRound(_Round):
    """Rows of the system go into a topic, and a consumer takes them as they come.

    Messages that wait would merge with a repeat, so the repeats that merged are counted, too.
    """

    limits = ()

    def __init__(self, *given):
        super().__init__(*given)
        self.taken = []
        self.is_over = threading.Event()
        self.consumer = threading.Thread(target=self._consume, daemon=True)
        self.consumer.start()

    def _consume(self):
        with self.broker.consumer(TOPIC, "counter") as consumer:
            while True:
                is_last = self.is_over.is_set()
                batch = consumer.poll(1000, wait="100ms")
                if batch:
                    self.taken += [int(message.content) for message in batch]
                    batch.commit()
                elif is_last:
                    return

    def feed(self, numbers):
        self.port.feed(numbers)

    def work_done(self):
        return self.queue.figures().counters["accepted"]

    def drain(self):
        self.finish()
        self.is_over.set()
        self.consumer.join(300)
        assert not self.queue.figures().messages

    def found(self):
        merged = self.queue.figures().counters["merged"]
        return [*((number, number) for number in self.taken), *([(0, 0)] * merged)]


ROUNDS = {"export": ExportRound, "send": SendRound}


def run_round(port_class, seed, messages, kills):
    """Run one, and return its outcome and the port's own figures."""
    with (
        port_class() as port,
        jobs_on_a_redis(**getattr(port, "variables", {})) as (redis, jobs),
    ):
        this = ROUNDS[port.job](port, redis.url, jobs, seed, messages)
        with this.broker:
            return this.run(kills), port.figures()


def main():
    from .port_table import PORTS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", choices=PORTS, help="default: one after the other")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()

    def run(name):
        outcome, more = run_round(PORTS[name], given.seed, given.messages, given.kills)
        return outcome.is_right(PORTS[name].is_once), {**vars(outcome), **more}

    return run_each([given.port] if given.port else list(PORTS), run)


if __name__ == "__main__":
    sys.exit(main())
