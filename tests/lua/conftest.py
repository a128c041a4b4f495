"""What tests of the scripts of an exactly-once sink share: its stages, its book and their key."""

import pytest

from rmq_spark.topics.keys import sink_key

from .staged import QUERY, Stages


@pytest.fixture
def stages(slot):
    return Stages(slot)


@pytest.fixture
def book(stages):
    return stages.book


@pytest.fixture
def key(slot):
    return sink_key(QUERY, slot.broker.key_prefix)
