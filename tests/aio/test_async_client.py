"""The client for asyncio: topics, sends, consumers."""

import asyncio
import contextvars
import inspect
import subprocess
import sys
import time

import pytest

from rmq_spark import aio
from rmq_spark.aio import client as client_module
from rmq_spark.client import Broker, Consumer, Listener, Message, Queue
from rmq_spark.client.receiving.batch import Batch
from rmq_spark.errors import (
    ConsumerMisused,
    InvalidMessage,
    InvalidOption,
    LeaseLost,
    ServerUnavailable,
    UnknownTopic,
)
from rmq_spark.redis.aio import TaskLock, await_only, greenlet_spawn

from ..seeding import numbered
from ..waiting import wait_until


async def ticks_during(work):
    """How often the event loop came round while a coroutine ran."""
    ticks, task = 0, asyncio.ensure_future(work)
    while not task.done():
        await asyncio.sleep(0.005)
        ticks += 1
    await task
    return ticks


def test_without_greenlet_it_says_what_to_install():
    program = "import sys; sys.modules['greenlet'] = None; import rmq_spark.aio"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: rmq_spark.aio needs the package greenlet: pip install "
        "'rmq-spark[asyncio]'"
    )


# -- blocking code within asyncio


def test_blocking_code_waits_and_the_event_loop_goes_on():
    async def later(value):
        await asyncio.sleep(0.01)
        return value

    def blocking(first, *, second):
        return await_only(later(first)) + await_only(later(second))

    async def main():
        return await asyncio.gather(*(greenlet_spawn(blocking, n, second=1) for n in range(100)))

    assert asyncio.run(main()) == [number + 1 for number in range(100)]


def test_errors_and_cancellations_come_where_the_code_waits():
    seen = []

    async def fail():
        raise ValueError("no")

    def blocking():
        try:
            await_only(fail())
        except ValueError as error:
            seen.append(str(error))
        try:
            await_only(asyncio.sleep(1000))
        finally:
            seen.append("end")

    async def main():
        task = asyncio.create_task(greenlet_spawn(blocking))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert seen == ["no", "end"]


def test_blocking_code_sees_and_sets_the_context_of_its_task():
    variable = contextvars.ContextVar("variable", default="none")

    def blocking():
        before = variable.get()
        await_only(asyncio.sleep(0))
        variable.set("set inside")
        return before

    async def main():
        variable.set("of the task")
        return await greenlet_spawn(blocking), variable.get()

    assert asyncio.run(main()) == ("of the task", "set inside")


def test_outside_of_a_coroutine_it_is_refused():
    with pytest.raises(RuntimeError, match=r"belongs to rmq_spark\.aio"):
        await_only(asyncio.sleep(0))


def test_a_lock_of_tasks_is_held_by_one_and_may_be_taken_again():
    order = []

    def work(lock, name):
        with lock, lock:
            order.append(f"{name} in")
            await_only(asyncio.sleep(0.01))
            order.append(f"{name} out")

    async def main():
        lock = TaskLock()
        first, second, third = (
            asyncio.create_task(greenlet_spawn(work, lock, name)) for name in "abc"
        )
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(first, third)

    asyncio.run(main())
    assert order == ["a in", "a out", "c in", "c out"]


# -- topics and sends


def test_topics_are_made_changed_and_deleted(connected):
    async def main():
        async with await connected() as broker:
            await broker.create("New", "Priority", 2)
            assert (await broker.alter("New", max_retries=3)).max_retries == 3
            assert (await broker.add_group("New", "more")).groups == ("", "more")
            assert await broker.remove_group("New", "more") == 0
            assert [topic.name for topic in await broker.topics()] == ["New"]
            assert (await broker.definition("New")).slot_amount == 2
            await broker.delete("New")
            assert await broker.find("New") is None
            with pytest.raises(UnknownTopic):
                await broker.queue("New")

    asyncio.run(main())


