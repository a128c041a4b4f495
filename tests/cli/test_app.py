"""The command line as a whole."""

import os
import subprocess
import sys

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


def test_a_credential_provider_is_found_in_the_current_folder(rmq, tmp_path):
    """Failed before: only `rmq listen` and `python -m` looked there."""
    rmq.topic()
    text = (
        "from redis.credentials import CredentialProvider\n\n"
        "class Default(CredentialProvider):\n"
        "    def get_credentials(self):\n"
        "        return 'default', 'any'\n"
    )
    (tmp_path / "shop_login.py").write_text(text)
    script = [sys.executable, "-P", *rmq.command()[1:]]  # -P: as the script rmq, without the folder
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [*script, "-o", "redis.credentialProvider=shop_login:Default", "topics", "--json"],
        cwd=tmp_path, env=environment, capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")


def test_metrics_end_at_an_option_that_can_never_work(rmq):
    """Failed before: they were served, and said that Redis was away."""
    done = rmq("-o", "redis.credentialProvider=nowhere_to_be_found:new", "metrics", "--port", "0")
    assert (done.code, "ModuleNotFoundError" in done.err) == (2, True)
