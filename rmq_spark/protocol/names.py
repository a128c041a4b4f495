"""Names of consumers and claims, as texts in Redis, checkpoints and rows."""

import re
from dataclasses import dataclass
from typing import NamedTuple

from rmq_spark.errors import InvalidOption
from rmq_spark.topics.keys import ACCEPTED_NAME, DEFAULT_GROUP, NAME

_NUMBER = r"0|[1-9][0-9]{0,14}"
_CONSUMER = re.compile(rf"({NAME})(?:@({NAME}))?")
_CLAIM_ID = re.compile(rf"({NAME}(?:@{NAME})?):({_NUMBER}):(0|[1-9][0-9]?):({_NUMBER})")


@dataclass(frozen=True, slots=True)
class ConsumerName:
    """The name of a consumer in slots and claims: ``name`` or ``name@group``.

    group: the consumer group that a query reads. As a part of the name, it appears in every claim.
    The default group is not written, nor is the group of a plain consumer.
    """

    name: str
    group: str = DEFAULT_GROUP

    def __str__(self) -> str:
        return f"{self.name}@{self.group}" if self.group else self.name

    @staticmethod
    def parse(text: str) -> "ConsumerName":
        """Parse a text that str returned. Raises InvalidOption for any other text."""
        match = _CONSUMER.fullmatch(text)
        if match is None:
            raise InvalidOption(
                f"The consumer name {text[:450]!r} is not accepted. Accepted: name or name@group, "
                f"each {ACCEPTED_NAME}"
            )
        return ConsumerName(match[1], match[2] or DEFAULT_GROUP)


@dataclass(frozen=True, slots=True)
class ScopedName:
    """The name that counts a plain consumer's runs: ``topic@group:name``, as users choose it."""

    topic: str
    group: str
    name: str

    def __str__(self) -> str:
        return f"{self.topic}@{self.group}:{self.name}"


# Stands before the name of what is left of a claim that is given back in parts. No consumer's name
# begins with it.
_REST = "~"


def rest_name(claim: str) -> str:
    """Name what is left of a claim that is given back in parts: it belongs to nobody any more."""
    return claim if claim.startswith(_REST) else _REST + claim


def claimed_by(claim: str) -> str:
    """Return the consumer that made a claim, by the name of the claim."""
    return claim.rsplit(":", 2)[0].removeprefix(_REST)


def claim_name(consumer: str, seq: int, ordinal: int) -> str:
    """Name a claim in Redis. consumer: a ConsumerName as text."""
    return f"{consumer}:{seq}:{ordinal}"


class ClaimId(NamedTuple):
    """The name of a claim that one run holds: ``consumer:seq:ordinal:run``.

    consumer: a ConsumerName as text. seq: the batch. ordinal: the number (0 to 15) of the claim
    among those of the same slot and batch. run: the run that took the messages.
    """

    consumer: str
    seq: int
    ordinal: int
    run: int

    def __str__(self) -> str:  # in one step, because every claim needs it
        return f"{self.consumer}:{self.seq}:{self.ordinal}:{self.run}"

    @property
    def name(self) -> str:
        """The name of the claim in Redis, which all runs share."""
        return claim_name(self.consumer, self.seq, self.ordinal)

    @staticmethod
    def parse(text: str) -> "ClaimId":
        """Parse a text that str returned. Raises InvalidOption for any other text."""
        match = _CLAIM_ID.fullmatch(text)
        if match is None:
            accepted = "the claimId that came with the message, consumer:seq:ordinal:run"
            raise InvalidOption.of("claimId", text[:450], accepted)
        consumer, seq, ordinal, run = match.groups()
        return ClaimId(consumer, int(seq), int(ordinal), int(run))
