"""A call of a script, before it is on its way."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rmq_spark.protocol.messagepack import Pairs


@dataclass(frozen=True)
class Call:
    """One call of one script. pairs: its last argument, score, content, ..., packed or not."""

    script: str
    keys: Sequence[str]
    args: Sequence[Any] = ()
    pairs: Pairs = ()