def test_a_queue_does_what_the_blocking_one_does(connected, topic):
    async def main():
        async with await connected() as broker:
            queue = await broker.queue("T")
            sent = await queue.send(numbered(10), fixed_time=1000)
            assert (sent.new, sent.merged) == (10, 0)
            (found,) = await queue.find([b"m00000"])
            assert found.queue == "store"
            assert await queue.move([b"m00000"], fixed_time=1000) == 1
            assert await queue.cancel([b"m00000"]) == 1
            pages = [page for slot in range(4) async for page in queue.pages("store", slot)]
            assert sorted(c for page in pages for c in page.contents) == numbered(9, start=1)
            assert await queue.purge([b"m00001"], "store") == 1
            assert await queue.requeue([b"m00001"]) == 0
            assert await queue.expire() == 0
            assert (await queue.figures()).store.count == 8
            assert abs(await queue.now_ms() - time.time() * 1000) < 60_000
            assert queue.definition == topic.definition
            assert repr(queue).startswith("AsyncQueue(T, Server(redis://")

    asyncio.run(main())
    assert topic.figures().store.count == 8


@pytest.mark.parametrize("method", ["send", "send_one"])
def test_a_thousand_tasks_send_at_the_same_time(connected, topic, method):
    async def main():
        async with await connected() as broker:
            queue = await broker.queue("T")

            async def send(content):
                if method == "send":
                    await queue.send([content], fixed_time=1000)
                else:
                    await queue.send_one(content, fixed_time=1000)

            await asyncio.gather(*(send(content) for content in numbered(1000)))

    asyncio.run(main())
    assert topic.figures().store.count == 1000
    assert topic.figures().counters["accepted"] == 1000


