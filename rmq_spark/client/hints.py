"""Commands that errors and outputs recommend, and errors about topics that exist differently."""

import difflib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from rmq_spark.client.queue import Queue
from rmq_spark.errors import ServerRefused, TopicMismatch
from rmq_spark.redis.server import Server
from rmq_spark.topics.definition import TopicDefinition, group_text
from rmq_spark.topics.keys import topics_key
from rmq_spark.topics.types import TOPIC_TYPES, TopicType


class Place(Protocol):
    """A server and a key prefix: a Broker or a Queue."""

    server: Server
    key_prefix: str


def command_line(place: Place, *words: object) -> str:
    """Return a command of rmq as you can type it: with the server and the key prefix, quoted.

    The address has no credentials.
    """
    prefix = ("--key-prefix", place.key_prefix) if place.key_prefix else ()
    return shlex.join(["rmq", *place.server.command_options, *prefix, *map(str, words)])


def queue_command(queue: Queue, verb: str) -> str:
    """Return a command of rmq, such as ``due``, that treats one consumer group of a topic."""
    group = ("--group", queue.keys.group) if queue.keys.group else ()
    return command_line(queue, verb, queue.definition.name, *group)


def creation(
    place: Place, name: str, types: Sequence[TopicType] = (), *, keyed: bool = False
) -> str:
    """Return the command that creates a topic of the first type, and name the other types."""
    every = sorted(TOPIC_TYPES.values(), key=lambda one: one != TopicType.FIXED_TIME)
    first, *others = types or every
    other = f" (or {', '.join(map(str, others))})" if others else ""
    flags = ("--keyed",) if keyed else ()
    return f"`{command_line(place, 'create', name, '--type', first, *flags)}`{other}"


def describe_missing(place: Place, name: str) -> str:
    """Write, for an error, that a topic does not exist, and which names are similar."""
    key_prefix = place.key_prefix
    known = _known_names(place)
    near = difflib.get_close_matches(name.lower(), [found.lower() for found in known], 3)
    meant = [found for found in known if found.lower() in near]
    prefix = f" under the prefix {key_prefix}" if key_prefix else ""
    nearest = f" Similar: {', '.join(sorted(meant))}." if meant else ""
    return f"The topic {name} does not exist on {place.server.address}{prefix}.{nearest}"


def _known_names(place: Place) -> list[str]:
    """List the names of all topics; none for a user who may not list them."""
    try:
        names = place.server.command("HKEYS", topics_key(place.key_prefix))
    except ServerRefused:
        return []
    return [name.decode() for name in names]


def check_agrees(
    found: TopicDefinition,
    topic_type: TopicType | None,
    slot_amount: int | None,
    lasting: Mapping[str, Any],
    remedy: str,
) -> None:
    """Raise TopicMismatch if a topic has another type or number of slots; None accepts any.

    lasting: the settings that were asked for and never change (definition.LASTING). remedy: what
    the caller's user can do, as a sentence.
    """
    different = []
    if topic_type not in (None, found.type):
        different.append(f"{topic_type}")
    if slot_amount not in (None, found.slot_amount):
        different.append(_slots_text(slot_amount))
    differs = {name for name, value in lasting.items() if value != getattr(found, name)}
    different += [f"{name} {_shown(lasting[name])}" for name in sorted(differs)]
    has = "".join(f", {name} {_shown(getattr(found, name))}" for name in sorted(differs))
    if different:
        raise TopicMismatch(
            f"The topic {found.name} exists as {found.type} with {_slots_text(found.slot_amount)}"
            f"{has}, but you asked for {' with '.join(different)}. This cannot change. {remedy}"
        )


def _slots_text(amount: int | None) -> str:
    return f"{amount} slot{'' if amount == 1 else 's'}"


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_groups(found: TopicDefinition, wanted: Iterable[str], alter: str) -> None:
    missing = [group for group in wanted if group not in found.groups]
    if missing:
        raise TopicMismatch(
            f"Topic {found.name} has no consumer group {', '.join(map(group_text, missing))}, only "
            f"{', '.join(map(group_text, found.groups))}. Leave groups out, or add the group with "
            f"broker.add_group, or {alter} --add-group {group_text(missing[0])}."
        )
