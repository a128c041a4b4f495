"""Options that are refused, each with what it says."""

import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from rmq_spark.errors import InvalidOption, TopicMismatch, UnknownTopic
from rmq_spark.options import SINK, SOURCE
from rmq_spark.spark.datasource import RmqDataSource
from rmq_spark.spark.options import parse_sink_options, parse_source_options
from rmq_spark.spark.schemas import SOURCE_SCHEMA, check_schema
from rmq_spark.spark.tables import parse_table_options

from .driving import refused

DURATION = "a number with its unit, one of ms, s, m, h or d"
TOPIC_OF = {
    parse_source_options: lambda given: parse_source_options(given).subscription.text,
    parse_sink_options: lambda given: parse_sink_options(given).topic,
}
CONTENT = StructType().add("content", StringType())


@pytest.mark.parametrize("parse", [parse_source_options, parse_sink_options])
@pytest.mark.parametrize("name", ["a{b}", "{", "}", "", "x" * 201, "a b", "a:b", "ä", "a\n"])
def test_a_topic_name_with_other_characters_empty_or_too_long_is_refused(parse, name):
    with refused(InvalidOption, "topic=", "1 to 200 of . _ - A-Z a-z 0-9"):
        parse({"topic": name})


@pytest.mark.parametrize("parse", [parse_source_options, parse_sink_options])
def test_a_topic_name_of_200_characters_is_accepted(parse):
    assert TOPIC_OF[parse]({"topic": "x" * 200}) == "x" * 200


def test_reading_without_a_topic_is_refused():
    with refused(InvalidOption, "The option topic is missing"):
        parse_source_options({})


def test_writing_without_a_topic_in_option_or_column_is_refused(rmq):
    with refused(InvalidOption, 'Accepted: .option("topic", ...), or a STRING column named topic'):
        rmq.writer(CONTENT)


@pytest.mark.parametrize("parse", [parse_source_options, parse_sink_options])
@pytest.mark.parametrize("amount", ["0", "3", "-1", "131072", "many", "", "1.0", "64.5"])
def test_a_slot_amount_that_is_no_power_of_two_to_65536_is_refused(parse, amount):
    with refused(InvalidOption, f"slotAmount={amount!r}", "a power of two, 1 to 65536"):
        parse({"topic": "T", "slotAmount": amount})


@pytest.mark.parametrize("parse", [parse_source_options, parse_sink_options])
@pytest.mark.parametrize("amount", [1, 2, 64, 65536])
def test_a_power_of_two_is_accepted_as_slot_amount(parse, amount):
    assert parse({"topic": "T", "SLOTAMOUNT": str(amount)}).slot_amount == amount


@pytest.mark.parametrize("parse", [parse_source_options, parse_sink_options])
def test_an_unknown_topic_type_is_refused_with_the_three_there_are(parse):
    with refused(InvalidOption, "topicType='Fifo'", "RangeMerge, Priority, FixedTime"):
        parse({"topic": "T", "topicType": "Fifo"})


