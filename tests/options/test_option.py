"""Options as they are declared and parsed, without any server."""

import subprocess
import sys
import traceback
from contextlib import suppress

import pytest

from rmq_spark import options
from rmq_spark.errors import InvalidOption, without_login
from rmq_spark.options import CONNECTION, ENSEMBLE, LISTENER, SINK, SOURCE, TABLE
from rmq_spark.topics.parsing import TEXT, NotAccepted, Option, OptionTable, Parser, whole

TABLES = (CONNECTION, ENSEMBLE, SOURCE, SINK, TABLE, LISTENER)
OF_JOBS = tuple(
    one for one in vars(options).values() if isinstance(one, Option) and one.name.startswith("--")
)
DECLARED = sorted(
    {id(one): one for one in (*OF_JOBS, *(o for t in TABLES for o in t.options))}.values(),
    key=lambda option: option.name,
)
SIZE = Option("size", whole(1, 9), "Size", default="3")
COLOUR = Option("colour", TEXT, "Colour")
THINGS = OptionTable("things", (SIZE, COLOUR), passed_over=frozenset({"path"}))


def not_accepted(text):
    raise NotAccepted("is wrong")


def whole_sentence(text):
    raise InvalidOption(f"code={text!r} is wrong.")


def refusal(option, text):
    with pytest.raises(InvalidOption) as raised:
        option.parse(text)
    return str(raised.value), "".join(traceback.format_exception(raised.value))


def test_a_value_that_is_given_is_parsed_and_one_that_is_not_has_its_default():
    given = THINGS.parse({"SIZE": "7", "Path": "elsewhere"})
    assert (SIZE in given, given[SIZE], given.get(SIZE)) == (True, 7, 7)
    assert (COLOUR in given, given.get(COLOUR)) == (False, None)
    absent = THINGS.parse({})
    assert (SIZE in absent, absent[SIZE], absent.get(SIZE)) == (False, 3, 3)
    with pytest.raises(KeyError):
        absent[COLOUR]


@pytest.mark.parametrize("read", [not_accepted, whole_sentence])
def test_the_value_of_a_secret_is_in_no_error(read):
    code = Option("code", Parser(read, "`abc`", "Ask for it."), "Code", is_secret=True)
    said, trace = refusal(code, "s3cret")
    assert said == (
        "code is not accepted (its value is not shown: it may contain a password). "
        "Accepted: abc. Ask for it."
    )
    assert "s3cret" not in trace.replace('refusal(code, "s3cret")', "")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("redis://me:s3 cret@h:1 is away", "redis://***@h:1 is away"),
        ("s3://me:s/3cret@bucket is away", "s3://***@bucket is away"),
        ("'redis://h?db=1&password=s3cret&a=b'", "'redis://h?db=1&password=***&a=b'"),
        ("jdbc:sqlserver://h;Password=s3cret; x", "jdbc:sqlserver://h;Password=***; x"),
        (
            "jdbc:mariadb://h/db?keyStorePassword=s3cret.",
            "jdbc:mariadb://h/db?keyStorePassword=***",
        ),
        ("password=told elsewhere", "password=told elsewhere"),
        ("redis://h:6379 is away; ask anna@h", "redis://h:6379 is away; ask anna@h"),
        ("file://x is no folder\nat Thread@1a2b", "file://x is no folder\nat Thread@1a2b"),
    ],
)
def test_of_a_text_with_an_address_only_the_login_is_hidden(said, shown):
    assert without_login(said) == shown


@pytest.mark.parametrize("option", DECLARED, ids=lambda option: option.name)
@pytest.mark.parametrize(
    "address",
    [
        "s3a://me:s3cret@bucket/folder",
        "s3a://me:s3/s3cret@bucket",
        "s3a://s3cret@bucket",
        "me:s3cret@host,other",
        f"s3a://me:s3cret {'x' * 600}@bucket",
    ],
)
def test_the_login_of_an_address_is_in_no_error(option, address):
    with suppress(InvalidOption):
        option.parse(address)
        return
    said, _ = refusal(option, address)
    assert "s3cret" not in said


@pytest.mark.parametrize("value", [5, None, b"5", True])
def test_a_value_that_is_no_text_is_refused(value):
    said, _ = refusal(SIZE, value)
    assert said == f"size={value!r} is not accepted. Accepted: a whole number, 1 to 9."


def test_an_option_by_another_name_says_so():
    said, _ = refusal(SIZE.called("--size"), "0")
    assert said.startswith("--size='0' is not accepted.")


@pytest.mark.parametrize("option", DECLARED, ids=lambda option: option.name)
def test_a_declared_option_is_whole(option):
    assert option.help
    assert not option.help.endswith(".")
    assert option.parser.accepted
    assert "|" not in f"{option.help}{option.parser.accepted}{option.otherwise}"
    assert option.default is None or not option.otherwise
    if option.default is not None:
        assert option.default_value is not None


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.owner)
def test_a_name_stands_once_in_a_table(table):
    assert [option for option in table.options if table.find(option.name.upper()) != option] == []


def test_what_may_hold_a_password_is_a_secret():
    secrets = {option.name for option in DECLARED if option.is_secret}
    passwords = {option.name for option in DECLARED if "password" in option.name.lower()}
    assert secrets == {*passwords, "redis.url", "redis.sentinels"}


def test_options_need_no_spark_no_client_and_no_zookeeper():
    program = (
        "import sys; import rmq_spark.options;"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "rmq_spark" in done.stdout.split()
    assert {"pyspark", "pandas", "pyarrow", "kazoo", "typer"} & set(done.stdout.split()) == set()
