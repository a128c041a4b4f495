"""Services with a listener that are killed, ended and stopped: no message is lost."""

import itertools
import signal
import time
from collections import Counter, deque

import pytest

from rmq_spark.client import connect
from rmq_spark.client.queue import overview_of
from rmq_spark.client.receiving.listener_settings import DEFAULT_WORKERS
from rmq_spark.protocol.pages import first_entries

from ..rounds.service import TOPIC, Service
from ..seeding import numbered
from ..waiting import is_drained, wait_until

SHORT_LEASE, LEASE = "2s", "60s"


@pytest.fixture
def broker(own_redis):
    with connect(own_redis.url) as connected:
        connected.create(TOPIC, "FixedTime", 4)
        yield connected


@pytest.fixture(
    params=[
        "threads",
        pytest.param("processes", marks=pytest.mark.long),
        pytest.param("asyncio", marks=pytest.mark.long),
    ]
)
def service(request, own_redis, broker, tmp_path):
    made = Service(request.param, own_redis.url, tmp_path)
    yield made
    made.close()


def send(broker, contents, topic=TOPIC):
    broker.queue(topic).send(contents, fixed_time=1000)


def test_a_service_that_is_killed_loses_nothing(broker, service):
    for number in range(5):
        send(broker, numbered(2000, start=2000 * number))
        process = service.start()
        service.wait_for_more()
        process.kill()
        process.wait()
    service.start()
    wait_until(lambda: is_drained(broker.queue(TOPIC)), "all messages")
    assert set(service.counts()) == set(numbered(10_000))
    assert broker.queue(TOPIC).figures().dead.count == 0


@pytest.mark.long
def test_services_that_are_killed_keep_to_the_rate_limit_together(broker, service):
    """Claims are counted by Redis' clock, in every second that two looks span.

    Of each worker, one claim may be late: a process stood still after it had taken its permits.
    """
    rate, burst = 200, 50
    limited = broker.alter(TOPIC, rate=f"{rate}/s", burst=burst)
    late = 3 * DEFAULT_WORKERS * limited.messages_a_claim
    queue, looks = broker.queue(TOPIC), deque[tuple[int, int]]()
    send(broker, numbered(2000))
    names = itertools.cycle(("first", "second"))
    running, kills = {name: service.start(name) for name in ("first", "second")}, 0
    while not is_drained(broker.queue(TOPIC)):
        seen = overview_of(queue)
        looks.append((seen.now_ms, seen.figures.counters["claimed"]))
        while looks[0][0] < seen.now_ms - 1000:
            looks.popleft()
        assert looks[-1][1] - looks[0][1] <= rate + burst + late
        if kills < 5 and looks[-1][1] > 200 * (kills + 1):
            name = next(names)
            running[name].kill()
            running[name].wait()
            running[name] = service.start(name)
            kills += 1
    assert kills == 5
    assert set(service.counts()) == set(numbered(2000))


VERDICTS = {3: b"-bury", 8: b"-retry", 13: b"-snooze"}  # the snoozed ones come again and again


def with_verdicts(count):
    """A fifth of the messages say what becomes of them."""
    return [
        name + VERDICTS.get(number % (100 if number % 100 == 13 else 10), b"")
        for number, name in enumerate(numbered(count))
    ]


def check_verdicts(broker, contents, services, replays=0):
    """All have ended as they say once those that snooze are awake; no charge was too many.

    replays: how often a query was killed. A batch that it replays costs its messages a retry.
    """
    queue = broker.queue(services[0].topic)
    of = {verdict: [c for c in contents if c.endswith(verdict)] for verdict in VERDICTS.values()}

    def only_snoozed_are_left():
        figures = queue.figures()
        waiting = [figures.store.count, figures.prepare.count, figures.retry.count]
        return sum(waiting) == len(of[b"-snooze"])

    wait_until(only_snoozed_are_left, "all others", 600)
    for service in services:
        service.noted.with_name("noted-awake").touch()
    wait_until(lambda: is_drained(broker.queue(services[0].topic)), "the snoozed ones", 600)
    noted = {content for service in services for content in service.counts()}
    counted = [(c, int(count)) for c, _, count in (c.partition(b":") for c in noted if b":" in c)]
    assert {c for c in noted if b":" not in c} == {c for c in contents if b"-" not in c}
    for verdict, deliveries in ((b"-snooze", 1), (b"-retry", 2)):
        of_verdict = [(c, count) for c, count in counted if c.endswith(verdict)]
        assert {c for c, _ in of_verdict} == set(of[verdict])
        assert {count for _, count in of_verdict} <= {*range(deliveries, deliveries + replays + 1)}
    dead = [
        e for slot in queue.slots for e in first_entries(queue.pages("dead", slot), len(contents))
    ]
    assert sorted(entry.content for entry in dead) == sorted(of[b"-bury"])
    assert all(entry.reason.startswith("Bury: as it says") for entry in dead)