@pytest.mark.parametrize(
    ("parse", "owner", "table", "meant"),
    [
        (parse_source_options, "the rmq source", SOURCE, "slotAmount"),
        (parse_sink_options, "the rmq sink", SINK, "slotBasis"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_and_all_accepted(parse, owner, table, meant):
    given = "slotbases" if meant == "slotBasis" else "slotamuont"
    with refused(
        InvalidOption,
        f"Unknown option for {owner}: {given}. Did you mean {meant}? Accepted: topic",
        *(option.name for option in table.options),
    ):
        parse({"topic": "T", given: "x"})


def test_of_an_unknown_option_near_to_none_no_guess_is_made():
    with refused(InvalidOption, "Unknown option for the rmq source: xyz. Accepted: topic, topics,"):
        parse_source_options({"topic": "T", "xyz": "x"})


def test_several_unknown_options_are_all_named():
    with refused(
        InvalidOption,
        "the rmq source: redis.ulr, topicc. Did you mean redis.url, topic? Accepted: to",
    ):
        parse_source_options({"topicc": "T", "redis.ulr": "secret"})


@pytest.mark.parametrize(
    ("parse", "foreign"),
    [
        (parse_source_options, "pastFixedTime"),
        (parse_source_options, "priority"),
        (parse_sink_options, "maxRecordsPerTrigger"),
        (parse_sink_options, "visibilityTimeout"),
    ],
)
def test_an_option_of_the_other_side_is_unknown_here(parse, foreign):
    with refused(InvalidOption, "Unknown option for the rmq s", f": {foreign}."):
        parse({"topic": "T", foreign: "1"})


@pytest.mark.parametrize("parse", [parse_source_options, parse_sink_options])
def test_sparks_own_options_are_let_through(parse):
    own = {"path": "x", "checkpointLocation": "y", "queryName": "q", "outputMode": "append"}
    assert TOPIC_OF[parse]({"topic": "T", **own}) == "T"


def test_an_unknown_option_of_the_client_is_refused_with_those_accepted():
    with refused(
        InvalidOption,
        "the rmq source: redis.pasword. Did you mean redis.password? Accepted: redis.url,",
        "redis.socketTimeout",
    ):
        parse_source_options({"topic": "T", "redis.pasword": "hunter2"})


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("visibilityTimeout", "60", DURATION),
        ("visibilityTimeout", "soon", DURATION),
        ("visibilityTimeout", "", DURATION),
        ("visibilityTimeout", "-5s", DURATION),
        ("visibilityTimeout", "5 weeks", DURATION),
        ("visibilityTimeout", "999ms", "is too short. Accepted: a duration, 1s to 366d."),
        ("visibilityTimeout", "0s", "is too short. Accepted: a duration, 1s to 366d."),
        ("maxProcessingTime", "10", DURATION),
        ("maxProcessingTime", "0s", "is too short. Accepted: a duration, 1ms to 366d."),
        ("pollInterval", "100", DURATION),
        ("pollInterval", "0ms", "is too short. Accepted: a duration, 1ms to 366d."),
        ("pollInterval", "0.2ms", "is too short. Accepted: a duration, 1ms to 366d."),
        ("maxRecordsPerTrigger", "-1", "a whole number, 0 to"),
        ("maxRecordsPerTrigger", "--1", "a whole number, 0 to"),
        ("maxRecordsPerTrigger", "1.5", "a whole number, 0 to"),
        ("maxRecordsPerTrigger", "all", "a whole number, 0 to"),
        ("maxRecordsPerTrigger", "", "a whole number, 0 to"),
        ("numPartitions", "0", "a whole number, 1 to"),
        ("numPartitions", "eight", "a whole number, 1 to"),
        ("redis.cluster", "yes", "true or false"),
        ("redis.socketTimeout", "5", DURATION),
        ("redis.sslCertReqs", "maybe", "required, optional, none"),
        ("keyPrefix", "shop", "ends in ':'"),
        ("keyPrefix", "{shop}:", "no braces"),
        ("keyPrefix", ":", "ends in ':'"),
    ],
)
def test_a_bad_value_of_a_source_option_names_option_and_value_and_what_is_accepted(
    option, value, said
):
    with refused(InvalidOption, f"{option}={value!r}", "Accepted: ", said):
        parse_source_options({"topic": "T", option: value})


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("priority", "16", "a whole number, 17 to 9007199254740992"),
        ("priority", "16.5", "a whole number, 17 to"),
        ("priority", "--17", "a whole number, 17 to"),
        ("priority", "9007199254740993", "a whole number, 17 to"),
        ("timeRange", "0", "1 to 4503599627370496 ms, or a duration: 30s"),
        ("timeRange", "-5", "1 to 4503599627370496 ms, or a duration: 30s"),
        ("timeRange", "--5", DURATION),
        ("timeRange", "0s", "is too short. Accepted: 1 to 4503599627370496 ms"),
        ("timeRange", "5 fortnights", DURATION),
        ("timeRange", "9" * 30 + "d", "is too long. Accepted: 1 to 4503599627370496 ms"),
        ("fixedTime", "-1", "0 to 9007199254740992 ms since 1970"),
        ("fixedTime", "--1", "ISO 8601 with a zone"),
        ("fixedTime", "tomorrow", "ISO 8601 with a zone"),
        ("fixedTime", "2030-01-01T00:00:00", "ISO 8601 with a zone"),
        ("delay", "-1", "0 to 4503599627370496 ms, or a duration: 30s"),
        ("delay", "5 fortnights", DURATION),
        ("delay", "9" * 30 + "d", "is too long. Accepted: 0 to 4503599627370496 ms"),
        ("pastFixedTime", "drop", "send, fail"),
    ],
)
def test_a_bad_value_of_a_sink_option_names_option_and_value_and_what_is_accepted(
    option, value, said
):
    with refused(InvalidOption, f"{option}={value!r}", "Accepted: ", said):
        parse_sink_options({"topic": "T", option: value})


