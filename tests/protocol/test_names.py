"""Names of consumers and claims, as text and back: no server."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.errors import InvalidOption
from rmq_spark.protocol.names import ClaimId, ConsumerName, ScopedName

WORDS = st.text("ABCabc019._-", min_size=1, max_size=200)
NUMBERS = st.integers(0, 10**15 - 1)
CONSUMERS = st.builds(ConsumerName, WORDS, st.just("") | WORDS)
CLAIMS = st.builds(ClaimId, CONSUMERS.map(str), NUMBERS, st.integers(0, 99), NUMBERS)


@given(CONSUMERS)
def test_a_consumer_name_is_read_as_it_was_written(consumer):
    assert ConsumerName.parse(str(consumer)) == consumer


@given(CLAIMS)
def test_a_claim_id_is_read_as_it_was_written(claim):
    assert ClaimId.parse(str(claim)) == claim


def test_the_texts_are_those_that_redis_and_checkpoints_hold():
    assert str(ConsumerName("query")) == "query"
    assert str(ConsumerName("query", "audit")) == "query@audit"
    assert str(ScopedName("Orders", "audit", "billing")) == "Orders@audit:billing"
    assert str(ScopedName("Orders", "", "billing")) == "Orders@:billing"
    assert str(ClaimId("query@audit", 7, 15, 1234)) == "query@audit:7:15:1234"
    assert ClaimId("query@audit", 7, 15, 1234).name == "query@audit:7:15"


@pytest.mark.parametrize(
    "text", ["", "@", "a@", "@b", "a@b@c", "a:b", "a b", "é", "a\n", "a" * 201]
)
def test_another_text_is_no_consumer_name(text):
    with pytest.raises(InvalidOption, match="consumer name"):
        ConsumerName.parse(text)


@pytest.mark.parametrize(
    "text", ["a:1:0", "a@:1:0:1", "a:01:0:1", "a:1:100:1", "a:-1:0:1", "a:1:0:1\n", "a:1:0:٣"]
)
def test_another_text_is_no_claim_id(text):
    with pytest.raises(InvalidOption, match="claimId"):
        ClaimId.parse(text)
