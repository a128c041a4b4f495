"""What a worker makes in ZooKeeper before it joins: the topic, and the parents of nodes."""

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
    """Makes a topic's nodes, or brings its definition up to date.

    Raises TopicMismatch, OwnershipRefused, OwnershipError.
    """
    try:
        with suppress(NodeExistsError):
            client.create(nodes.definition, definition.to_json().encode(), makepath=True)
        _compare(client, nodes, definition)
        for parent in (nodes.workers, nodes.slots, nodes.assignment):
            with suppress(NodeExistsError):
                client.create(parent, b"")
    except NoAuthError as error:
        raise as_refusal(ensemble, error) from None
    except KazooException as error:
        raise OwnershipError(
            f"ZooKeeper at {ensemble.hosts} did not do what was asked below {ensemble.path}: "
            f"{type(error).__name__} {error}"
        ) from None


def _compare(client: Any, nodes: Nodes, definition: TopicDefinition) -> None:
    value, stat = client.get(nodes.definition)
    known = TopicDefinition.from_json(definition.name, value)
    if (known.type, known.slot_amount) != (definition.type, definition.slot_amount):
        raise TopicMismatch(
            f"ZooKeeper knows the topic {definition.name} ({nodes.definition}) as "
            f"{known.type} with slotAmount {known.slot_amount}; Redis has it as "
            f"{definition.type} with slotAmount {definition.slot_amount}. Two Redis servers "
            "need two zookeeper.root; if the topic was deleted and made anew, delete that node "
            "with all below it."
        )
    if known != definition:
        with suppress(BadVersionError):  # another worker has just done it
            client.set(nodes.definition, definition.to_json().encode(), stat.version)