@pytest.mark.parametrize("value", ["9" * 400 + "d", "9" * 30 + "d"])
@pytest.mark.parametrize("option", ["visibilityTimeout", "maxProcessingTime", "pollInterval"])
def test_an_absurdly_long_duration_is_refused_not_a_crash_later(option, value):
    with refused(InvalidOption, option):
        parse_source_options({"topic": "T", option: value})


@pytest.mark.parametrize(
    ("text", "ms"), [("500", 500), ("90s", 90_000), ("1.5h", 5_400_000), ("2000d", 172_800_000_000)]
)
def test_a_time_range_for_all_rows_may_be_ms_or_a_duration(text, ms):
    assert parse_sink_options({"topic": "T", "timeRange": text}).time_range == ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [("17", 17), ("1970-01-01T00:00:01Z", 1000), ("1970-01-01T01:00:01+01:00", 1000)],
)
def test_a_fixed_time_for_all_rows_may_be_ms_or_iso_8601(text, ms):
    assert parse_sink_options({"topic": "T", "fixedTime": text}).fixed_time == ms


def test_the_defaults_are_those_of_the_documentation():
    source = parse_source_options({"topic": "T"})
    assert (source.limits.total, source.lease_ms, source.poll_interval_ms) == (500_000, 60_000, 100)
    assert (source.num_partitions, source.max_processing_ms, source.key_prefix) == (None, None, "")
    assert not parse_sink_options({"topic": "T"}).fail_past


def test_a_stream_takes_no_queue():
    with refused(
        InvalidOption, "does not take the option queue", "read a queue as a table with spark.read"
    ):
        parse_source_options({"topic": "T", "queue": "dead"})


@pytest.mark.parametrize("queue", ["", "dea", "dead;store", "all,dead", "dead,,store"])
def test_a_queue_that_is_none_is_refused(queue):
    with refused(InvalidOption, f"queue={queue!r}", "store, prepare, retry, dead", "or all"):
        parse_table_options({"topic": "T", "queue": queue})


def test_a_table_without_a_topic_is_refused():
    with refused(InvalidOption, "The option topic is missing"):
        parse_table_options({"queue": "dead"})


@pytest.mark.parametrize("slots", ["", "a", "-1", "3-", "5-3", "65536", "1,,2", "0-65536", "1.5"])
def test_slots_of_a_table_that_are_none_are_refused(slots):
    with refused(InvalidOption, f"slots={slots!r}", "0,8-15", "65535"):
        parse_table_options({"topic": "T", "queue": "dead", "slots": slots})


def test_slots_of_a_table_are_numbers_and_ranges():
    given = {"topic": "T", "queue": "dead", "slots": " 0, 8-10 ,9"}
    assert parse_table_options(given).scope.slots == {0, 8, 9, 10}


@pytest.mark.parametrize("name", ["startingTime", "endingTime"])
@pytest.mark.parametrize("time", ["soon", "-1", "2030-01-01T08:00:00", ""])
def test_a_time_of_a_table_without_zone_or_sense_is_refused(name, time):
    with refused(InvalidOption, f"{name}={time!r}", "Accepted"):
        parse_table_options({"topic": "T", "queue": "dead", name: time})


def test_an_unknown_option_of_a_table_is_refused_with_those_there_are():
    with refused(InvalidOption, "Unknown option for a queue as a table: pollInterval.", "slots"):
        parse_table_options({"topic": "T", "queue": "dead", "pollInterval": "1s"})


