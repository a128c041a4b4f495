"""Names of consumers and claims, as texts in Redis, checkpoints and rows."""

import re
from dataclasses import dataclass
from typing import NamedTuple

from rmq_spark.errors import InvalidOption
from rmq_spark.topics.keys import DEFAULT_GROUP

_WORD = r"[A-Za-z0-9._-]{1,200}"
_NUMBER = r"0|[1-9][0-9]{0,14}"
_CONSUMER = re.compile(rf"({_WORD})(?:@({_WORD}))?")
_CLAIM_ID = re.compile(rf"({_WORD}(?:@{_WORD})?):({_NUMBER}):(0|[1-9][0-9]?):({_NUMBER})")


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
                "each 1 to 200 of A-Z a-z 0-9 . _ -"
            )
        return ConsumerName(match[1], match[2] or DEFAULT_GROUP)


@dataclass(frozen=True, slots=True)
class ScopedName:
    """The name under which the runs of a plain consumer are counted: ``topic@group:name``.

    Users choose such names, so consumers of other topics or groups may have the same one.
    """

    topic: str
    group: str
    name: str

    def __str__(self) -> str:
        return f"{self.topic}@{self.group}:{self.name}"


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
            raise InvalidOption(
                f"claimId={text[:450]!r} is not accepted. Accepted: the claimId that came with the "
                "message, consumer:seq:ordinal:run."
            )
        consumer, seq, ordinal, run = match.groups()
        return ClaimId(consumer, int(seq), int(ordinal), int(run))
