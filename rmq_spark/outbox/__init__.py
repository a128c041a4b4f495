"""The transactional outbox: messages are committed with a service's rows, and relayed to topics.

Read outbox first: it is what a service holds. rounds relays messages, each exactly once, and
relaying runs rounds until it is told to stop; round_stages stages the messages of a round. tables
creates and checks the tables, rows turns messages into rows and back, marks writes the results of
messages, and cleaning deletes old ones. strayed says what to do when the database and Redis do not
fit. databases speaks to PostgreSQL and MariaDB.
"""

from rmq_spark.outbox.outbox import Outbox
from rmq_spark.outbox.relaying import Relay
from rmq_spark.outbox.rounds import Relayed

__all__ = ["Outbox", "Relay", "Relayed"]