def test_verdicts_of_a_service_that_is_killed_are_kept(broker, service):
    """Three losses of a claim charge none of its messages (docs/protocol.md)."""
    contents = with_verdicts(8000)
    for number in range(4):
        send(broker, contents[2000 * number :][:2000])
        process = service.start()
        service.wait_for_more()
        if number < 3:
            process.kill()
            process.wait()
    check_verdicts(broker, contents, [service])


@pytest.mark.rounds
@pytest.mark.timeout(3600)
def test_verdicts_hold_while_listeners_and_a_query_are_killed(broker, own_redis, tmp_path):
    contents = with_verdicts(100_000)
    services, processes, kills = {}, {}, Counter()
    # The query has a topic of its own: listeners are quicker.
    topics = {"query": "Invoices"} | dict.fromkeys(("threads", "processes", "asyncio"), TOPIC)
    broker.create("Invoices", "FixedTime", 4)
    for kind, topic in topics.items():
        (tmp_path / kind).mkdir()
        services[kind] = Service(kind, own_redis.url, tmp_path / kind, topic)
        processes[kind] = services[kind].start(kind)
    parts = iter([contents[first:][:250] for first in range(0, len(contents), 250)])
    try:
        for kind in itertools.cycle(topics):
            seen = services[kind].counts().total()
            while services[kind].counts().total() < seen + 50 and (part := next(parts, None)):
                for topic in set(topics.values()):
                    send(broker, part, topic)
                time.sleep(1)  # a query takes seconds to start
            if part is None:
                break
            processes[kind].kill()
            processes[kind].wait()
            kills[kind] += 1
            processes[kind] = services[kind].start(kind)
        check_verdicts(broker, contents, [services["query"]], replays=kills["query"])
        check_verdicts(broker, contents, [services[kind] for kind in topics if kind != "query"])
        assert min(kills[kind] for kind in topics) > 1, kills
    finally:
        for service in services.values():
            service.close()


def test_a_service_that_is_ended_by_a_signal_leaves_nothing_half_done(broker, service):
    for number in range(5):
        send(broker, numbered(2000, start=2000 * number))
        process = service.start()
        service.wait_for_more()
        process.send_signal((signal.SIGTERM, signal.SIGINT)[number % 2])
        assert process.wait(60) == 0
        assert broker.queue(TOPIC).figures().prepare.count == 0
    service.start()
    wait_until(lambda: is_drained(broker.queue(TOPIC)), "all messages")
    assert service.counts() == Counter(numbered(10_000))


def test_a_service_that_stands_still_past_its_lease_gives_its_messages_to_another(broker, service):
    slow = service.start("slow", SHORT_LEASE)
    send(broker, numbered(3000))
    service.wait_for_more()
    slow.send_signal(signal.SIGSTOP)
    service.start("other", SHORT_LEASE)
    wait_until(lambda: is_drained(broker.queue(TOPIC)), "all messages")
    slow.send_signal(signal.SIGCONT)
    send(broker, numbered(2000, start=3000))
    wait_until(lambda: is_drained(broker.queue(TOPIC)), "all messages once more")
    assert set(service.counts()) == set(numbered(5000))
    slow.send_signal(signal.SIGTERM)
    assert slow.wait(60) == 0


def test_a_service_goes_on_when_redis_comes_back(broker, service, own_redis):
    send(broker, numbered(500))
    process = service.start()
    wait_until(lambda: is_drained(broker.queue(TOPIC)), "all messages")
    broker.server.client.save()
    own_redis.kill()
    own_redis.start()
    send(broker, numbered(500, start=500))
    wait_until(lambda: is_drained(broker.queue(TOPIC)), "all messages once more")
    assert process.poll() is None
    assert set(service.counts()) == set(numbered(1000))
