"""Slots, keys and definitions: what all users of a topic agree on."""

import json
import pickle
import zlib
from datetime import timedelta

import crcmod.predefined
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.client import TopicDefinition, TopicType
from rmq_spark.errors import InvalidOption, ScriptFailed
from rmq_spark.topics.definition import (
    check_key_prefix,
    check_slot_amount,
    check_topic_name,
    parse_settings,
    slot_of,
)
from rmq_spark.topics.keys import Keys, consumer_key, listener_key, topics_key
from rmq_spark.topics.settings import parse_retry_backoff
from rmq_spark.topics.types import TOPIC_TYPES, parse_topic_type

crcmod_crc32 = crcmod.predefined.mkCrcFun("crc-32")


def test_the_checksum_is_that_of_iso_hdlc():
    assert f"{crcmod_crc32(b'123456789'):08x}" == "cbf43926"
    assert slot_of(b"123456789", 65536) == 0x3926


@given(st.lists(st.binary(max_size=64)), st.integers(0, 16))
def test_slots_are_crcmods_checksum_modulo_their_number(bases, exponent):
    expected = [crcmod_crc32(basis) % 2**exponent for basis in bases]
    assert [slot_of(basis, 2**exponent) for basis in bases] == expected


@given(st.binary(max_size=200))
def test_zlibs_checksum_is_the_same_function(content):
    assert zlib.crc32(content) == crcmod_crc32(content)


PLAIN = [
    "Orders_7",
    "prepare_{Orders_7}:part",
    "retry_{Orders_7}",
    "dead_{Orders_7}",
    "claims_{Orders_7}",
    "consumers_{Orders_7}",
    "stats_{Orders_7}",
]
PREFIXED = [
    "shop:Orders_7",
    "shop:prepare_{shop:Orders_7}:part",
    "shop:retry_{shop:Orders_7}",
    "shop:dead_{shop:Orders_7}",
    "shop:claims_{shop:Orders_7}",
    "shop:consumers_{shop:Orders_7}",
    "shop:stats_{shop:Orders_7}",
]
GROUP = ["{Orders_7}@billing", *(key.replace("}", "}@billing") for key in PLAIN[1:])]
PREFIXED_GROUP = [
    "shop:{shop:Orders_7}@billing",
    *(key.replace("}", "}@billing") for key in PREFIXED[1:]),
]
KINDS = ["store", "part", "retry", "dead", "claims", "consumers", "stats"]


def all_of(keys, slot):
    """Every key of a slot, with those of two claims."""
    own = [getattr(keys, kind)(slot) for kind in KINDS]
    return [*own, *keys.claims_of(slot, ["a:1:0", "a:1:1"])]


@pytest.mark.parametrize(
    ("prefix", "group", "expected"),
    [
        ("", "", PLAIN),
        ("shop:", "", PREFIXED),
        ("", "billing", GROUP),
        ("shop:", "billing", PREFIXED_GROUP),
    ],
)
def test_every_key_has_its_exact_name(prefix, group, expected):
    keys = Keys("Orders", prefix, group)
    assert [getattr(keys, kind)(7) for kind in KINDS] == expected
    part = keys.part(7)
    assert keys.claim(7, "a:12:3") == part.removesuffix("part") + "a:12:3"


def test_the_keys_of_a_database_have_their_exact_names():
    assert topics_key() == "rmq_topics"
    assert topics_key("shop:") == "shop:rmq_topics"
    assert consumer_key("a-b") == "consumer:a-b"
    assert consumer_key("a-b", "shop:") == "shop:consumer:a-b"
    assert listener_key("0f") == "listener:0f"
    assert listener_key("0f", "shop:") == "shop:listener:0f"


@pytest.mark.parametrize("prefix", ["", "shop:", "a:b:"])
@pytest.mark.parametrize("group", ["", "billing"])
def test_all_keys_of_a_slot_lie_on_one_node_of_a_cluster(prefix, group):
    """The part in the first braces, or else the whole key, is what a cluster goes by."""
    tags = {
        key.split("{", 1)[1].split("}", 1)[0] if "{" in key else key
        for of in (Keys("Orders", prefix, group), Keys("Orders", prefix))
        for key in all_of(of, 7)
    }
    assert tags == {f"{prefix}Orders_7"}


