"""The command line as a whole."""

import pytest

from rmq_spark.cli.app import COMMANDS


def test_every_command_is_in_the_folder_of_commands():
    modules = {command.__module__ for group in COMMANDS.values() for command in group.values()}
    assert {name.rpartition(".")[0] for name in modules} == {"rmq_spark.cli.commands"}


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (("listen",), "'function'. What to call: module:function, such as shop.billing:bill."),
        (("listen", "a:b"), "'--topic'. The name of a topic: see `rmq topics`."),
        (("show",), "'topic'. The name of a topic: see `rmq topics`."),
        (("create",), "'topic'. The name of the new topic."),
    ],
)
def test_what_is_missing_is_explained(rmq, words, missing):
    """Failed before: the name alone."""
    result = rmq(*words)
    assert result.code == 2
    assert result.err.rstrip().endswith(missing)
