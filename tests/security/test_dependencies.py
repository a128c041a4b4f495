"""The pinned packages have no vulnerability that is known where the database can be reached."""

import subprocess

import pytest

from .. import programs
from ..servers import NOBODYS_PORT


def audit(*arguments, **environ):
    return subprocess.run(
        programs.command("security.audit", *arguments),
        env=programs.environment(**environ),
        capture_output=True,
        text=True,
        timeout=240,
    )


def audited(*arguments):
    """An audit that took place; where it cannot, the test is skipped with its line."""
    done = audit(*arguments)
    if done.stdout.startswith("audit: skipped"):
        pytest.skip(done.stdout.strip())
    return done


def test_no_vulnerability_is_known_in_what_is_pinned():
    done = audited()
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_known_vulnerability_is_found(tmp_path):
    pins = tmp_path / "pins.txt"
    pins.write_text("jinja2==2.4.1\n")
    done = audited(pins)
    assert done.returncode == 1
    assert "jinja2" in done.stdout


def test_where_the_database_cannot_be_reached_one_line_says_so():
    nobody = f"http://127.0.0.1:{NOBODYS_PORT}"
    done = audit(https_proxy=nobody, HTTPS_PROXY=nobody, no_proxy="", NO_PROXY="")
    assert done.returncode == 0
    assert done.stdout.startswith("audit: skipped, https://api.osv.dev cannot be reached: ")
    assert done.stdout.count("\n") == 1
