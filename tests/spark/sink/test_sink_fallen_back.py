"""An exactly-once sink on a Redis that falls back to an earlier state: nothing of it is lost."""

import shutil
import threading
from pathlib import Path

import pytest

from rmq_spark.errors import StageLost
from rmq_spark.local.redis import LocalRedis
from rmq_spark.protocol import staging
from rmq_spark.redis.server import Server
from rmq_spark.topics.keys import sink_key

from ..driving import Rmq, names, refused
from .sink_driving import Killed, Sink, killed, numbers

ROWS = numbers(0, 6), numbers(6, 12)
STARTS_AT_MOST = 3
# What falls back: the only server, or one node of a cluster, on which one slot or the sink lies.
WHOLE, SLOT, SINK = "whole", "slot", "sink"


class Keys:
    """The keys of one sink and its topic, which can be put back to what they were."""

    def __init__(self, sink, scope=WHOLE):
        self.client = sink.queue.server.client
        self.sink = sink_key(sink.query).encode()
        slot = "0}" if scope == SLOT else ""
        self.pattern = None if scope == SINK else f"*{sink.topic}_{slot}*"
        self.with_sink = scope != SLOT

    def named(self):
        found = self.client.keys(self.pattern) if self.pattern else []
        return [*found, *([self.sink] if self.with_sink else [])]

    def state(self):
        return {key: value for key in self.named() if (value := self.client.dump(key)) is not None}

    def put_back(self, state):
        gone = self.named()
        if gone:
            self.client.delete(*gone)
        for key, value in state.items():
            self.client.restore(key, 0, value)


class FallBack:
    """Redis falls back to what it was before call number `to`, just before call number `at`."""

    def __init__(self, monkeypatch, keys, to=None, at=None, kills=False):
        self._monkeypatch, self._keys, self._kills = monkeypatch, keys, kills
        self._to, self._at, self._state = to, at, None
        self._thread = threading.get_ident()  # leases of other tests are renewed in threads
        self.calls = []  # the names of the scripts, or "read"

    def __enter__(self):
        self._patched = self._monkeypatch.context()
        patched = self._patched.__enter__()
        patched.setattr(staging, "PUBLISHES_A_PIPELINE", 1)
        patched.setattr(Server, "pipeline", self._before(Server.pipeline))
        patched.setattr(Server, "commands", self._before(Server.commands))
        patched.setattr(Server, "command", self._before(Server.command))
        return self

    def __exit__(self, *raised):
        return self._patched.__exit__(*raised)

    def _before(self, run):
        def noted(server, *asked):
            if threading.get_ident() != self._thread:
                return run(server, *asked)
            number = len(self.calls)
            first = asked[0][0] if isinstance(asked[0], list) else asked[0]
            self.calls.append(getattr(first, "script", "read"))
            if number == self._to:
                self._state = self._keys.state()
            if number == self._at:
                self._keys.put_back(self._state)
                if self._kills:
                    raise Killed
            return run(server, *asked)

        return noted


def new_sink(rmq):
    return Sink(rmq, rmq.queue("FixedTime", 2), f"query-of-{rmq.name()}")


def stored(sink):
    """What waits in the stores, in order; nothing is ever taken from them here."""
    client, keys = sink.queue.server.client, sink.queue.keys
    return sorted(
        content.decode()
        for slot in sink.queue.slots
        for content in client.zrange(keys.store(slot), 0, -1)
    )


def start_again(sink, batch, *rows):
    """What a supervisor does: a query that has lost its stages is started again."""
    for start in range(STARTS_AT_MOST):
        try:
            return sink.run(batch, *rows)
        except StageLost:
            assert start < STARTS_AT_MOST - 1
    return None


@pytest.fixture
def calls(rmq, monkeypatch):
    """The calls of a batch, from its first task to the end of its commit."""
    sink = new_sink(rmq)
    sink.run(0, ["before"])
    with FallBack(monkeypatch, Keys(sink)) as watched:
        sink.run(1, *ROWS)
    assert {"stage", "seal", "publish", "announce", "discard", "conclude"} <= set(watched.calls)
    return watched.calls


@pytest.mark.long
@pytest.mark.parametrize("scope", [WHOLE, SLOT, SINK])
@pytest.mark.parametrize("kills", [False, True], ids=["driver goes on", "driver dies"])
def test_nothing_of_a_batch_is_lost_wherever_redis_falls_back_to(
    rmq, monkeypatch, calls, scope, kills
):
    """A driver that goes on has either sent everything or failed; then the query starts again."""
    concluded = calls.index("conclude")
    # A node that loses a published slot alone can be found out only until it was looked at last.
    looked = max(n for n, call in enumerate(calls[:concluded]) if call == "read")
    last = (concluded if kills else looked) if scope == SLOT else len(calls) - 1
    # Reads change nothing: of several in a row one is enough.
    moments = [at for at in range(1, last + 1) if {calls[at - 1], calls[at]} != {"read"}]
    for at in moments:
        for to in (to for to in range(at) if calls[to] != "read" or not to):
            sink = new_sink(rmq)
            sink.run(0, ["before"])
            fall = FallBack(monkeypatch, Keys(sink, scope), to, at, kills)
            try:
                with fall:
                    sink.run(1, *ROWS)
                done = at <= concluded  # afterwards it is any server that loses what it confirmed
            except (StageLost, Killed):
                done = False
            where = f"from {at} ({calls[at]}) to {to} ({calls[to]}) of {calls}"
            if not done:
                start_again(sink, 1, *ROWS)
            assert stored(sink) == sorted(["before", *names(12)]), where
            start_again(sink, 2, ["next"])
            assert stored(sink) == sorted(["before", *names(12), "next"]), where
            assert sink.queue.server.ask(staging.last_sealed(sink_key(sink.query))).batch == 2
            assert sink.stages() == ([], []), where


