"""The errors that rmq-spark raises on purpose.

::

    RmqError
    +-- InvalidOption          an option's name or value (also a ValueError)
    +-- InvalidMessage         a column, a row or a message that cannot be sent (also a ValueError)
    +-- UnusableFunction       the function of each_message cannot be loaded, or dies when idle
    +-- TopicError
    |   +-- UnknownTopic       the topic does not exist; a reader never creates one
    |   +-- TopicMismatch      the topic exists with another type or number of slots
    |   +-- GroupNotEmpty      a consumer group to be removed still holds messages
    |   +-- TopicFull          the topic has no room for messages: max_messages or max_bytes
    +-- ClaimError
    |   +-- Fenced         a newer run of the same consumer has taken over
    |   +-- AlreadyCommitted            the batch is already committed
    |   +-- LeaseLost               the lease expired and the messages went back to the queue
    |   +-- ExclusiveSlot      the topic is exclusive: it is consumed through ZooKeeper only
    |   +-- CheckpointRefused  the checkpoint was restored, copied, or belongs to another topic
    |   +-- UnreadableContent  a content is not UTF-8, but the schema asks for STRING
    +-- ConsumerMisused        a Consumer is used by two threads at once, or after it is closed
    +-- OwnershipError         a request to ZooKeeper failed
    |   +-- OwnershipUnavailable  ZooKeeper cannot be reached
    |   +-- OwnershipRefused   ZooKeeper refuses the user, the password or access to the path
    +-- OutboxError            an outbox in a database cannot be used
    |   +-- OutboxUnavailable  the database cannot be reached, or a statement failed
    |   +-- OutboxMisused      a table is missing or has other columns, or was restored
    +-- ServerError
        +-- ServerUnavailable  Redis cannot be reached
        +-- ServerRefused      Redis refuses the user, password, database or command
        +-- ServerUntrusted    the certificate does not match the server named in redis.url
        +-- ServerUnsuitable   the server is too old, or evicts keys
        +-- ServerFull         Redis has reached maxmemory and stores nothing more
        +-- NotReplicated      the write is done, but too few replicas confirmed it
        +-- StageLost          Redis has lost a part of an exactly-once batch
        +-- WrongKeyType       a key of the queue exists with another type
        +-- ScriptFailed       a script or command failed for any other reason

No error text contains a password. Addresses are shown without their credentials.
"""

import re


class RmqError(Exception):
    """The base class of all errors of rmq-spark."""


# The most characters of a value in an error.
_LONGEST_SHOWN = 500
# A password may hold what an address should not: spaces, slashes and @.
_LOGIN = re.compile(r"://(?:\S*|(?!\S*:\d+\s)[^/\n]*)@")
# As in the addresses of JDBC and of redis-py.
_PASSWORD_IN_QUERY = re.compile(r"(?<=[?&;])(\w*(?:password|secret)\w*=)[^&;\s'\"]+", re.IGNORECASE)


def without_login(text: str) -> str:
    """Return a text with *** for the login and the passwords of each address in it."""
    return _PASSWORD_IN_QUERY.sub(r"\1***", _LOGIN.sub("://***@", text))


def quoted(value: object) -> str:
    """Return the repr of a value for an error, cut if it is long; its type if repr fails.

    It shows no login of an address.
    """
    try:
        # Of a long text, only the beginning, which is long enough to be cut below.
        if isinstance(value, str | bytes):
            value = value[: 10 * _LONGEST_SHOWN]
        text = without_login(repr(value))
    except Exception:  # a number of more than 4300 digits, or an object of the user's
        return f"a value of type {type(value).__name__} that cannot be shown"
    return text if len(text) <= _LONGEST_SHOWN + len("''") else f"{text[:_LONGEST_SHOWN]}..."


class InvalidOption(RmqError, ValueError):
    """An error for an option whose name is unknown or whose value is not accepted.

    name: the option with which the text begins, as the raising code calls it; empty if none.
    """

    def __init__(self, text: str = "", *, name: str = "") -> None:
        super().__init__(text)
        self.name = name

    def called(self, name: str) -> "InvalidOption":
        """Return the error with the name that the user of the option typed."""
        if not self.name:
            return self
        return InvalidOption(f"{name}{str(self).removeprefix(self.name)}", name=name)

    @staticmethod
    def of(
        name: str, value: object, accepted: str, why: str = "is not accepted"
    ) -> "InvalidOption":
        """Return the error for a value that is not accepted, and what is."""
        return InvalidOption(f"{name}={quoted(value)} {why}. Accepted: {accepted}.", name=name)


