"""What docs/reliability.md says of a Redis that is restored from a backup, or that is empty."""

import shutil
from pathlib import Path

import pytest

from rmq_spark.client import connect
from rmq_spark.errors import UnknownTopic

from ..waiting import wait_until


def test_a_backup_is_restored_as_the_page_says(own_redis, tmp_path):
    with connect(own_redis.url) as broker:
        client = broker.server.client
        broker.create("Orders", "FixedTime", 1)
        queue = broker.queue("Orders")
        queue.send(["committed later", "waits"], fixed_time=0)
        client.bgsave()
        wait_until(lambda: not client.info()["rdb_bgsave_in_progress"], "the backup")
        file = Path(client.config_get("dir")["dir"], "dump.rdb")
        shutil.copyfile(file, tmp_path / "backup.rdb")
        with broker.consumer("Orders", "clerk") as clerk:
            clerk.poll(1).commit()
        queue.send(["sent later"], fixed_time=0)
    own_redis.kill()
    for left in file.parent.iterdir():  # a new machine
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    shutil.copyfile(tmp_path / "backup.rdb", file)
    own_redis.settings["appendonly"] = "no"
    own_redis.start()
    with connect(own_redis.url) as broker:
        broker.server.client.config_set("appendonly", "yes")
        info = broker.server.client.info
        wait_until(lambda: not info()["aof_rewrite_in_progress"], "its append-only file")
    own_redis.settings["appendonly"] = "yes"
    own_redis.kill()
    own_redis.start()
    with connect(own_redis.url) as broker, broker.consumer("Orders", "clerk") as clerk:
        batch = clerk.poll()
        assert {message.content for message in batch} == {b"committed later", b"waits"}
        batch.commit()


def test_programs_on_an_empty_redis_go_on_once_the_topics_are_created_again(own_redis):
    with connect(own_redis.url) as broker, connect(own_redis.url) as reader:
        broker.create("Orders", "FixedTime", 1)
        queue = broker.queue("Orders")
        clerk = reader.consumer("Orders", "clerk")
        assert len(clerk.poll()) == 0
        broker.server.client.flushall()
        with pytest.raises(UnknownTopic):
            broker.queue("Orders").send(["m"], fixed_time=0)
        with pytest.raises(UnknownTopic):
            clerk.poll(wait="2s")
        broker.create("Orders", "FixedTime", 1)
        queue.distrust()
        queue.send(["m"], fixed_time=0)
        assert [message.content for message in clerk.poll()] == [b"m"]
        clerk.close()