def test_a_whole_batch_that_lost_its_stages_is_unsealed_and_its_room_is_free(rmq, monkeypatch):
    sink = new_sink(rmq)
    keys = Keys(sink, SLOT)
    before = keys.state()
    messages = sink.staged(1, *ROWS)
    keys.put_back(before)
    with refused(StageLost, f"{sink.query}:1:", "and 0 were published", "Start the query again"):
        sink.writer().commit(messages, 1)
    assert sink.queue.server.ask(staging.last_sealed(sink_key(sink.query))).batch == 0
    assert sink.stages() == ([], [])
    sink.run(1, *ROWS)
    assert stored(sink) == sorted(names(12))


def sealed_and_forgotten(rmq, monkeypatch):
    """A sink whose batch 1 was sealed; Redis then forgot the slot before it was published."""
    sink = new_sink(rmq)
    keys = Keys(sink, SLOT)
    before = keys.state()
    messages = sink.staged(1, *ROWS)
    with killed(monkeypatch, "publish"):
        sink.writer().commit(messages, 1)
    keys.put_back(before)
    return sink


def test_a_replay_that_finds_its_sealed_stages_gone_fails_once(rmq, monkeypatch):
    """Its tasks found the batch sealed and staged nothing."""
    sink = sealed_and_forgotten(rmq, monkeypatch)
    with refused(StageLost, f"{sink.query}:1:"):
        sink.run(1, *ROWS)
    sink.run(1, *ROWS)
    assert stored(sink) == sorted(names(12))


def test_an_earlier_batch_that_lost_its_stages_fails_the_query_once(rmq, monkeypatch):
    """Spark counts it as done, or somebody took it out of the checkpoint."""
    sink = sealed_and_forgotten(rmq, monkeypatch)
    with refused(
        StageLost, "Batch 1 of the query", "Spark is at batch 2", "send that batch's rows"
    ):
        sink.run(2, ["next"])
    sink.run(2, ["next"])
    assert "next" in stored(sink)
    assert sink.stages() == ([], [])


@pytest.mark.parametrize("script", ["seal", "publish"])
def test_a_topic_that_is_made_anew_within_a_batch(rmq, monkeypatch, script):
    sink = new_sink(rmq)
    messages = sink.staged(1, *ROWS)
    with killed(monkeypatch, script, after=True):
        sink.writer().commit(messages, 1)
    rmq.broker.delete(sink.topic)
    rmq.broker.create(sink.topic, "FixedTime", 2)
    with refused(StageLost, "0 were published"):
        sink.run(1, *ROWS)
    sink.run(1, *ROWS)
    assert stored(sink) == sorted(names(12))


def test_a_stage_that_holds_fewer_messages_than_its_task_put_there_is_lost(rmq):
    """A state from between two calls of one task, for a slot that got messages in both."""
    sink = Sink(rmq, rmq.queue("FixedTime", 1), f"query-of-{rmq.name()}")
    messages = sink.staged(1, numbers(0, 5000))
    client = sink.queue.server.client
    (stage,) = client.keys(f"stage_?{sink.topic}_*")
    client.ltrim(stage, 0, 2 * 3900 - 1)
    with refused(StageLost, "holds 3900 messages and 0 were published", "put 5000"):
        sink.writer().commit(messages, 1)
    assert stored(sink) == []
    sink.run(1, numbers(0, 5000))
    assert len(stored(sink)) == 5000


@pytest.mark.parametrize("script", ["seal", "publish", "announce", "conclude"])
def test_a_restart_from_an_older_rdb(monkeypatch, tmp_path, script):
    """kill -9 of Redis, and a start on the file it had written before the batch was staged."""
    with LocalRedis(settings={"appendonly": "no"}) as server:
        rmq = Rmq(server.url, "rdb", tmp_path)
        sink = new_sink(rmq)
        sink.run(0, ["before"])
        client = sink.queue.server.client
        client.save()
        file = Path(client.config_get("dir")["dir"]) / "dump.rdb"
        shutil.copy(file, tmp_path / "older.rdb")
        messages = sink.staged(1, *ROWS)
        pipeline, done = Server.pipeline, []

        def falls_back(self, wanted):
            if any(getattr(call, "script", None) == script for call in wanted) and not done:
                done.append(True)
                server.kill()
                shutil.copy(tmp_path / "older.rdb", file)
                server.start()
            return pipeline(self, wanted)

        monkeypatch.setattr(Server, "pipeline", falls_back)
        monkeypatch.setattr(staging, "PUBLISHES_A_PIPELINE", 1)
        with refused(StageLost, "Start the query again"):
            sink.writer().commit(messages, 1)
        assert stored(sink) == ["before"]
        sink.run(1, *ROWS)
        assert stored(sink) == sorted(["before", *names(12)])
        rmq.close()