def test_no_two_topics_slots_groups_or_prefixes_share_a_key():
    names = ["a", "a_1", "a_1_0", "prepare_a", "rmq", "rmq_topics", "consumer", "x.a", "a-g"]
    keys = [
        key
        for name in names
        for prefix in ("", "a:", "prepare_:")
        for group in ("", "g", "1")
        for slot in (0, 1, 10)
        for key in all_of(Keys(name, prefix, group), slot)
    ]
    assert len(set(keys)) == len(keys)
    assert topics_key() not in keys


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "..a", "._.", "x" * 200, "7"])
def test_a_name_of_letters_digits_dots_and_dashes_is_accepted(name):
    assert check_topic_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "x" * 201, "a{b}", "{", "a b", "a\n", "a:b", "a/b", "a*", "\u00e4", "a@g", ".", ".."],
)
def test_another_name_is_refused_saying_what_is_accepted(name):
    with pytest.raises(InvalidOption) as raised:
        check_topic_name(name)
    assert str(raised.value) == (
        f"topic={name!r} is not a topic name. Accepted: 1 to 200 of . _ - A-Z a-z 0-9, "
        "not all dots."
    )


def test_a_very_long_name_is_not_repeated_whole():
    with pytest.raises(InvalidOption) as raised:
        check_topic_name("x" * 10**6)
    assert len(str(raised.value)) < 600


@pytest.mark.parametrize("amount", [1, 2, 64, 65536, "64"])
def test_a_power_of_two_is_accepted(amount):
    assert check_slot_amount(amount) == int(amount)


@pytest.mark.parametrize("amount", [0, 3, -1, 131072, "many", "", "6.4e1", 2**70, "-2", 1.5, None])
def test_another_number_of_slots_is_refused(amount):
    with pytest.raises(InvalidOption) as raised:
        check_slot_amount(amount)
    assert str(raised.value) == (
        f"slot_amount={amount!r} is not accepted. Accepted: a power of two, 1 to 65536."
    )


@pytest.mark.parametrize("prefix", ["", "a:", "shop:eu:", " :"])
def test_a_prefix_that_ends_in_a_colon_is_accepted(prefix):
    assert check_key_prefix(prefix) == prefix


@pytest.mark.parametrize("prefix", ["shop", ":", "{a}:", "a{:", "}:"])
def test_another_prefix_is_refused(prefix):
    with pytest.raises(InvalidOption, match=r"key_prefix=.* ends in ':' and has no braces"):
        check_key_prefix(prefix)


@pytest.mark.parametrize("text", ["RangeMerge", "rangemerge", " PRIORITY ", "fixedTime"])
def test_types_are_known_in_any_case(text):
    assert parse_topic_type(text).name.lower() == text.strip().lower()


@pytest.mark.parametrize("topic_type", TOPIC_TYPES.values(), ids=str)
def test_a_type_stays_what_it_is_on_its_way_to_a_task_and_through_redis(topic_type):
    definition = TopicDefinition("T", topic_type)
    there = pickle.loads(pickle.dumps(definition))
    assert there == definition == TopicDefinition.from_json("T", definition.to_json())
    assert hash(there.type) == hash(topic_type)
    assert [known for known in TOPIC_TYPES.values() if known == there.type] == [topic_type]
    assert (str(topic_type), repr(topic_type)) == (topic_type.name, f"<TopicType {topic_type}>")


@pytest.mark.parametrize("text", ["", "Range", "Delay"])
def test_another_type_is_refused(text):
    with pytest.raises(InvalidOption) as raised:
        parse_topic_type(text)
    assert str(raised.value) == (
        f"topic_type={text!r} is unknown. Accepted: RangeMerge, Priority, FixedTime."
    )


