"""The Redis users that docs/security.md lets paste."""

import re

from .. import ROOT


def documented_users():
    """By user, the words behind its name."""
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    lines = re.findall(r"^ACL SETUSER (\S+) (.*)$", text, re.MULTILINE)
    return {user: rules.split() for user, rules in lines}
