"""The settings of the console: its address, who may use it, and what it may do."""

import ipaddress
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rmq_spark.errors import InvalidOption

SHORTEST_TOKEN = 16
_ACCEPTED_TOKENS = (
    f"a file with lines such as 'anna TOKEN', each token at least {SHORTEST_TOKEN} characters long"
)
_REMEDY = 'Make one: echo "anna $(openssl rand -hex 24)" > console-tokens; chmod 600 console-tokens'


@dataclass(frozen=True)
class ConsoleSettings:
    """The settings of the console. Its repr shows no secret.

    host, port: where it listens. allow_changes: whether pages may change queues. hide_contents:
    whether no page shows what is in messages. tokens: the token of each user; empty if everybody
    who reaches the address may use it. names: further names under which browsers reach it.
    """

    host: str = "127.0.0.1"
    port: int = 0
    allow_changes: bool = False
    hide_contents: bool = False
    tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    names: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.tokens and not is_loopback(self.host):
            raise InvalidOption(
                f"--host={self.host} needs --tokens, because others can reach this address. "
                f"Accepted: {_ACCEPTED_TOKENS}. {_REMEDY}"
            )

    def user_of(self, token: str) -> str | None:
        """Return the user whose token this is; None if it is nobody's."""
        given = token.encode()
        found = [
            name
            for name, known in self.tokens.items()
            if secrets.compare_digest(known.encode(), given)
        ]
        return found[0] if found else None

    def is_own_name(self, host: str) -> bool:
        """Return whether a request for this host is meant for the console.

        An address is no name that a stranger's name server could lead here, so any is accepted.
        host: without the port.
        """
        known = {"localhost", self.host.lower(), *(name.lower() for name in self.names)}
        return host.lower() in known or _address_of(host) is not None


def is_loopback(host: str) -> bool:
    """Return whether only programs of this machine reach an address."""
    address = _address_of(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def _address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def read_tokens(file: Path) -> dict[str, str]:
    """Read the tokens of users. Raises InvalidOption, which shows no token."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidOption(
            f"--tokens={str(file)!r} cannot be read ({reason}). Accepted: {_ACCEPTED_TOKENS}. "
            f"{_REMEDY}"
        ) from None
    tokens: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or line.startswith("#"):
            continue
        if len(words) != 2 or len(words[1]) < SHORTEST_TOKEN or words[0] in tokens:
            raise InvalidOption(
                f"--tokens={str(file)!r}: line {number} is not accepted (it is not shown: it may "
                f"hold a token). Accepted: {_ACCEPTED_TOKENS}, each name once."
            )
        tokens[words[0]] = words[1]
    if not tokens:
        raise InvalidOption(
            f"--tokens={str(file)!r} names nobody. Accepted: {_ACCEPTED_TOKENS}. {_REMEDY}"
        )
    return tokens