@pytest.mark.parametrize(
    ("text", "waits"),
    [
        ("none", ()),
        ("1s", (1000,)),
        ("10s, 30s, 1m", (10_000, 30_000, 60_000)),
        ("1ms 2ms", (1, 2)),
    ],
)
def test_a_backoff_is_a_list_of_durations(text, waits):
    assert parse_retry_backoff(text) == waits


def test_rocketmqs_backoff_has_sixteen_steps():
    waits = parse_retry_backoff("rocketmq")
    assert (len(waits), waits[0], waits[-1]) == (16, 10_000, 7_200_000)


@pytest.mark.parametrize("text", ["", "10", "1s " * 17, "0s", "soon", "1s,,x"])
def test_another_backoff_is_refused(text):
    with pytest.raises(InvalidOption, match="retry_backoff"):
        parse_retry_backoff(text)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"max_retries": 17}, "max_retries=17"),
        ({"max_retries": -1}, "max_retries=-1"),
        ({"max_retries": 2.5}, "max_retries=2.5"),
        ({"max_retries": True}, "max_retries=True"),
        ({"retry_backoff_ms": (0,)}, "retry_backoff"),
        *(
            ({"rate": given}, "none, or 1 to 1000000 in a second, minute, hour or day: 100/s")
            for given in ("0/s", "100", "1/w", "-1/s", "1.5/s", "1000001/s", 100, "")
        ),
        *(
            ({"rate": "1/s", "burst": given}, "a whole number, 1 to 1000000")
            for given in (0, -1, 1_000_001, True, 1.5, "x")
        ),
        ({"burst": 5}, "burst=5 is for topics with a rate limit"),
        ({"rate_by": "slot"}, "rate_by='slot' is for topics with a rate limit"),
        ({"rate": "1/s", "rate_by": "key"}, "rate_by='key'"),
        *(({"retry_jitter": given}, "a number, 0 to 1") for given in (-0.1, 1.01, True, "1", None)),
        ({"retry_backoff_ms": (1,) * 17}, "retry_backoff"),
        ({"retry_backoff_ms": (2**63,)}, "up to 366d"),
        ({"retry_backoff_ms": b"5s"}, "retry_backoff=b'5s'"),
        ({"retry_backoff_ms": (True,)}, "retry_backoff"),
        ({"groups": 5}, "groups=5"),
        ({"groups": None}, "groups=None"),
        ({"groups": b"ab"}, "groups=b'ab'"),
        ({"groups": ()}, "groups"),
        ({"paused_groups": 5}, "paused_groups=5"),
        ({"groups": ("a", "a")}, "groups"),
        ({"groups": ("a b",)}, "group='a b'"),
        ({"groups": ("@",)}, "group='@'"),
    ],
)
def test_settings_out_of_bounds_are_refused_by_name(settings, named):
    with pytest.raises(InvalidOption, match=named):
        TopicDefinition("T", TopicType.PRIORITY, 1, **settings)


def test_a_definition_is_kept_as_json_and_read_back():
    definition = TopicDefinition(
        *("T", TopicType.PRIORITY, 8, 3, (10, 20), 0.5),
        exclusive=True,
        paused=True,
        paused_groups=("g",),
        groups=("", "g"),
        keyed=True,
        payload="first",
        on_expiry="dead",
        dead_retention_ms=5000,
        rate="100/s",
        burst=20,
        rate_by="slot",
        max_messages=100,
        max_bytes="2mb",
        time_to_live_ms=1000,
        unique_for_ms=2000,
    )
    assert json.loads(definition.to_json()) == {
        "burst": 20,
        "deadRetention": 5000,
        "exclusive": True,
        "groups": ["", "g"],
        "keyed": True,
        "maxBytes": 2 * 2**20,
        "maxMessages": 100,
        "maxRetries": 3,
        "onExpiry": "dead",
        "paused": True,
        "pausedGroups": ["g"],
        "payload": "first",
        "rate": "100/s",
        "rateBy": "slot",
        "retryBackoff": [10, 20],
        "retryJitter": 0.5,
        "slotAmount": 8,
        "timeToLive": 1000,
        "topicType": "Priority",
        "uniqueFor": 2000,
    }
    assert TopicDefinition.from_json("T", definition.to_json()) == definition