def test_properties_of_a_catalogs_table_are_no_options():
    given = {"owner": "me", "provider": "rmq", "a": "b", "comment": "c", "topic": "T"}
    given |= {"option.topic": "T", "option.queue": "dead"}
    assert RmqDataSource(given).options == {"topic": "T", "queue": "dead"}
    assert RmqDataSource({"topic": "T", "a": "b"}).options == {"topic": "T", "a": "b"}


def test_a_batch_read_is_refused_with_what_to_do_instead():
    source = RmqDataSource({"topic": "T"})
    with refused(InvalidOption, "spark.read cannot consume", ".trigger(availableNow=True)"):
        source.reader(SOURCE_SCHEMA)


@pytest.mark.parametrize(("make", "mode"), [("writer", "mode"), ("streamWriter", "outputMode")])
def test_overwriting_is_refused_with_what_to_write(make, mode):
    source = RmqDataSource({"topic": "T", "topicType": "Priority"})
    with refused(InvalidOption, "cannot be overwritten", f'{mode}("append")'):
        getattr(source, make)(CONTENT, True)


def test_a_schema_with_a_column_that_the_source_has_not_is_refused_with_those_it_has():
    asked = StructType([StructField("value", StringType())])
    with refused(
        InvalidOption, "asks for value string", "dueTime timestamp", "content may be binary"
    ):
        check_schema(asked, SOURCE_SCHEMA, "the rmq source")


@pytest.mark.parametrize(
    ("field", "told"),
    [
        (StructField("content", IntegerType()), "content as int. Accepted: string or binary."),
        (StructField("slot", LongType()), "slot as bigint. Accepted: int."),
        (StructField("dueTime", LongType()), "dueTime as bigint. Accepted: timestamp."),
    ],
)
def test_a_schema_with_another_type_is_refused_with_the_one_that_the_column_has(field, told):
    with refused(InvalidOption, f"asks for {told}"):
        check_schema(StructType([field]), SOURCE_SCHEMA, "the rmq source")


def test_a_schema_with_a_column_twice_is_refused_before_anything_is_claimed():
    """Failed before: Java failed at the first batch, whose messages waited for their lease."""
    with refused(InvalidOption, "asks for content more than once"):
        check_schema(
            StructType([CONTENT["content"], CONTENT["content"]]), SOURCE_SCHEMA, "the rmq source"
        )


def test_a_schema_without_columns_is_refused():
    with refused(InvalidOption, "has no columns"):
        check_schema(StructType(), SOURCE_SCHEMA, "the rmq source")


def test_reading_a_topic_that_does_not_exist_fails_and_does_not_make_it(rmq):
    name = rmq.name()
    run = rmq.by_hand(rmq.queue(), topic=name, topicType="Priority", slotAmount=4)
    with refused(UnknownTopic, f"The topic {name} does not exist", "A reader never creates"):
        run.plan(run.initial())
    assert rmq.broker.find(name) is None


def test_writing_a_new_topic_without_its_type_is_refused_and_does_not_make_it(rmq):
    name = rmq.name()
    with refused(UnknownTopic, f"The topic {name} does not exist on", "topicType"):
        rmq.writer(CONTENT, topic=name)
    assert rmq.broker.find(name) is None


@pytest.mark.parametrize(
    ("other", "shown"),
    [
        ({"topicType": "Priority"}, "you asked for Priority. "),
        ({"slotAmount": "8"}, "you asked for 8 slots. "),
        ({"topicType": "RangeMerge", "slotAmount": "1"}, "for RangeMerge with 1 slot. "),
    ],
)
def test_a_second_definition_that_differs_is_refused_showing_both(rmq, other, shown):
    queue = rmq.queue("FixedTime", 4)
    name = queue.definition.name
    exists = f"The topic {name} exists as FixedTime with 4 slots"
    with refused(TopicMismatch, exists, shown):
        rmq.writer(CONTENT, topic=name, **other)
    run = rmq.by_hand(queue, **other)
    with refused(TopicMismatch, exists, shown, "leave out topicType and slotAmount."):
        run.plan(run.initial())


def test_a_definition_that_agrees_is_accepted_again(rmq):
    queue = rmq.queue("FixedTime", 4)
    rmq.writer(
        CONTENT, topic=queue.definition.name, topicType="fixedtime", slotAmount="4", fixedTime="99"
    )
