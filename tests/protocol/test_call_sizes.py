"""How much one call of a script gets: more would hold Redis for longer than 10 ms."""

import pytest

from rmq_spark.client.administration import new_definition
from rmq_spark.protocol import returning, sending
from rmq_spark.protocol.calls import TopicQueues
from rmq_spark.protocol.claims import Rollback
from rmq_spark.protocol.pages import QueueKind
from rmq_spark.topics.keys import Keys
from rmq_spark.topics.types import TopicType

CONTENTS = [b"m%d" % number for number in range(6000)]
PAIRS = [value for content in CONTENTS for value in (1000, content)]


@pytest.fixture
def queues():
    return TopicQueues(new_definition("T", TopicType.FIXED_TIME, 1), Keys("T"))


def sizes(request, values_of):
    return [len(values_of(call)) for call in request.calls]


def test_a_send_of_many_messages_is_several_calls(queues):
    request = sending.send(queues, {0: PAIRS})
    assert sizes(request, lambda call: call.pairs) == [4096, 4096, 3808]


def test_a_cancel_of_many_messages_is_several_calls(queues):
    request = sending.cancel(queues, {0: CONTENTS})
    assert sizes(request, lambda call: call.args) == [2048, 2048, 1904]


def test_a_purge_of_many_messages_is_several_calls(queues):
    request = sending.purge(queues, {0: PAIRS}, QueueKind.STORE)
    assert sizes(request, lambda call: call.args[1:]) == [*[1024] * 11, 736]


def test_a_requeue_of_many_messages_is_several_calls(queues):
    request = next(sending.requeue(queues, {0: PAIRS}))
    assert sizes(request, lambda call: call.pairs) == [*[1024] * 11, 736]


def test_a_rollback_of_many_messages_is_several_calls(queues):
    wanted = Rollback(0, "a:1:0:1", CONTENTS, None)
    request = next(returning.rollbacks(queues, [wanted]))
    assert sizes(request, lambda call: call.args[7:-1]) == [*[1024] * 5, 880]


LARGE = [b"%d" % number + bytes(600_000) for number in range(3)] + [bytes(2 * 1024 * 1024)]
LARGE_PAIRS = [value for content in LARGE for value in (1000, content)]


def test_large_messages_are_as_many_calls_as_needed_for_a_mib_each(queues):
    of_pairs = [
        sending.send(queues, {0: LARGE_PAIRS}),
        next(sending.requeue(queues, {0: LARGE_PAIRS})),
    ]
    assert [sizes(request, lambda call: call.pairs) for request in of_pairs] == [[2] * 4] * 2
    cancelled = sending.cancel(queues, {0: LARGE})
    assert [call.args for call in cancelled.calls] == [[content] for content in LARGE]
    purged = sending.purge(queues, {0: LARGE_PAIRS}, QueueKind.STORE)
    assert [call.args[1:] for call in purged.calls] == [[1000, content] for content in LARGE]


def test_each_large_message_that_is_rolled_back_keeps_its_reason(queues):
    small = [b"a", b"b"]
    wanted = Rollback(0, "a:1:0:1", [*small, *LARGE], None, ["A", "B", "C", "D", "E", "F"])
    request = next(returning.rollbacks(queues, [wanted]))
    assert [call.args[6:] for call in request.calls] == [
        [3, *small, LARGE[0], "A", "B", "C"],
        *([1, content, reason] for content, reason in zip(LARGE[1:], "DEF", strict=True)),
    ]
