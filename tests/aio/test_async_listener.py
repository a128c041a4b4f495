"""A listener for asyncio: a coroutine function is called for every message."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress

import pytest
from prometheus_client import CollectorRegistry

from rmq_spark.aio import client as client_module
from rmq_spark.client.receiving import callers
from rmq_spark.client.receiving.listener import Listener
from rmq_spark.client.receiving.listener_settings import place_of
from rmq_spark.errors import ConsumerMisused, InvalidOption, UnknownTopic
from rmq_spark.inspect.prometheus import ListenerCollector
from rmq_spark.process import stopped_by_signals
from rmq_spark.redis.server import Server

from ..logs import logged
from ..seeding import numbered
from ..waiting import is_drained, wait_until


async def until(holds):
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


def test_a_coroutine_function_runs_in_the_loop_of_the_program(connected, topic):
    topic.send(numbered(200), fixed_time=1000)
    loops, got = set(), []

    async def work(message):
        loops.add(asyncio.get_running_loop())
        await asyncio.sleep(0)
        got.append(message.content)

    async def main():
        async with await connected() as broker, broker.listen("T", "a", work) as listener:
            await until(lambda: listener.succeeded == 200)
            assert loops == {asyncio.get_running_loop()}

    asyncio.run(main())
    assert sorted(got) == numbered(200)
    assert is_drained(topic)


def test_a_call_that_goes_on_when_it_is_cancelled_does_not_hold_its_slot(
    connected, topic, monkeypatch
):
    """Failed before: its slot gave no message any more, and nobody was told."""
    monkeypatch.setattr(callers, "_CANCELLED_S", 0.1)
    topic.send([b"stubborn"], fixed_time=1000, slot_basis=b"one")
    topic.send([b"next"], fixed_time=2000, slot_basis=b"one")
    over, done = asyncio.Event(), []

    async def work(message):
        while message.content == b"stubborn" and not over.is_set():
            with suppress(asyncio.CancelledError):
                await over.wait()
        done.append(message.content)

    async def main():
        async with (
            await connected() as broker,
            broker.listen("T", "a", work, timeout="1s", delay="1h") as listener,
        ):
            try:
                await until(lambda: (listener.succeeded, listener.failed) == (1, 1))
            finally:
                over.set()

    asyncio.run(main())
    assert done[0] == b"next"
    assert topic.figures().retry.count == 1


def test_a_call_that_takes_too_long_is_cancelled_and_its_message_comes_again(connected, topic):
    cancelled = []

    async def work(message):
        try:
            if message.delivery_count == 1:
                await asyncio.sleep(1000)
        except asyncio.CancelledError:
            cancelled.append(message.content)
            raise

    async def main():
        topic.send([b"m"], fixed_time=1000)
        async with (
            await connected() as broker,
            broker.listen("T", "a", work, timeout="1s") as listener,
        ):
            await until(lambda: (listener.succeeded, listener.failed) == (1, 1))

    asyncio.run(main())
    assert cancelled == [b"m"]


async def raise_its_own(message):
    raise TimeoutError("of the function itself")


async def hang(message):
    await asyncio.sleep(1000)


@pytest.mark.parametrize(
    ("work", "timeout", "reason"),
    [
        (raise_its_own, None, "TimeoutError: of the function itself ("),
        (hang, "100ms", "TimeLimitExceeded: took longer than 100ms"),
    ],
)
def test_what_ended_a_call_is_the_reason(connected, topic, work, timeout, reason):
    topic.send([b"m"], fixed_time=1000)

    async def main():
        async with (
            await connected() as broker,
            broker.listen("T", "a", work, timeout=timeout) as listener,
        ):
            await until(lambda: listener.failed == 2)

    asyncio.run(main())
    assert topic.figures().dead.count == 1
    (page,) = (page for slot in topic.slots for page in topic.pages("dead", slot) if page.contents)
    assert page.deaths[0].reason.startswith(reason)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_what_is_in_work_and_gives_back_the_rest(connected, topic, number):
    topic.send(numbered(50), fixed_time=1000, slot_basis=b"one")
    got = []

    async def work(message):
        os.kill(os.getpid(), number)
        await asyncio.sleep(0.1)
        got.append(message.content)

    async def main():
        async with await connected() as broker:
            await broker.listen("T", "a", work).run()

    asyncio.run(main())
    assert len(got) == 1
    figures = topic.figures()
    assert (figures.prepare.count, figures.store.count) == (0, 49)


def test_a_cancelled_run_finishes_what_is_in_work(connected, topic):
    topic.send(numbered(50), fixed_time=1000, slot_basis=b"one")
    got = []

    async def work(message):
        await asyncio.sleep(0.1)
        got.append(message.content)

    async def main():
        async with await connected() as broker:
            running = asyncio.create_task(broker.listen("T", "a", work).run())
            await until(lambda: got)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

    asyncio.run(main())
    figures = topic.figures()
    assert (figures.prepare.count, figures.store.count) == (0, 50 - len(got))


def test_what_outlasts_the_grace_of_a_stop_is_cancelled_and_comes_again(connected, topic):
    topic.send([b"m"], fixed_time=1000)
    begun, cancelled = asyncio.Event(), []

    async def work(message):
        begun.set()
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            cancelled.append(message.content)
            raise

    async def main():
        async with await connected() as broker:
            listener = broker.listen("T", "a", work)
            running = asyncio.create_task(listener.run())
            await begun.wait()
            listener.stop(grace="10ms")
            await running

    asyncio.run(main())
    assert cancelled == [b"m"]
    figures = topic.figures()
    assert figures.store.count + figures.retry.count == 1
    assert figures.prepare.count == 0


def test_an_object_whose_call_is_async_is_accepted(connected, topic):
    """Failed before: it was refused, with the advice to use it where each call then failed."""

    class Billing:
        async def __call__(self, message):
            await asyncio.sleep(0)

    async def main():
        async with await connected() as broker, broker.listen("T", "a", Billing()) as listener:
            await until(lambda: listener.succeeded == 1)

    topic.send([b"one"], fixed_time=1000)
    asyncio.run(main())


def test_what_is_no_coroutine_function_is_refused(connected, topic):
    async def work(message):
        pass

    async def main():
        async with await connected() as broker:
            with pytest.raises(InvalidOption, match="Accepted: an async function"):
                broker.listen("T", "a", print)
            with pytest.raises(InvalidOption, match="processes=True"):
                broker.listen("T", "a", main, processes=True)
            with pytest.raises(InvalidOption, match="workers=0"):
                await broker.listen("T", "a", work, workers=0).run()
            with pytest.raises(UnknownTopic):
                await broker.listen("Nope", "a", work).run()
            with pytest.raises(InvalidOption, match="cannot be called with a message"):
                await broker.listen("T", "a", main).run()
            with pytest.raises(UnknownTopic):
                async with broker.listen("Nope", "a", work):
                    pytest.fail("the block began")
            with pytest.raises(ConsumerMisused, match="Use it in an async with statement"):
                await broker.consumer("T", "a").poll()

    asyncio.run(main())


def test_a_listener_that_ends_by_an_error_logs_it_and_raises_it_at_the_end_of_its_block(
    connected, broker, topic, caplog
):
    """Failed before: until the end of its block, nothing told why it had ended."""

    async def work(message):
        pass

    async def listen_to_a_topic_that_goes(there):
        async with there.listen("T", "a", work) as listener:
            await until(lambda: listener._listener and listener._listener._dispatcher)
            broker.delete("T")
            await until(lambda: "listener a of T, group default has ended: " in logged(caplog))
            assert listener.is_stuck

    async def main():
        async with await connected() as there:
            with pytest.raises(UnknownTopic):
                await listen_to_a_topic_that_goes(there)

    asyncio.run(main())


# -- what an adversary found


@pytest.mark.parametrize("how", ["stop", "signal"])
def test_a_stop_before_it_is_open_is_not_lost(connected, topic, how):
    async def work(message):
        pass

    async def main():
        async with await connected() as broker:
            listener = broker.listen("T", "a", work)
            running = asyncio.create_task(listener.run())
            await asyncio.sleep(0)
            if how == "stop":
                listener.stop()
            else:
                os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(running, 60)

    asyncio.run(main())


def test_a_signal_stops_all_listeners_of_the_loop(connected, topic):
    async def work(message):
        pass

    async def main():
        async with await connected() as broker:
            listeners = [broker.listen("T", name, work) for name in "abc"]
            running = [asyncio.create_task(each.run()) for each in listeners]
            await until(lambda: all(each.is_running for each in listeners))
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(asyncio.gather(*running), 60)

    asyncio.run(main())


def test_listeners_leave_the_threads_of_the_loop_alone(connected, topic):
    topic.send(numbered(50), fixed_time=1000)

    async def work(message):
        await asyncio.to_thread(lambda: None)

    async def main():
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        async with await connected() as broker, AsyncExitStack() as stack:
            listeners = [
                await stack.enter_async_context(broker.listen("T", f"a{number}", work))
                for number in range(5)
            ]
            await until(lambda: sum(each.succeeded for each in listeners) == 50)

    asyncio.run(main())


def test_listeners_that_open_at_once_share_their_connections(connected, topic, monkeypatch):
    """Failed before: each opened its own, which stayed open when the broker was closed."""
    opened = []

    async def work(message):
        pass

    def counted(*options):
        opened.append(Server(*options))
        return opened[-1]

    async def main():
        async with await connected() as broker, AsyncExitStack() as stack:
            monkeypatch.setattr(client_module, "Server", counted)
            blocks = [broker.listen("T", f"a{number}", work) for number in range(8)]
            await asyncio.gather(*map(stack.enter_async_context, blocks))

    asyncio.run(main())
    assert len(opened) == 1


def test_a_listener_opens_while_the_threads_of_the_loop_are_busy(connected, topic):
    """Failed before: it waited for one of them, which the program may hold as long as it runs."""
    topic.send([b"m"], fixed_time=1000)
    handled, end = asyncio.Event(), threading.Event()

    async def work(message):
        handled.set()

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        busy = loop.run_in_executor(None, end.wait)
        try:
            async with (
                asyncio.timeout(30),
                await connected() as broker,
                broker.listen("T", "a", work),
            ):
                await handled.wait()
        finally:
            end.set()
            await busy

    asyncio.run(main())


def test_a_cancellation_during_the_end_of_its_block_is_not_swallowed(connected, topic):
    topic.send([b"m"], fixed_time=1000)
    begun, go_on = asyncio.Event(), asyncio.Event()
    went_on = []

    async def work(message):
        begun.set()
        await go_on.wait()

    async def block(broker):
        async with broker.listen("T", "a", work):
            await begun.wait()
        went_on.append(True)

    async def main():
        async with await connected() as broker:
            task = asyncio.create_task(block(broker))
            await begun.wait()
            await asyncio.sleep(0.1)
            task.cancel()
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: not topic.figures().prepare.count)

    asyncio.run(main())
    assert went_on == []


def test_a_block_that_is_cancelled_while_it_begins_leaves_no_listener(connected, topic):
    """Failed before: the listener went on, and took messages, until the loop ended."""

    async def work(message):
        pass

    async def listen(listener):
        async with listener:
            await asyncio.sleep(1000)

    async def main():
        async with await connected() as broker:
            listener = broker.listen("T", "a", work)
            task = asyncio.create_task(listen(listener))
            while listener._running is None:
                await asyncio.sleep(0)
            task.cancel()  # before it has begun
            await asyncio.gather(task, return_exceptions=True)
            assert task.cancelled()
            assert listener._running.done()

    asyncio.run(main())


def test_a_stop_within_a_block_keeps_its_grace(connected, topic, monkeypatch):
    """Failed before: the end of the block set the usual grace, and waited for it."""
    topic.send([b"m"], fixed_time=1000)
    begun, graces = asyncio.Event(), []

    async def work(message):
        begun.set()
        await asyncio.sleep(1000)

    def stop(listener, grace):
        graces.append(grace)
        original(listener, grace)

    original = Listener.stop
    monkeypatch.setattr(Listener, "stop", stop)

    async def main():
        async with await connected() as broker, broker.listen("T", "a", work) as listener:
            await begun.wait()
            listener.stop("1ms")

    asyncio.run(main())
    assert graces == ["1ms"]


def test_it_runs_once(connected, topic):
    async def work(message):
        pass

    async def main():
        async with await connected() as broker:
            listener = broker.listen("T", "a", work)
            async with listener:
                pass
            with pytest.raises(ConsumerMisused, match="has run"):
                await listener.run()
            # Failed before: both opened, and a stop ended one of them.
            listener = broker.listen("T", "b", work)
            runs = [asyncio.create_task(listener.run()) for _ in range(2)]
            await until(lambda: listener.is_running)
            listener.stop()
            first, second = await asyncio.gather(*runs, return_exceptions=True)
            assert first is None
            assert isinstance(second, ConsumerMisused)
            # Failed before: an opening that was cancelled counted as a run.
            listener = broker.listen("T", "c", work)
            opening = asyncio.create_task(listener.run())
            await asyncio.sleep(0)
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            run = asyncio.create_task(listener.run())
            await until(lambda: listener.is_running)
            listener.stop()
            await run

    asyncio.run(main())


def test_a_listener_whose_loop_was_closed_ends_and_gives_its_messages_back(
    connected, topic, caplog
):
    """Failed before: it renewed the leases of its messages for as long as the program ran."""
    topic.send(numbered(20), fixed_time=1000)
    begun, handler = [], signal.getsignal(signal.SIGTERM)

    async def work(message):
        begun.append(message)
        await asyncio.sleep(1000)

    async def start():
        listener = (await connected()).listen("T", "a", work)
        task = asyncio.create_task(listener.run())
        await until(lambda: begun)
        return listener, task

    loop = asyncio.new_event_loop()
    listener, _ = loop.run_until_complete(start())
    loop.close()
    wait_until(lambda: not listener.is_running, "the listener ends")
    wait_until(lambda: not topic.figures().prepare.count, "the messages are given back")
    wait_until(lambda: "listener a has ended: The event loop" in logged(caplog), "the log names it")
    with stopped_by_signals(print):  # the next one takes over what it has left
        pass
    assert signal.getsignal(signal.SIGTERM) is handler


ENDS_EARLY = """
import asyncio, sys
from rmq_spark import aio

