"""How much one call of a script gets: more would hold Redis for longer than 10 ms."""

import pytest

from rmq_spark.client.administration import new_definition
from rmq_spark.protocol import sending
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
    assert sizes(request, lambda call: call.pairs) == [5200, 5200, 1600]


def test_a_cancel_of_many_messages_is_several_calls(queues):
    request = sending.cancel(queues, {0: CONTENTS})
    assert sizes(request, lambda call: call.args) == [2600, 2600, 800]


def test_a_purge_of_many_messages_is_several_calls(queues):
    request = sending.purge(queues, {0: PAIRS}, QueueKind.STORE)
    assert sizes(request, lambda call: call.args[1:]) == [5200, 5200, 1600]


def test_a_requeue_of_many_messages_is_several_calls(queues):
    request = sending.requeue(queues, {0: PAIRS})
    assert sizes(request, lambda call: call.pairs) == [*[2048] * 5, 1760]
