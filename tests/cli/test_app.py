"""The command line as a whole."""

from rmq_spark.cli.app import COMMANDS


def test_every_command_is_in_the_folder_of_commands():
    modules = {command.__module__ for group in COMMANDS.values() for command in group.values()}
    assert {name.rpartition(".")[0] for name in modules} == {"rmq_spark.cli.commands"}