@pytest.mark.parametrize(("messages", "together"), [(8, [8]), (100, [50, 50])])
def test_single_messages_go_together(connected, topic, messages, together):
    """Many go in two calls: one is prepared while Redis works on the other."""
    calls = []

    async def main():
        async with await connected() as broker:
            queue = await broker.queue("T")
            send_checked = queue._sync.send_checked
            queue._sync.send_checked = lambda *args: calls.append(args) or send_checked(*args)
            await asyncio.gather(
                *(queue.send_one(content, fixed_time=1000) for content in numbered(messages))
            )

    asyncio.run(main())
    assert [sum(map(len, checked.pairs.values())) // 2 for checked, _ in calls] == together
    assert topic.figures().store.count == messages


def test_what_is_asked_while_sends_are_under_way_follows(connected, topic, monkeypatch):
    monkeypatch.setattr(client_module, "_MESSAGES_A_SEND", 3)

    async def main():
        async with await connected() as broker:
            queue = await broker.queue("T")

            async def sender(first):
                for content in numbered(10, start=first):
                    await queue.send_one(content, fixed_time=1000)

            await asyncio.gather(*(sender(10 * number) for number in range(20)))

    asyncio.run(main())
    assert topic.figures().store.count == 200


def test_a_bad_single_message_fails_alone(connected, topic):
    async def main():
        async with await connected() as broker:
            queue = await broker.queue("T")
            results = await asyncio.gather(
                queue.send_one("good", fixed_time=1000),
                queue.send_one("bad", fixed_time=-1),
                queue.send_one(7, fixed_time=1000),
                queue.send_one("also good", fixed_time=1000),
                return_exceptions=True,
            )
            assert [type(result) for result in results] == [
                *(type(None), InvalidMessage, InvalidMessage, type(None))
            ]

    asyncio.run(main())
    assert topic.figures().store.count == 2


@pytest.mark.parametrize("own", ["key", "content"])
def test_send_one_refuses_a_second_content_and_a_key_where_the_topic_has_none(
    connected, topic, own
):
    """Failed before: it was ignored."""

    async def main():
        async with await connected() as broker:
            queue = await broker.queue("T")
            with pytest.raises(InvalidMessage, match=own):
                await queue.send_one("a", fixed_time=1000, **{own: "b"})

    asyncio.run(main())
    assert topic.figures().store.count == 0


def test_send_one_takes_a_key(connected, broker):
    """Failed before: only in a Message."""
    broker.create("K", "FixedTime", 1, keyed=True)

    async def main():
        async with await connected() as there:
            queue = await there.queue("K")
            await queue.send_one("a", key="k", fixed_time=1000)
            await queue.send_one(Message("b"), key="l", fixed_time=1000)

    asyncio.run(main())
    found = broker.queue("K").find(["k", "l"])
    assert [(one.key, one.content) for one in found] == [(b"k", b"a"), (b"l", b"b")]


def test_single_messages_with_and_without_bodies_go_together(connected, broker):
    broker.create("T", "FixedTime", 1)
    with broker.consumer("T", "c") as consumer:

        async def main():
            async with await connected() as there:
                queue = await there.queue("T")
                await asyncio.gather(
                    queue.send_one("plain", fixed_time=1000),
                    queue.send_one("headed", fixed_time=1001, headers={"a": b"1"}),
                    queue.send_one(Message("last", fixed_time=1002)),
                )
                # One that needs the clock is checked twice.
                timed = {"fixed_time": 1003, "expires_at": 2**42}
                await queue.send_one("timed", headers=iter([("a", b"2")]), **timed)

        asyncio.run(main())
        found = {message.content: message.headers for message in consumer.poll()}
    headed = {b"headed": (("a", b"1"),), b"timed": (("a", b"2"),)}
    assert found == {b"plain": (), b"last": (), **headed}


def test_a_single_message_whose_time_depends_on_redis_clock(connected, topic):
    async def main():
        async with await connected() as broker:
            queue = await broker.queue("T")
            await queue.send_one("a", delay="1h", time_to_live="1h")
            with pytest.raises(InvalidMessage, match="is not after now"):
                await queue.send_one("b", fixed_time=1000, past_fixed_time="fail")

    asyncio.run(main())
    assert topic.figures().store.count == 1


def test_a_topic_that_was_made_in_another_way_takes_none_of_the_old_messages(
    connected, broker, topic
):
    async def main():
        async with await connected() as there:
            queue = await there.queue("T")
            queue._sync._read_s -= 10
            broker.delete("T")
            with pytest.raises(UnknownTopic, match="was deleted"):
                await queue.send_one("a", fixed_time=1000)
            broker.create("T", "FixedTime", 8)
            queue._sync._read_s -= 10
            with pytest.raises(UnknownTopic, match="created in another way"):
                await queue.send_one("a", fixed_time=1000)
            await queue.send_one("a", fixed_time=1000)

    asyncio.run(main())
    assert broker.queue("T").figures().store.count == 1


def test_a_cancelled_send_leaves_the_others_alone(connected, topic):
    async def main():
        async with await connected() as broker:
            queue = await broker.queue("T")
            for method in (queue.send_one, lambda content, **at: queue.send([content], **at)):
                tasks = [
                    asyncio.create_task(method(content, fixed_time=1000))
                    for content in numbered(10)
                ]
                await asyncio.sleep(0)
                tasks[3].cancel()
                done = await asyncio.gather(*tasks, return_exceptions=True)
                failed = [at for at, result in enumerate(done) if isinstance(result, BaseException)]
                assert failed == [3]

    asyncio.run(main())
    assert topic.figures().store.count >= 9


def test_a_redis_that_goes_and_comes_back_is_waited_for(own_redis):
    async def main():
        async with await aio.connect(own_redis.url, patience_s=20.0) as broker:
            await broker.create("T", "FixedTime", 4)
            queue = await broker.queue("T")
            own_redis.kill()
            sending = asyncio.create_task(queue.send([b"m"], fixed_time=1000))
            single = asyncio.create_task(queue.send_one(b"n", fixed_time=1000))
            assert await ticks_during(asyncio.sleep(1)) > 10
            own_redis.start()
            await broker.create("T", "FixedTime", 4)
            await asyncio.gather(sending, single)
            assert (await queue.figures()).store.count == 2

    asyncio.run(main())


def test_a_redis_that_is_gone_is_an_error_without_a_secret(own_redis):
    async def main():
        async with await aio.connect(own_redis.url, patience_s=0.0) as broker:
            await broker.create("T", "FixedTime", 4)
            queue = await broker.queue("T")
            own_redis.kill()
            with pytest.raises(ServerUnavailable):
                await queue.send([b"m"], fixed_time=1000)
            with pytest.raises(ServerUnavailable):
                await queue.send_one(b"m", fixed_time=1000)

    asyncio.run(main())


def test_an_option_that_is_not_accepted_is_refused():
    async def main():
        with pytest.raises(InvalidOption, match="socketTimeout"):
            await aio.connect("redis://127.0.0.1", socketTimeout="soon")

    asyncio.run(main())


# -- consumers


def test_a_consumer_takes_and_commits(connected, topic, monkeypatch):
    """Its definition, too, is read as in the blocking one: not again before each batch."""
    topic.send(numbered(10), fixed_time=1000)
    monkeypatch.setattr("rmq_spark.client.receiving.consumer.RELY_S", 1000.0)
    read, queue = [], Broker.queue
    monkeypatch.setattr(Broker, "queue", lambda *a, **b: read.append(a) or queue(*a, **b))

    async def main():
        async with await connected() as broker, broker.consumer("T", "c") as consumer:
            got = []
            async for batch in consumer.batches(limit=3, wait=False):
                again = [] if got else [*batch][:1]
                assert await batch.rollback(again, delay="1h") == len(again)
                got += [message.content for message in batch]
                assert await batch.commit() == len(batch) - len(again)
            return got

    assert sorted(asyncio.run(main())) == numbered(10)
    assert topic.figures().counters["committed"] == 9
    assert len(read) == 1


def test_messages_are_rolled_back_renewed_and_marked(connected, topic):
    topic.send([b"m"], fixed_time=1000)

    async def main():
        async with await connected() as broker, broker.consumer("T", "c") as consumer:
            batch = await consumer.poll()
            await batch.mark_unread()
            batch = await consumer.poll()
            assert [message.delivery_count for message in batch] == [1]
            await batch.renew()
            assert await batch.rollback(reason="no", delay="1h") == 1
            assert await batch.commit() == 0
            await consumer.forget()

    asyncio.run(main())
    assert topic.figures().retry.count == 1


def test_a_consumer_that_waits_lets_others_work_and_is_woken(connected, topic):
    async def main():
        async with await connected() as broker, broker.consumer("T", "c") as consumer:
            waiting = asyncio.create_task(consumer.poll(wait="60s"))
            assert await ticks_during(asyncio.sleep(1)) > 10
            await (await broker.queue("T")).send([b"m"], fixed_time=1000)
            batch = await waiting
            assert [message.content for message in batch] == [b"m"]
            await batch.commit()

    asyncio.run(main())


def test_a_cancelled_consumer_gives_back_what_it_took(connected, topic):
    topic.send(numbered(10), fixed_time=1000)
    took = asyncio.Event()

    async def consume(broker):
        async with broker.consumer("T", "c") as consumer:
            async for _ in consumer.batches():
                took.set()
                await asyncio.sleep(1000)

    async def main():
        async with await connected() as broker:
            task = asyncio.create_task(consume(broker))
            await took.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    figures = topic.figures()
    assert (figures.prepare.count, figures.store.count + figures.retry.count) == (0, 10)


def test_a_poll_that_is_cancelled_at_any_moment_leaves_nothing_taken(connected, topic):
    topic.send(numbered(40), fixed_time=1000)

    async def main():
        async with await connected() as broker:
            for turns in range(40):
                async with broker.consumer("T", "c") as consumer:
                    task = asyncio.create_task(consumer.poll(5))
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                assert topic.figures().prepare.count == 0, turns

    asyncio.run(main())


@pytest.mark.parametrize("taker", ["c", "another"])
def test_what_a_cancelled_poll_has_claimed_costs_no_retry(connected, topic, taker):
    """Failed before: nobody had seen the messages, but they came again with a retry less."""
    topic.send(numbered(5), fixed_time=1000)

    async def main():
        async with await connected() as broker:
            async with broker.consumer("T", "c") as consumer:
                task = asyncio.create_task(consumer.poll(5))
                while not topic.figures().prepare.count:  # blocks the loop: it has read no reply
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                assert task.cancelled()
                if taker == "c":
                    assert await counts(consumer) == [1] * 5
            if taker != "c":
                async with broker.consumer("T", taker) as consumer:
                    assert await counts(consumer) == [1] * 5

    async def counts(consumer):
        return [message.delivery_count for message in await consumer.poll(5)]

    asyncio.run(main())


def test_a_consumer_may_be_closed_while_another_task_waits(connected, topic):
    async def main():
        async with await connected() as broker, broker.consumer("T", "c") as consumer:
            waiting = asyncio.create_task(consumer.poll(wait="60s"))
            await asyncio.sleep(0.05)
            await consumer.close()
            with pytest.raises(ConsumerMisused, match="is closed"):
                await waiting

    asyncio.run(main())


def test_tasks_that_share_a_consumer_wait_for_each_other(connected, topic):
    topic.send(numbered(100), fixed_time=1000)

    async def main():
        async with await connected() as broker, broker.consumer("T", "c") as consumer:
            batch = await consumer.poll(50)
            committing = asyncio.create_task(batch.commit())
            await asyncio.sleep(0)
            following = await consumer.poll(50)
            assert await committing == 50
            assert await following.commit() == 50
            await (await broker.queue("T")).send([b"x"], fixed_time=1000)
            stale = await consumer.poll(1)
            await consumer.poll(1)
            with pytest.raises(LeaseLost):
                await stale.commit()

    asyncio.run(main())


def test_several_consumers_share_the_messages(connected, topic):
    topic.send(numbered(500), fixed_time=1000)

    async def consume(broker, name):
        got = []
        async with broker.consumer("T", name) as consumer:
            async for batch in consumer.batches(limit=20, wait=False):
                got += [message.content for message in batch]
                await batch.commit()
        return got

    async def main():
        async with await connected() as broker:
            return await asyncio.gather(*(consume(broker, f"c{n}") for n in range(5)))

    found = [content for each in asyncio.run(main()) for content in each]
    assert len(found) == len(set(found))
    assert set(found) <= set(numbered(500))
    assert topic.figures().counters["committed"] == len(found)


def test_a_second_task_is_refused_while_one_works_on_a_batch(connected, broker):
    broker.create("T", "FixedTime", 1)
    broker.queue("T").send([b"m"], fixed_time=1000)
    took, may_end = asyncio.Event(), asyncio.Event()

    async def work(consumer):
        batch = await consumer.poll()
        took.set()
        await may_end.wait()
        return await batch.commit()

    async def main():
        async with await connected() as there, there.consumer("T", "c") as consumer:
            working = asyncio.create_task(work(consumer), name="worker")
            await took.wait()
            with pytest.raises(ConsumerMisused, match=r"Two tasks use .* task worker has neither"):
                await consumer.poll()
            may_end.set()
            assert await working == 1

    asyncio.run(main())


def test_a_broker_of_a_loop_that_has_ended_says_so(own_redis):
    """Failed before: RuntimeError: Event loop is closed."""
    kept = []

    async def first():
        broker = await aio.connect(own_redis.url)
        await broker.create("T", "FixedTime", 1)
        kept.extend([broker, await broker.queue("T"), broker.consumer("T", "a")])

    async def second():
        broker, queue, consumer = kept
        for use in (
            lambda: broker.topics(),
            lambda: queue.send(["a"], fixed_time=1000),
            lambda: queue.send_one("a", fixed_time=1000),
            lambda: consumer.__aenter__(),
            lambda: broker.close(),
        ):
            with pytest.raises(ConsumerMisused, match="an event loop that has ended"):
                await use()

    asyncio.run(first())
    asyncio.run(second())
    threads = kept[0]._sync.server._threads._threads
    wait_until(lambda: not any(each.is_alive() for each in threads), "the end of its threads")


def test_a_broker_of_another_thread_says_so_and_nobody_hangs(own_redis):
    """Failed before: a call waited for ever."""

    async def main():
        async with await aio.connect(own_redis.url) as broker:
            await broker.create("T", "FixedTime", 1)
            queue = await broker.queue("T")

            async def elsewhere():
                for _ in range(20):
                    with pytest.raises(ConsumerMisused, match="an event loop that is another one"):
                        await queue.send(["there"], fixed_time=1000)
                    with pytest.raises(ConsumerMisused, match="an event loop that is another one"):
                        await queue.send_one("there", fixed_time=1000)

            other = asyncio.to_thread(asyncio.run, elsewhere())
            here = [queue.send_one(f"here{n}", fixed_time=1000) for n in range(200)]
            await asyncio.wait_for(asyncio.gather(other, *here), 60)
            assert (await queue.figures()).store.count == 200

    asyncio.run(main())


def test_what_is_dropped_without_a_close_makes_no_noise(own_redis, tmp_path):
    program = f"""
import asyncio, gc
from rmq_spark import aio, connect

async def main():
    broker = await aio.connect({own_redis.url!r})
    await broker.create("T", "FixedTime", 1)
    queue = await broker.queue("T")
    await queue.send(["a"], fixed_time=1000)
    consumer = await broker.consumer("T", "a").__aenter__()
    await consumer.poll()

asyncio.run(main())
gc.collect()
broker = connect({own_redis.url!r})
broker.queue("T").send(["b"], fixed_time=1000)
broker.consumer("T", "b").__enter__().poll()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False
    )
    lines = [line for line in done.stderr.splitlines() if "stores nothing on disk" not in line]
    assert (done.returncode, lines) == (0, [])


def test_a_consumer_that_is_open_is_not_opened_again(connected, topic):
    """Failed before: a second one of its name took over, and the first was never closed."""

    async def main():
        async with await connected() as broker:
            consumer = broker.consumer("T", "c")
            for _ in range(2):
                async with consumer:
                    with pytest.raises(ConsumerMisused, match="This consumer is open"):
                        await consumer.__aenter__()
                    assert len(await consumer.poll()) == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    ("of", "blocking"),
    [
        (aio.AsyncBroker, Broker),
        (aio.AsyncQueue, Queue),
        (aio.AsyncConsumer, Consumer),
        (aio.AsyncListener, Listener),
        (client_module.AsyncBatch, Batch),
    ],
)
def test_what_both_clients_have_takes_the_same(of, blocking):
    """Failed before: AsyncQueue.pages took no scores."""

    def taken(function):
        return [
            (name, one.kind, one.default)
            for name, one in inspect.signature(function).parameters.items()
            if one.kind is not inspect.Parameter.VAR_KEYWORD
        ]

    for name, function in inspect.getmembers(of, inspect.isfunction):
        given = getattr(blocking, name, None)
        if given is None or name.startswith("_"):
            continue
        has_any = any(
            one.kind is inspect.Parameter.VAR_KEYWORD
            for one in inspect.signature(function).parameters.values()
        )
        wanted = taken(given)
        assert taken(function) == (wanted[: len(taken(function))] if has_any else wanted), name


def test_a_broker_that_is_closed_says_so(connected, topic):
    """Failed before: it connected again for good, or RuntimeError: cannot schedule new futures."""

    async def main():
        broker = await connected()
        queue, consumer = await broker.queue("T"), broker.consumer("T", "a")
        await broker.close()
        for use in (
            lambda: broker.topics(),
            lambda: queue.send(["a"], fixed_time=1000),
            lambda: queue.send_one("a", fixed_time=1000),
            lambda: consumer.__aenter__(),
        ):
            with pytest.raises(ConsumerMisused, match=r"is closed. Connect again: await rmq_spark"):
                await use()
        await broker.close()

    asyncio.run(main())


def test_a_consumer_whose_task_is_cancelled_pays_no_retry(connected, topic):
    """Failed before: a slow message died after as many deploys as it had retries, and one more."""
    topic.send([b"slow"], fixed_time=1000)
    begun = []

    async def work():
        async with await connected() as broker, broker.consumer("T", "c") as consumer:
            async for batch in consumer.batches(limit=1):
                begun.extend(message.delivery_count for message in batch)
                await asyncio.sleep(3600)

    async def main():
        for start in range(topic.definition.max_retries + 3):
            task = asyncio.create_task(work())
            while len(begun) == start:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert set(begun) == {1}
    assert topic.figures().dead.count == 0
