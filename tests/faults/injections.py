"""What is done to the processes, to Redis and to the connections, and all faults by name.

An injection gets a cell and a moment that is held, does its harm, lets the moment go, and brings
back what a supervisor would. It returns whether it hit something.
"""

import os
import signal
import time
from collections.abc import Callable

from rmq_spark.topics.parsing import parse_duration_ms

from ..processes import alive, family, send
from ..rounds.driver import Program
from ..rounds.moments import Call, Gate, Moment
from ..waiting import NotInTime, wait_until
from .cell import DRAIN_S, TOPIC, Cell
from .fallback import FallBackCell
from .fault import (
    ONE,
    SINKS,
    Fault,
    of_calls,
    of_consumer,
    of_failing_task,
    of_plain_producer,
    of_producer,
    of_task,
)
from .past import Dump, Replica
from .redis_cluster import CLUSTER_FAULTS

KILL, TERM = signal.SIGKILL, signal.SIGTERM
SHORT_LEASE = "5s"
# By which a lease is over for certain: Redis' clock is this machine's.
AFTER_LEASE_S = 1.0
PAUSE_S = 10.0
SHORT_TIMEOUT = "2s"
LONGEST_DELAY_S = 4.0
ANOTHER_ATTEMPT_S = 180.0
# On a busy machine a query starts, fails and comes back within this.
GOES_ON_S = 300.0
# Until Redis is full: more than what it needs itself meanwhile, as for connections and the slow
# log, which alone may take 0.6 MB.
ROOM_BYTES = 2 * 1024 * 1024
MESSAGES_THAT_FILL = 5000
FILES_THAT_FILL = 10
FULL = "has reached maxmemory"

Injection = Callable[[Cell, Moment], bool]


# -- processes


def end_driver(query: str, wanted: signal.Signals) -> Injection:
    """The driver of a query ends and is started again; what it had called may come after that."""

    def inject(cell: Cell, moment: Moment) -> bool:
        comes_late = cell.dice.random() < 0.5
        hit = cell.lane.program(query).kill(wanted)
        if not comes_late:
            moment.release()
        cell.begin(query)
        if comes_late:
            cell.lane.program(query).wait("started", query)
            time.sleep(cell.dice.uniform(0, 2))
        return hit

    return inject


def end_reader(wanted: signal.Signals) -> Injection:
    """The reader's Python process of the consumer; its query fails and is started again."""

    def inject(cell: Cell, moment: Moment) -> bool:
        pid = cell.last_caller("due")
        program = cell.lane.program("consumer")
        since = len(program.events)
        hit = pid is not None and send(pid, wanted)
        moment.release()
        if hit:  # what is left of the old run is no moment for the next injection
            program.wait("started", "consumer", since)
        return hit

    return inject


def end_worker(wanted: signal.Signals) -> Injection:
    """The process in whose middle of a call or task we are; Spark runs its task again."""

    def inject(cell: Cell, moment: Moment) -> bool:
        pid = moment.pid()
        return pid is not None and send(pid, wanted)

    return inject


def freeze(cell: Cell, moment: Moment) -> bool:
    """The consumer's driver with all its processes stands still until its lease is over."""
    stopped = [pid for pid in family(cell.lane.program("consumer").pid) if alive(pid)]
    jvm = cell.lane.program("consumer").jvm
    try:
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        moment.release()
        time.sleep(lease_s(cell) + AFTER_LEASE_S)
        return jvm in stopped and alive(jvm)
    finally:
        for pid in reversed(stopped):
            if alive(pid):
                os.kill(pid, signal.SIGCONT)


def come_back_late(cell: Cell, moment: Moment) -> bool:
    """The consumer's driver is killed; its checkpoint starts again when the lease is over."""
    hit, over = _kill_consumer(cell, moment)
    time.sleep(max(0.0, over - time.monotonic()))
    cell.begin("consumer")
    return hit


def be_taken_over(cell: Cell, moment: Moment) -> bool:
    """The same, and another consumer has taken messages meanwhile; it goes on for a while."""
    hit, over = _kill_consumer(cell, moment)
    time.sleep(max(0.0, over - time.monotonic()))
    before = cell.queue.figures().counters
    cell.give_second_half()
    cell.begin("rival", "producer")
    wait_until(
        lambda: cell.queue.figures().counters["claimed"] > before["claimed"],
        "another consumer to take messages",
        GOES_ON_S,
    )
    program = cell.lane.program("producer")
    taken = cell.queue.figures().counters
    cell.begin("consumer")
    cell.lane.program("consumer").wait("started", "consumer")
    time.sleep(cell.dice.uniform(0, 3))
    program.ask("stop", "rival", DRAIN_S)
    return hit and taken["claimed"] > before["claimed"]


