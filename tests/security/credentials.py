"""Passwords, the users docs/security.md gives them to, and where one of them shows."""

from urllib.parse import quote

import redis

from .documented import documented_users

PREFIX = "shop:"
# With what an address must encode, and halves that are found nowhere by chance.
SECRET = "Tq8-first-half#/x%?@second-half-9Zk"
WRONG = "Wq7-no-password#/y%?@of-anybody-8Vm"
ADMIN = "Aq6-the-admins#/z%?@own-password-7Um"
KEY_SECRET = "Kq5-opens-the#/k%?@private-key-6Tm"


def permit(url, user, password=SECRET, without=""):
    """Makes a documented user on a server, less one command."""
    rules = [f">{password}" if rule.startswith(">") else rule for rule in documented_users()[user]]
    with redis.Redis.from_url(url) as admin:
        admin.execute_command("ACL", "SETUSER", user, *(r for r in rules if r != f"+{without}"))


def variants(secret):
    """A secret as it might be written somewhere: itself, encoded, either half."""
    halves = secret[: len(secret) // 2], secret[len(secret) // 2 :]
    return {text for part in (secret, *halves) for text in (part, quote(part, safe=""))}


def found_in(text, *secrets):
    return sorted(v for secret in secrets for v in variants(secret) if v in text)
