"""Passwords, the users docs/security.md gives them to, and where one of them shows."""

import re
from urllib.parse import quote

import redis

from .documented import documented_users

PREFIX = "shop:"
# With what an address must encode, and halves that are found nowhere by chance.
SECRET = "Tq8-first-half#/x%?@second-half-9Zk"
WRONG = "Wq7-no-password#/y%?@of-anybody-8Vm"
ADMIN = "Aq6-the-admins#/z%?@own-password-7Um"
KEY_SECRET = "Kq5-opens-the#/k%?@private-key-6Tm"


def permit(url, user, password=SECRET, without="", prefix=PREFIX):
    """Makes a documented user on a server, less one command, for keys with another prefix."""
    rules = [rule.replace(f"~{PREFIX}", f"~{prefix}") for rule in documented_users()[user]]
    rules = [f">{password}" if rule.startswith(">") else rule for rule in rules]
    with redis.Redis.from_url(url) as admin:
        if not knows_selectors(admin):  # then the page says to write the commands without them
            rules = [word for rule in rules for word in _without_selector(rule)]
        wanted = [re.sub(rf"\+{re.escape(without)}(?![\w|]) ?", "", rule) for rule in rules]
        admin.execute_command("ACL", "SETUSER", user, *filter(None, wanted if without else rules))


def knows_selectors(admin):
    """Whether a server takes rules in parentheses, as Redis 7 and later do."""
    return int(admin.info("server")["redis_version"].split(".")[0]) >= 7


def _without_selector(rule):
    return re.findall(r"\+[^\s)]+", rule) if rule.startswith("(") else [rule]


def variants(secret):
    """A secret as it might be written somewhere: itself, encoded, either half."""
    halves = secret[: len(secret) // 2], secret[len(secret) // 2 :]
    return {text for part in (secret, *halves) for text in (part, quote(part, safe=""))}


def found_in(text, *secrets):
    return sorted(v for secret in secrets for v in variants(secret) if v in text)
