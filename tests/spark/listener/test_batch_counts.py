"""The counts of a batch of each_message, which its tasks keep in Redis while they run."""

import time
from types import SimpleNamespace

import pytest

from rmq_spark.spark.listener import task as task_module
from rmq_spark.spark.listener.task import BatchCounts, Counts, TaskCounts
from rmq_spark.spark.options import parse_listener_options


@pytest.fixture
def batch(rmq):
    options = parse_listener_options({"redis.url": rmq.url, "keyPrefix": f"{rmq.name()}:"})
    return BatchCounts.new(options.connection, options.key_prefix)


def test_counts_are_taken_once_by_task(rmq, batch):
    assert TaskCounts(batch, "1").write(Counts(3, 2, 1))
    assert TaskCounts(batch, "2").write(Counts(5), is_done=False)
    assert 0 < rmq.broker.server.client.pttl(batch.key) <= 600_000
    assert batch.take() == {"1": Counts(3, 2, 1), "2": Counts(5, 0, 0)}
    assert not rmq.broker.server.client.exists(batch.key)
    assert batch.take() == {}


def test_counts_are_not_written_at_every_call(batch, monkeypatch):
    task, now = TaskCounts(batch, "1"), [1000.0]
    monkeypatch.setattr(task_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for succeeded in range(100):
        task.write(Counts(succeeded))
        now[0] += 0.001
    assert batch.take() == {"1": Counts(0)}
    task.write(Counts(100), is_done=True)
    assert batch.take() == {"1": Counts(100)}


def test_a_task_that_was_never_at_work_writes_nothing(batch):
    TaskCounts(batch, "1").write(Counts(), is_done=True)
    assert batch.take() == {}


def test_tasks_of_a_batch_that_ends_stop_and_are_waited_for(batch, monkeypatch):
    task = TaskCounts(batch, "1")
    assert task.write(Counts(1))
    TaskCounts(batch, "2").write(Counts(9))  # killed: it never writes again

    def look(seconds):
        if not looks:
            task._written_s = 0.0
            assert not task.write(Counts(2))
            assert TaskCounts(batch, "3").write(Counts()) is False
            task.write(Counts(3), is_done=True)
        looks.append(seconds)

    looks = []
    monkeypatch.setattr(task_module, "_LONGEST_WAIT_S", 0.2)
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=look)  # that of this module alone
    monkeypatch.setattr(task_module, "time", clock)
    assert batch.end() == {"1": Counts(3), "2": Counts(9), "3": Counts()}
    assert looks


def test_a_redis_that_takes_no_counts_disturbs_nobody(rmq, batch):
    rmq.broker.server.client.set(batch.key, "in the way")
    task = TaskCounts(batch, "1")
    assert task.write(Counts(1))
    assert task.write(Counts(2), is_done=True)
    assert batch.take() == {}
    assert batch.end() == {}
