"""How soon does the console show very large queues, and how long does a look block Redis?

A console, as a process of its own, has three pages open as a browser has them. How long a page
takes includes HTTP. How long each call took is what Redis' own slow log says, in which it notes all
of them. Then a job requeues all dead messages, is stopped half-way and resumed, and all is counted.
"""

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from measuring import NOTING, Calls, Figure, Report, arguments_of, at, noting
from storing import SPAN_MS, store_dead, store_waiting

import rmq_spark
from rmq_spark.client import Broker
from rmq_spark.local.redis import LocalRedis

SLOTS = 64
P95_MS, LONGEST_CALL_MS, MOST_CPU_PERCENT = 300.0, 5.0, 5.0
# Each open page, and how often it asks for itself again (data-every in the templates).
OPEN_PAGES = {"/topics": 4.0, "/topics/T0": 3.0, "/consumers": 5.0}
OTHER_PAGES = (
    *("/topics/T0/messages", "/topics/T0/messages?find=nothing", "/topics/T0/dead"),
    *("/topics/T0/messages?queue=dead", "/server", "/jobs"),
)
SAME_SITE = {"Sec-Fetch-Site": "same-origin"}


def main() -> None:
    """Measures, and writes console.json and console.md."""
    arguments = arguments_of(
        __doc__, messages=20_000_000, dead=1_000_000, topics=50, seconds=60, looks=20
    ).parse_args()
    report = Report.of("console", __doc__)
    with LocalRedis(arguments.redis, NOTING) as server:
        broker = rmq_spark.connect(server.url)
        fill(broker, arguments.messages, arguments.dead, arguments.topics)
        with console(server.url) as address, httpx.Client(base_url=address, timeout=120) as client:
            for page in (*OPEN_PAGES, *OTHER_PAGES):
                client.get(page).raise_for_status()  # the first one also makes connections
            measure_open_pages(report, broker, address, arguments.seconds)
            measure_other_pages(report, broker, client, arguments.looks)
            measure_job(report, broker, client, arguments.dead)
        report.notes.append(
            f"{arguments.messages:,} messages and {arguments.dead:,} dead ones in "
            f"{arguments.topics} topics of {SLOTS} slots."
        )
        report.write(arguments.results, server)
        broker.close()