def cannot_listen(host: str, port: int, error: OSError) -> InvalidOption:
    """Return the error for an address on which no server can listen."""
    why = str(error.strerror).partition(" (while")[0]  # create_server repeats the address
    return InvalidOption(
        f"Cannot listen on {host}:{port} ({why}). Accepted: an address of this machine and a free "
        "port, or 0 for any."
    )


class InvalidMessage(RmqError, ValueError):
    """An error for a message, row or column that cannot be sent. None of its batch is sent."""


class UnusableFunction(RmqError):
    """An error for a function of a listener that cannot run at all, whatever the message."""


class TopicError(RmqError):
    """An error in the definition of a topic."""


class UnknownTopic(TopicError):
    """An error for a topic that does not exist."""


class TopicMismatch(TopicError):
    """An error for a topic that exists with another type or number of slots."""


class GroupNotEmpty(TopicError):
    """An error for a consumer group to be removed that still holds messages."""


class TopicFull(TopicError):
    """An error for messages for which a topic has no room: max_messages or max_bytes is reached.

    slot, group: where there was no room. waiting: how much waited there, in unit: "messages" or
    "bytes". others: the errors of the other slots without room. refused: by slot, the places of the
    messages that were not sent, among those of the call for that slot. sent: a SendResult, the
    counts of those that were.
    """

    def __init__(
        self, text: str, slot: int = 0, group: str = "", waiting: int = 0, unit: str = "messages"
    ) -> None:
        super().__init__(text)
        self.slot, self.group, self.waiting, self.unit = slot, group, waiting, unit
        self.others: dict[int, TopicFull] = {}
        self.refused: dict[int, set[int]] = {}
        self.sent: object = None


class ClaimError(RmqError):
    """An error for a claim that cannot be made, read or settled."""


class Fenced(ClaimError):
    """An error for a consumer whose newer run has taken over. The older run must end."""


class AlreadyCommitted(ClaimError):
    """An error for a batch that is already committed, so that nothing can be claimed for it."""


class LeaseLost(ClaimError):
    """An error for a claim whose lease has expired. Its messages went back to the queue."""


class ExclusiveSlot(ClaimError):
    """An error for a consumer without an epoch that claims from an exclusive topic."""


class CheckpointRefused(ClaimError):
    """An error for a checkpoint from which a query would lose messages, unread or unsent."""


class UnreadableContent(ClaimError):
    """An error for a content that is not UTF-8 text, but is read as STRING."""


class ConsumerMisused(RmqError):
    """An error for a Consumer that two threads use at once, or that is used once closed."""


class OwnershipError(RmqError):
    """An error of ZooKeeper, which keeps the owners of slots."""


class OwnershipUnavailable(OwnershipError):
    """An error for a ZooKeeper ensemble that cannot be reached."""


class OwnershipRefused(OwnershipError):
    """An error for a user that ZooKeeper does not accept, or that may not use the path."""


class OutboxError(RmqError):
    """An error of an outbox in a database."""


class OutboxUnavailable(OutboxError):
    """An error for a database that cannot be reached or that refuses a statement."""


class OutboxMisused(OutboxError):
    """An error for tables that are no outbox, or no longer fit what Redis has published."""


class ServerError(RmqError):
    """An error of the Redis server.

    node: host and port of the cluster node, or of the Sentinels' master, with which something is
    wrong; None for any other server, or if it is not known.
    """

    node: str | None = None


class ServerUnavailable(ServerError):
    """An error for a Redis server that cannot be reached."""


class ServerRefused(ServerError):
    """An error for a user that Redis does not accept, or that may not run the command."""


class ServerUntrusted(ServerError):
    """An error for a certificate that does not match the server named in redis.url."""


class ServerUnsuitable(ServerError):
    """An error for a server that would lose messages, or lacks a required command.

    evicts: whether the reason is its maxmemory-policy.
    """

    evicts = False


class ServerFull(ServerError):
    """An error for a Redis that has reached maxmemory. You can consume messages, but not send."""


class NotReplicated(ServerError):
    """An error for a write that fewer than redis.minReplicas replicas confirmed in time."""


class StageLost(ServerError):
    """An error for a batch of an exactly-once sink of which Redis has lost a part.

    A stage, its count of published messages, or the batch's seal is missing or older than expected:
    Redis lost recent writes, or the topic was deleted and created again. The next start of the
    query stages the whole batch again. Messages already published may then be sent twice.
    """


class WrongKeyType(ServerError):
    """An error for a key of the queue that another program has created with another type."""


class ScriptFailed(ServerError):
    """An error of a script or command that has no class of its own."""


# Errors of a Redis that may recover by itself. A program that runs for months goes on after them.
PASSING = (ServerUnavailable, ServerFull, NotReplicated)
