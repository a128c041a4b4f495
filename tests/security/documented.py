"""The Redis users that docs/security.md lets paste."""

import re

from .. import ROOT


def documented_users():
    """By user, the words behind its name; words in parentheses are one."""
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    lines = re.findall(r"^ACL SETUSER (\S+) (.*)$", text, re.MULTILINE)
    return {user: re.findall(r"\([^)]*\)|\S+", rules) for user, rules in lines}


def documented_commands(user):
    """The commands that a user may run, on some keys or on all."""
    return re.findall(r"\+([^\s)]+)", " ".join(documented_users()[user]))