def fill(broker: Broker, messages: int, dead: int, topics: int) -> None:
    """Stores messages as if they had been sent: a tenth is due. The dead are of the first topic."""
    begun, now_ms = time.monotonic(), broker.server.now_ms()
    due_ms = now_ms - SPAN_MS // 10
    for number in range(topics):
        broker.create(f"T{number}", "FixedTime", SLOTS)
        queue = broker.queue(f"T{number}")
        for slot in range(SLOTS):
            store_waiting(queue, slot, messages // topics // SLOTS, due_ms)
    queue = broker.queue("T0")
    for slot in range(SLOTS):
        store_dead(queue, slot, dead // SLOTS, now_ms)
    print(f"filled in {time.monotonic() - begun:.0f} s", flush=True)


@contextmanager
def console(url: str) -> Iterator[str]:
    """A console that may change what is there; yields its address."""
    command = [sys.executable, "-m", "rmq_spark.cli", "--redis-url", url, "console"]
    process = subprocess.Popen(
        [*command, "--port", "0", "--allow-changes"], stdout=subprocess.PIPE, text=True
    )
    try:
        yield str(process.stdout.readline()).strip() if process.stdout else ""
    finally:
        process.terminate()  # SIGINT is ignored where the bench runs in the background
        process.wait(30)


def measure_open_pages(report: Report, broker: Broker, address: str, seconds: int) -> None:
    """How soon open pages are answered, and what they cost; and that closed ones cost nothing."""
    with open_pages(address) as spent_ms:
        spent = cpu_percent(broker, seconds)
    for page, of_page in spent_ms.items():
        add_p95(report, page, of_page)
    report.add(
        Figure("CPU of Redis, three pages open", "% of a core", [spent], at_most=MOST_CPU_PERCENT)
    )
    before = commands(broker)
    time.sleep(10)
    asked = commands(broker) - before - 1  # this bench's own
    report.add(Figure("commands within 10 s, no page open", "commands", [asked], at_most=0))
    with noting(broker) as calls, open_pages(address):
        time.sleep(seconds / 4)
    add_longest(report, "three pages open", calls)


def add_p95(report: Report, page: str, spent_ms: list[float]) -> None:
    """Adds how soon a page is answered."""
    report.add(Figure(f"{page}, p95", "ms", [at(sorted(spent_ms), 0.95)], at_most=P95_MS))


@contextmanager
def open_pages(address: str) -> Iterator[dict[str, list[float]]]:
    """Three pages, each of which is asked for again and again; yields how long each look took."""
    ended, spent_ms = threading.Event(), {page: list[float]() for page in OPEN_PAGES}

    def look(page: str) -> None:
        with httpx.Client(base_url=address, timeout=120) as client:
            while not ended.wait(OPEN_PAGES[page]):
                spent_ms[page].append(look_ms(client, page))

    threads = [threading.Thread(target=look, args=[page]) for page in OPEN_PAGES]
    for thread in threads:
        thread.start()
    try:
        yield spent_ms
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def look_ms(client: httpx.Client, page: str) -> float:
    """How long a page takes."""
    begun = time.perf_counter()
    client.get(page).raise_for_status()
    return 1000 * (time.perf_counter() - begun)


def cpu_percent(broker: Broker, seconds: int) -> float:
    """How much of a core Redis uses meanwhile."""
    begun_s, before = time.monotonic(), cpu_s(broker)
    time.sleep(seconds)
    return 100 * (cpu_s(broker) - before) / (time.monotonic() - begun_s)


def cpu_s(broker: Broker) -> float:
    """The CPU time that Redis has used."""
    info = broker.server.client.info("cpu")
    return float(info["used_cpu_user"] + info["used_cpu_sys"])


def commands(broker: Broker) -> int:
    """How many commands Redis has run."""
    return int(broker.server.client.info("stats")["total_commands_processed"])


def measure_other_pages(report: Report, broker: Broker, client: httpx.Client, looks: int) -> None:
    """How soon pages are answered that do not ask again, while three others are open."""
    with open_pages(str(client.base_url)), noting(broker) as calls:
        for page in OTHER_PAGES:
            spent_ms = []
            for _ in range(looks):
                spent_ms.append(look_ms(client, page))
                time.sleep(0.2)
            add_p95(report, page, spent_ms)
    add_longest(report, "all these pages", calls)


def add_longest(report: Report, name: str, calls: Calls) -> None:
    """Adds the longest call to Redis, and how many there were."""
    longest_ms, command = max(calls, default=(0.0, "none"))
    print(f"longest: {command}", flush=True)
    name = f"longest of {len(calls):,} calls, {name}"
    report.add(Figure(name, "ms", [longest_ms], at_most=LONGEST_CALL_MS))
    over = sum(1 for spent_ms, _ in calls if spent_ms > LONGEST_CALL_MS)
    report.add(Figure(f"of these over {LONGEST_CALL_MS:g} ms", "calls", [over]))


def measure_job(report: Report, broker: Broker, client: httpx.Client, dead: int) -> None:
    """Requeues all dead messages, with a stop half-way, and counts."""
    queue = broker.queue("T0")
    before = queue.figures()
    whole = before.store.count + before.dead.count
    begun = time.monotonic()
    with noting(broker, above_us=1000) as calls:
        post(client, "/topics/T0/job", action="requeue")
        while job(client)["changed"] < dead // 2 and job(client)["state"] == "running":
            time.sleep(0.1)
        post(client, "/jobs/1/stop")
        stopped, half = queue.figures(), job(client)
        check(half["state"] == "stopped", f"the job is {half['state']}, not stopped")
        check(stopped.dead.count == before.dead.count - half["changed"], "lost or doubled")
        post(client, "/jobs/1/resume")
        while job(client)["state"] == "running":
            time.sleep(0.1)
    spent_s = time.monotonic() - begun
    after, done = queue.figures(), job(client)
    check(done["state"] == "done", f"the job is {done['state']}, not done")
    check(done["changed"] == before.dead.count, f"{done['changed']:,} changed")
    check(after.dead.count == 0, f"{after.dead.count:,} are still dead")
    check(after.store.count == whole, f"{after.store.count:,} of {whole:,} are stored")
    accepted = after.counters["accepted"] - before.counters["accepted"]
    check(accepted == before.dead.count, f"{accepted:,} accepted")
    check(after.counters["merged"] == before.counters["merged"], "some merged")
    print(f"stopped after {half['changed']:,}, then all {done['changed']:,} requeued", flush=True)
    report.add(Figure("requeue of the dead", "messages/s", [before.dead.count / spent_s]))
    add_longest(report, "over 1 ms, requeue", calls)


def check(holds: bool, text: str) -> None:
    """Ends the bench where a count is wrong."""
    if not holds:
        raise SystemExit(f"console: {text}")


def post(client: httpx.Client, path: str, **fields: str) -> None:
    """Sends a form as its page does."""
    found = re.findall(r'name="mark" value="(\w+)"', client.get("/topics/T0").text)
    form = {"mark": found[0], "back": "/jobs", **fields}
    answer = client.post(path, data=form, headers=SAME_SITE)
    check(answer.status_code == 303, f"{path}: {answer.status_code}")


def job(client: httpx.Client) -> dict[str, Any]:
    """The state of the job."""
    return dict(client.get("/api/jobs").json()["jobs"][0])


if __name__ == "__main__":
    main()
