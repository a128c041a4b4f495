"""Every error that rmq-spark raises on purpose.

::

    RmqError
    +-- InvalidOption          an option's name or value (also a ValueError)
    +-- InvalidMessage         a column, a row or a message that cannot be sent (also a ValueError)
    +-- UnusableFunction       the function of each_message cannot be loaded, or dies unasked
    +-- TopicError
    |   +-- UnknownTopic       no such topic; a reader never creates one
    |   +-- TopicMismatch      it exists with another definition
    |   +-- GroupNotEmpty      a consumer group that is to go holds messages
    +-- ClaimError
    |   +-- Superseded         a newer run of the same consumer has taken over
    |   +-- Settled            the batch was committed already
    |   +-- Lost               the lease ran out and the messages were given back
    |   +-- ExclusiveSlot      the topic is consumed exclusively, through ZooKeeper
    |   +-- CheckpointRefused  the checkpoint was restored, copied, or belongs to another topic
    |   +-- UnreadableContent  a content that is no UTF-8 where STRING was asked for
    +-- ConsumerMisused        a Consumer is used by two threads at once, or after its end
    +-- OwnershipError         ZooKeeper did not do what was asked
    |   +-- OwnershipUnavailable  no connection to it
    |   +-- OwnershipRefused   wrong user or password, or a path that may not be written
    +-- ServerError
        +-- ServerUnavailable  no connection, or it broke and did not come back
        +-- ServerRefused      wrong password, user, database or permission
        +-- ServerUntrusted    its certificate does not prove that it is the one that was named
        +-- ServerUnsuitable   too old, or it evicts keys
        +-- ServerFull         maxmemory is reached: nothing can be stored
        +-- NotReplicated      it is done, but too few replicas have confirmed it
        +-- StageLost          Redis has forgotten a part of an exactly-once batch
        +-- WrongKeyType       a key of another type is in the way
        +-- ScriptFailed       anything else a script answered

No message holds a password; addresses are shown without their credentials.
"""


class RmqError(Exception):
    """The root of all errors of rmq-spark."""


class InvalidOption(RmqError, ValueError):
    """An option is unknown, or its value is not one of those accepted."""


class InvalidMessage(RmqError, ValueError):
    """A message, row or column cannot be sent; nothing of its batch was."""


class UnusableFunction(RmqError):
    """The function of each_message cannot be run at all: that is no message's fault."""


class TopicError(RmqError):
    """A topic's definition stands in the way."""


class UnknownTopic(TopicError):
    """The topic was never defined."""


class TopicMismatch(TopicError):
    """The topic exists with another type or number of slots."""


class GroupNotEmpty(TopicError):
    """A consumer group that is to be taken away still holds messages."""


class ClaimError(RmqError):
    """A claim cannot be made, read or settled."""


class Superseded(ClaimError):
    """A newer run of the same consumer has taken over; this one must end."""


class Settled(ClaimError):
    """The batch was committed already; nothing can be claimed for it any more."""


class Lost(ClaimError):
    """The claim existed, but its lease ran out and its messages were given back."""


class ExclusiveSlot(ClaimError):
    """The topic is consumed exclusively; a consumer without an epoch takes nothing."""


class CheckpointRefused(ClaimError):
    """Going on from this checkpoint would lose messages: ones that nobody has read, or sent."""


class UnreadableContent(ClaimError):
    """A content is no UTF-8 text, but was asked for as STRING."""


class ConsumerMisused(RmqError):
    """A Consumer is used by two threads at once, or after its end."""


class OwnershipError(RmqError):
    """ZooKeeper, which says who owns which slot, did not do what was asked."""


class OwnershipUnavailable(OwnershipError):
    """There is no connection to ZooKeeper."""


class OwnershipRefused(OwnershipError):
    """ZooKeeper knows the user not, or does not let it read or write the path."""


class ServerError(RmqError):
    """Redis did not do what was asked."""


class ServerUnavailable(ServerError):
    """There is no connection to Redis."""


class ServerRefused(ServerError):
    """Redis knows the user not, or does not let it do this."""


class ServerUntrusted(ServerError):
    """The server's certificate does not prove that it is the one that redis.url names."""


class ServerUnsuitable(ServerError):
    """The server would lose messages, or lacks a command that is needed."""


class ServerFull(ServerError):
    """Redis has reached maxmemory: messages can be consumed, not sent."""


class NotReplicated(ServerError):
    """It is done, but fewer replicas than redis.minReplicas asks for confirmed it in time."""


class StageLost(ServerError):
    """Redis has forgotten a part of a batch that an exactly-once sink is sending.

    A stage, the count of what was published of it, or the batch's seal is not there as it was left:
    Redis fell back, or the topic was made anew. The next start of the query stages the whole batch
    anew; messages of it that are published already may come twice.
    """


class WrongKeyType(ServerError):
    """Another program's key is where the queue keeps its own."""


class ScriptFailed(ServerError):
    """A script answered with an error that has no class of its own."""