def _kill_consumer(cell: Cell, moment: Moment) -> tuple[bool, float]:
    """Whether it hit, and when its lease is over. The next driver starts up meanwhile."""
    hit = cell.lane.program("consumer").kill(KILL)
    moment.release()
    over = time.monotonic() + lease_s(cell) + AFTER_LEASE_S
    cell.lane.program("consumer")
    return hit, over


def lease_s(cell: Cell) -> float:
    return parse_duration_ms("visibilityTimeout", cell.fault.lease) / 1000


# -- Redis


def kill_redis(cell: Cell, moment: Moment) -> bool:
    """kill -9 and, after a moment, a start on the same files."""
    hit = send(cell.redis.pid, KILL)
    cell.redis.kill()
    moment.release()
    time.sleep(cell.dice.uniform(0, 1))
    cell.redis.start()
    return hit


def flush_scripts(cell: Cell, moment: Moment) -> bool:
    """SCRIPT FLUSH before the call that is held."""
    return all(client.script_flush("SYNC") for client in cell.clients())


def kill_connections(cell: Cell, moment: Moment) -> bool:
    """CLIENT KILL of all but our own."""
    killed = [client.client_kill_filter(_type="normal", skipme=True) for client in cell.clients()]
    return sum(killed) > 0


def pause_redis(cell: Cell, moment: Moment) -> bool:
    """The server stands still."""
    os.kill(cell.redis.pid, signal.SIGSTOP)
    try:
        moment.release()
        time.sleep(PAUSE_S)
    finally:
        os.kill(cell.redis.pid, signal.SIGCONT)
    return True


def fill_redis(cell: Cell, moment: Moment) -> bool:
    """maxmemory is reached while the consumer is held; then it drains and sending goes on."""
    client = cell.broker.server.client
    cell.broker.alter(TOPIC, paused=True)  # a call that is held for long is given up: no new one
    client.config_set("maxmemory", client.info("memory")["used_memory"] + ROOM_BYTES)
    try:
        _send_until_refused(cell)
        cell.broker.alter(TOPIC, paused=False)
        moment.release()
        room = "sending to go on when consumers have made room"
        wait_until(lambda: _all_accepted(cell), room, GOES_ON_S)
    finally:
        client.config_set("maxmemory", 0)
        cell.broker.alter(TOPIC, paused=False)
    return True


def fall_back(cell: FallBackCell, moment: Moment) -> bool:
    """Redis is as it was earlier; then new messages come, which are due before all others."""
    hit = cell.fall_back()
    cell.give_second_half()
    return hit


def _send_until_refused(cell: Cell) -> None:
    """File after file; the next when the last one went through."""
    producer = cell.lane.program("producer")
    since = len(producer.events)
    for _ in range(FILES_THAT_FILL):
        cell.feed.give(max(cell.file, MESSAGES_THAT_FILL))
        wait_until(
            lambda: _refused(producer, since) or _all_accepted(cell),
            "a file to be sent or refused",
            GOES_ON_S,
        )
        if _refused(producer, since):
            return
    raise NotInTime(f"{FILES_THAT_FILL} files were sent and Redis is not full")


def _refused(producer: Program, since: int) -> bool:
    return any(FULL in event.get("error", "") for event in producer.events[since:])


def _all_accepted(cell: Cell) -> bool:
    return cell.queue.figures().counters["accepted"] >= cell.feed.given


# -- replies


def delay_reply(cell: Cell, moment: Call) -> bool:
    """Longer or shorter than the client waits for it."""
    time.sleep(cell.dice.uniform(0.2, LONGEST_DELAY_S))
    moment.release()
    return moment.trap.over.wait(10)


def spoil_reply(cell: Cell, moment: Call) -> bool:
    """The trap itself has cut or dropped it."""
    return moment.trap.over.wait(10) and moment.trap.altered


# -- tasks


def see_twin(cell: Cell, moment: Moment) -> bool:
    """The held task is slow, until another attempt of it has begun."""
    return _attempted_again(cell, moment)


def fail_first(cell: Cell, moment: Gate) -> bool:
    """The task has failed by itself; Spark runs it again, and its batch comes to its end.

    Failed four times, a task ends the query, and then there is no other attempt to see.
    """
    done = cell.batches("consumer")
    hit = _attempted_again(cell, moment)
    cell.give_second_half()
    another = "another batch to end"
    wait_until(lambda: cell.batches("consumer") > done, another, GOES_ON_S)
    return hit


