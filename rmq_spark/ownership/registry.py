"""The ZooKeeper nodes that a member creates before it joins: the topic and parent nodes."""

from contextlib import suppress
from typing import Any

from kazoo.exceptions import BadVersionError, KazooException, NoAuthError, NodeExistsError

from rmq_spark.errors import OwnershipError, TopicMismatch
from rmq_spark.ownership.ensemble import EnsembleOptions
from rmq_spark.ownership.paths import Nodes
from rmq_spark.ownership.zookeeper import as_refusal
from rmq_spark.topics.definition import TopicDefinition


def publish(
    client: Any, ensemble: EnsembleOptions, nodes: Nodes, definition: TopicDefinition
) -> None:
    """Create a topic's nodes, or update its definition.

    Raises TopicMismatch, OwnershipRefused, OwnershipError.
    """
    try:
        with suppress(NodeExistsError):
            client.create(nodes.definition, definition.to_json().encode(), makepath=True)
        _compare(client, nodes, definition)
        for parent in (nodes.members, nodes.slots, nodes.assignment):
            with suppress(NodeExistsError):
                client.create(parent, b"")
    except NoAuthError as error:
        raise as_refusal(ensemble, error) from None
    except KazooException as error:
        raise OwnershipError(
            f"A request to ZooKeeper at {ensemble.hosts} below {ensemble.path} failed: "
            f"{type(error).__name__} {error}. Check its logs, and start the query again."
        ) from None


def _compare(client: Any, nodes: Nodes, definition: TopicDefinition) -> None:
    value, stat = client.get(nodes.definition)
    known = TopicDefinition.from_json(definition.name, value)
    if (known.type, known.slot_amount) != (definition.type, definition.slot_amount):
        raise TopicMismatch(
            f"In ZooKeeper ({nodes.definition}), the topic {definition.name} has the type "
            f"{known.type} and slotAmount={known.slot_amount}, but in Redis the type "
            f"{definition.type} and slotAmount={definition.slot_amount}. If two Redis servers "
            "share this ZooKeeper, give each its own zookeeper.root. If the topic was deleted and "
            "created again, delete that ZooKeeper node with all nodes below it."
        )
    if known != definition:
        with suppress(BadVersionError):  # another member has just updated it
            client.set(nodes.definition, definition.to_json().encode(), stat.version)
