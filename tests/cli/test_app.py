"""The command line as a whole."""

import pytest

from rmq_spark.cli.app import COMMANDS


def test_every_command_is_a_function_of_the_room():
    modules = {command.__module__ for group in COMMANDS.values() for command in group.values()}
    assert all(name.startswith("rmq_spark.cli.") for name in modules)


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (
            ("listen",),
            "'TOPIC FUNCTION | MODULE'. What to call: TOPIC module:function, such as Orders "
            "shop.billing:bill, or modules with functions that @rmq_spark.listener has marked.",
        ),
        (
            ("listen", "T"),
            "'--name'. The name of this listener. One process at a time may use it.",
        ),
        (("show",), "'topic'. The name of a topic: see `rmq topics`."),
        (("create",), "'topic'. The name of the new topic."),
    ],
)
def test_what_is_missing_is_explained(rmq, words, missing):
    """Failed before: the name alone."""
    result = rmq(*words)
    assert result.code == 2
    assert result.err.rstrip().endswith(missing)