@pytest.mark.parametrize(
    "text",
    ["", "no json", "[]", "null", "{}", '{"topicType": "Other"}', b"\xff"],
)
def test_a_definition_that_cannot_be_read_is_an_error_of_ours(text):
    with pytest.raises(ScriptFailed, match="definition of topic T in rmq_topics cannot be read"):
        TopicDefinition.from_json("T", text)


@pytest.mark.parametrize(
    ("rate", "burst", "kept", "interval_ms", "at_once", "a_claim"),
    [
        ("100/s", None, "100/s", 10, 100, 5),
        (" 100 / s ", 7, "100/s", 10, 7, 5),
        ("6000/m", None, "6000/m", 10, 100, 5),
        ("10/h", None, "10/h", 360_000, 1, 1),
        ("1/d", 2, "1/d", 86_400_000, 2, 1),
        ("1000000/s", None, "1000000/s", 0.001, 1_000_000, 50_000),
        ("1000000/s", 10, "1000000/s", 0.001, 10, 10),
    ],
)
def test_a_rate_is_a_number_of_messages_in_a_time(rate, burst, kept, interval_ms, at_once, a_claim):
    topic = TopicDefinition("T", TopicType.FIXED_TIME, rate=rate, burst=burst)
    assert (topic.rate, topic.interval_ms) == (kept, interval_ms)
    assert (topic.most_at_once, topic.messages_a_claim) == (at_once, a_claim)


def test_a_rate_is_taken_away_as_none():
    topic = TopicDefinition("T", TopicType.FIXED_TIME, rate="100/s", burst=5)
    changes = parse_settings("changed", {"rate": "none", "burst": "none"})
    assert topic.changed(**changes) == TopicDefinition("T", TopicType.FIXED_TIME)
    assert topic.changed(rate=None, burst=None).rate is None


DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("given", "ms"),
    [
        *(("30d", 30 * DAY_MS), ("12h", DAY_MS // 2), ("1ms", 1), (" 5000ms ", 5000)),
        *((5000, 5000), (timedelta(days=2), 2 * DAY_MS), (2**52, 2**52)),
        *((None, None), ("none", None), ("None ", None)),
    ],
)
def test_a_retention_is_a_duration_or_none(given, ms):
    for keyword in ("dead_retention", "time_to_live", "unique_for"):
        assert parse_settings("set", {keyword: given}) == {f"{keyword}_ms": ms}


@pytest.mark.parametrize(
    "given",
    ["", "0", "30", "0s", "0.5ms", "-1d", "30 days", "soon", 0, -1, True, 1.5, 2**53, b"1d"],
)
def test_a_retention_that_is_not_accepted_is_named(given):
    with pytest.raises(InvalidOption) as raised:
        parse_settings("set", {"dead_retention": given})
    said = "is not accepted. Accepted: none, or a duration with its unit: 12h, 30d."
    assert str(raised.value) == f"dead_retention={given!r} {said}"


def test_a_definition_of_before_keeps_the_dead_for_ever():
    text = json.loads(TopicDefinition("T", TopicType.PRIORITY).to_json())
    del text["deadRetention"]
    assert TopicDefinition.from_json("T", json.dumps(text)).dead_retention_ms is None


@pytest.mark.parametrize("name", ["exclusive", "paused"])
@pytest.mark.parametrize("value", ["false", "no", None, 0])
def test_a_flag_is_true_or_false_and_no_text(name, value):
    with pytest.raises(InvalidOption, match=rf"{name}=.* is not accepted. Accepted: True or False"):
        TopicDefinition("T", TopicType.PRIORITY, **{name: value})


@pytest.mark.parametrize("basis", [3, None])
def test_a_slot_basis_is_text_or_bytes(basis):
    with pytest.raises(InvalidOption, match=rf"slot_basis={basis} .* Accepted: bytes or str"):
        TopicDefinition("T", TopicType.PRIORITY, 4).slot_of(basis)
