"""The transactional outbox: messages are committed with a service's rows, and relayed to topics.

Read outbox first: it is what a service holds. rounds relays messages, each exactly once, and relay
runs rounds until it is told to stop. tables creates and checks the tables; rows turns messages into
rows and back, marks them and deletes old ones.
"""

from rmq_spark.outbox.outbox import Outbox
from rmq_spark.outbox.relay import Relay
from rmq_spark.outbox.rounds import Relayed

__all__ = ["Outbox", "Relay", "Relayed"]
