"""How long do 99 quiet slot bases wait while a noisy one has a million messages before them?

The noisy slot basis has sent all of its messages before each quiet one sends ten. All are due. Four
processes then begin at the same time to consume the 16 slots: listeners that call a function for
each message, or consumers that take batches of 500. A wait is the time from this beginning until a
message of a quiet slot basis is handed out. It is compared with the same load without the noisy
slot basis, and told apart for those that share its slot.
"""

import multiprocessing
import time
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event

import numpy as np
import redis
from measuring import Figure, Report, arguments_of

import rmq_spark
from rmq_spark.local.redis import LocalRedis

SLOTS, CONSUMERS, QUIET, EACH = 16, 4, 99, 10
WORKERS, BATCH = 4, 500
MESSAGES_A_SEND = 50_000
ENDS_S = 600.0
Waits = list[tuple[int, float]]  # the slot of a quiet message, and when it was handed out


def listen(url: str, name: str, is_begun: Event, is_over: Event, noted: Waits) -> None:
    """Calls a function for each message."""

    def note(message: rmq_spark.Delivered) -> None:
        if message.content.startswith(b"quiet"):  # type: ignore[union-attr]
            noted.append((message.slot, time.time()))

    broker = rmq_spark.connect(url)
    is_begun.wait()
    with broker.listen("Bench", name, note, workers=WORKERS):
        is_over.wait()


def consume(url: str, name: str, is_begun: Event, is_over: Event, noted: Waits) -> None:
    """Takes batches."""
    broker = rmq_spark.connect(url)
    with broker.consumer("Bench", name) as consumer:
        is_begun.wait()
        while not is_over.is_set():
            batch = consumer.poll(BATCH, wait="100ms")
            now_s = time.time()
            for message in batch:
                if message.content.startswith(b"quiet"):  # type: ignore[union-attr]
                    noted.append((message.slot, now_s))
            batch.commit()


HOW = {"listeners": listen, "batches": consume}


def run(how: str, url: str, name: str, begun: Event, over: Event, told: Connection) -> None:
    """One of the processes. Tells that it is ready, and at the end what it has noted."""
    noted: Waits = []
    rmq_spark.connect(url).queue("Bench").now_ms()
    told.send("ready")
    HOW[how](url, name, begun, over, noted)
    told.send(noted)


def waits_s(how: str, url: str, noise: int) -> tuple[int, Waits]:
    """Returns the slot of the noisy slot basis, and the waits of all quiet messages."""
    broker = rmq_spark.connect(url)
    redis.Redis.from_url(url).flushdb()
    broker.create("Bench", "FixedTime", SLOTS)
    queue = broker.queue("Bench")
    for start in range(0, noise, MESSAGES_A_SEND):
        numbers = range(start, min(noise, start + MESSAGES_A_SEND))
        queue.send([f"noise {n:07d}" for n in numbers], slot_basis="noisy", fixed_time=0)
    for tenant in range(QUIET):
        contents = [f"quiet {tenant} {n}" for n in range(EACH)]
        queue.send(contents, slot_basis=f"tenant {tenant}", fixed_time=0)
    context = multiprocessing.get_context("spawn")
    begun, over = context.Event(), context.Event()
    pipes = [context.Pipe() for _ in range(CONSUMERS)]
    processes = [
        context.Process(target=run, args=(how, url, f"c{at}", begun, over, there), daemon=True)
        for at, (_, there) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    for here, _ in pipes:
        here.recv()
    begin_s = time.time()
    begun.set()
    wait_for_the_quiet(queue, noise)
    over.set()
    noted = [each for here, _ in pipes for each in here.recv()]
    for process in processes:
        process.join()
    broker.close()
    return queue.definition.slot_of("noisy"), [(slot, at_s - begin_s) for slot, at_s in noted]


def wait_for_the_quiet(queue: rmq_spark.Queue, noise: int) -> None:
    """Until all quiet messages are committed."""
    end = time.monotonic() + ENDS_S
    wanted = [f"quiet {tenant} {n}" for tenant in range(QUIET) for n in range(EACH)]
    by_slot: dict[int, list[bytes | str]] = {}
    for content in wanted:
        tenant = content.split()[1]
        by_slot.setdefault(queue.definition.slot_of(f"tenant {tenant}"), []).append(content)
    while left := len(queue.find(by_slot)):
        time.sleep(0.2)
        if time.monotonic() > end:
            raise SystemExit(f"{left} quiet messages of {noise + len(wanted)} are left")


def main() -> None:
    """Measures, and writes fairness.json and fairness.md."""
    arguments = arguments_of(__doc__, messages=1_000_000, rounds=3).parse_args()
    report = Report.of("fairness", __doc__)
    with LocalRedis(arguments.redis) as server:
        for how in HOW:
            found: dict[str, list[float]] = {}
            for _ in range(arguments.rounds):
                slot, alone = waits_s(how, server.url, 0)
                _, beside = waits_s(how, server.url, arguments.messages)
                for name, waits in (("alone", alone), ("beside", beside)):
                    for where, of in (("other slots", False), ("the same slot", True)):
                        of_kind = [wait for at, wait in waits if (at == slot) is of]
                        for part in (50, 100):
                            value = float(np.percentile(of_kind, part))
                            found.setdefault(f"{name} {where} {part}", []).append(value)
            for where in ("other slots", "the same slot"):
                for part, words in ((50, "half"), (100, "all")):
                    name = f"{how}: until {words} of the quiet in {where} came"
                    values = found[f"beside {where} {part}"]
                    base = found[f"alone {where} {part}"]
                    report.add(Figure(name, "s", values, "without the noise", base))
        report.write(arguments.results, server)


if __name__ == "__main__":
    main()
