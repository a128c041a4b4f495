"""How much one call of a script gets: more would hold Redis for longer than 10 ms."""

import pytest

from rmq_spark.client.administration import new_definition
from rmq_spark.protocol import returning, sending
from rmq_spark.protocol.claims import Rollback
from rmq_spark.protocol.pages import QueueKind
from rmq_spark.protocol.topic_queues import TopicQueues
from rmq_spark.topics.keys import Keys
from rmq_spark.topics.topic_types import TopicType

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
    request = sending.requeue(queues, {0: PAIRS})
    assert sizes(request, lambda call: call.pairs) == [*[1024] * 11, 736]


def test_a_rollback_of_many_messages_is_several_calls(queues):
    wanted = Rollback(0, "a:1:0:1", CONTENTS, None)
    request = returning.rollbacks(queues, [wanted])
    assert sizes(request, lambda call: call.args[6:-1]) == [*[1024] * 5, 880]