def _attempted_again(cell: Cell, moment: Moment) -> bool:
    task = moment.task if isinstance(moment, Gate) else "*"
    try:
        marks = f"again-{task}"
        wait_until(lambda: list(cell.gates.glob(marks)), "another attempt", ANOTHER_ATTEMPT_S)
    except NotInTime:
        return False
    finally:
        for mark in cell.gates.glob("again-*"):
            mark.unlink()
    return True


_AT_LEAST_ONCE = "at least once"
_FROM_THEN_ON = "nothing accepted after it is lost"
FAULTS = (
    Fault("driver-kill", "driver JVM: kill -9", end_driver("consumer", KILL), of_consumer),
    Fault("driver-term", "driver JVM: SIGTERM", end_driver("consumer", TERM), of_consumer),
    Fault("reader-kill", "reader's Python process: kill -9", end_reader(KILL), of_consumer),
    Fault("reader-term", "reader's Python process: SIGTERM", end_reader(TERM), of_consumer),
    Fault("worker-kill", "task worker: kill -9", end_worker(KILL), of_task),
    Fault("worker-term", "task worker: SIGTERM", end_worker(TERM), of_task),
    Fault("producer-kill", "producer: kill -9", end_driver("producer", KILL), of_producer),
    Fault("producer-term", "producer: SIGTERM", end_driver("producer", TERM), of_producer),
    Fault(
        "plain-producer-kill",
        "producer that sends at least once: kill -9",
        end_driver("producer", KILL),
        of_plain_producer,
        promise=_AT_LEAST_ONCE,
        guarantee="atLeastOnce",
    ),
    Fault(
        "freeze",
        "driver: SIGSTOP for longer than the lease",
        freeze,
        of_consumer,
        lease=SHORT_LEASE,
    ),
    Fault(
        "late",
        "driver: kill -9, started again after the lease",
        come_back_late,
        of_consumer,
        lease=SHORT_LEASE,
    ),
    Fault(
        "takeover",
        "driver: kill -9, meanwhile another consumer takes over",
        be_taken_over,
        of_consumer,
        promise=_AT_LEAST_ONCE,
        lease=SHORT_LEASE,
    ),
    Fault(
        "redis-kill",
        "Redis: kill -9 and restart",
        kill_redis,
        of_calls("request", "reply"),
        servers=(ONE,),
    ),
    Fault("script-flush", "Redis: SCRIPT FLUSH", flush_scripts, of_calls("request")),
    Fault(
        "maxmemory",
        "Redis: maxmemory reached",
        fill_redis,
        of_consumer,
        least_keys=FILES_THAT_FILL * MESSAGES_THAT_FILL,
        servers=(ONE,),
    ),
    Fault(
        "client-kill",
        "Redis: CLIENT KILL of all connections",
        kill_connections,
        of_calls("request", "reply"),
    ),
    Fault(
        "pause",
        "Redis: stands still for 10 s",
        pause_redis,
        of_calls("request", "reply"),
        servers=(ONE,),
    ),
    Fault(
        "delay",
        "replies delayed by 0.2 to 4 s, the client waits 2 s",
        delay_reply,
        of_calls("reply"),
        client={"redis.socketTimeout": SHORT_TIMEOUT},
    ),
    Fault("cut", "replies cut half-way", spoil_reply, of_calls("reply", then="cut", hold=False)),
    Fault(
        "drop",
        "replies dropped after execution",
        spoil_reply,
        of_calls("reply", then="drop", hold=False),
    ),
    Fault(
        "speculation",
        "speculative execution, a slow task",
        see_twin,
        of_task,
        speculates=True,
        servers=(ONE,),
    ),
    Fault("task-fails", "a task fails on its first attempt", fail_first, of_failing_task),
    Fault(
        "fallback-rdb",
        "Redis: kill -9, comes back from an RDB of before the batch",
        fall_back,
        of_consumer,
        promise=_FROM_THEN_ON,
        sinks=SINKS,
        past=Dump,
        servers=(ONE,),
    ),
    Fault(
        "fallback-replica",
        "Redis: a replica that lags takes over",
        fall_back,
        of_consumer,
        promise=_FROM_THEN_ON,
        sinks=SINKS,
        past=Replica,
        servers=(ONE,),
    ),
    *CLUSTER_FAULTS,
)