url, prefix = sys.argv[1:]
begun = asyncio.Event()

async def work(message):
    begun.set()
    await asyncio.sleep(1000)

async def main():
    broker = await aio.connect(url, key_prefix=prefix)
    listening = asyncio.ensure_future(broker.listen("T", "a", work).run())
    await begun.wait()
    return listening

listening = asyncio.new_event_loop().run_until_complete(main())
print("the loop has ended")
"""


def test_a_program_exits_whose_loop_has_ended_before_its_listener(broker, redis_url, topic):
    """Failed before: it waited for the listener, which waited for the loop."""
    topic.send(numbered(20), fixed_time=1000)
    done = subprocess.run(
        [sys.executable, "-c", ENDS_EARLY, redis_url, broker.key_prefix],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "the loop has ended\n"), done.stderr


def test_prometheus_and_probes_are_answered_as_by_any_listener(connected, topic):
    """Failed before: an AsyncListener could not be registered, and had no is_ready, no timings."""
    topic.send([*numbered(4), b"bad"], fixed_time=1000)

    async def work(message):
        assert message.content != b"bad"

    labels = {"topic": "T", "group": "default", "listener": "a", "function": place_of(work)}
    registry = CollectorRegistry(auto_describe=True)

    def count(outcome):
        return registry.get_sample_value(
            "rmq_listener_messages_total", labels | {"outcome": outcome}
        )

    async def main():
        async with await connected() as broker:
            listener = broker.listen("T", "a", work, delay="1h")
            registry.register(ListenerCollector(listener))
            assert count("succeeded") is None
            assert (listener.is_ready, listener.is_stuck) == (False, False)
            async with listener:
                await until(lambda: listener.succeeded + listener.failed == 5)
                assert (listener.is_ready, listener.is_stuck) == (True, False)
                assert (count("succeeded"), count("failed")) == (4, 1)
            assert (listener.is_ready, listener.is_stuck) == (False, False)
            name = "rmq_listener_duration_seconds_count"
            assert registry.get_sample_value(name, labels) == 5
            assert sum(listener.timings().durations.counts) == 5

    asyncio.run(main())
