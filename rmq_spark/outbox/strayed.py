"""Errors for a database and a Redis that do not fit each other, with the way to go on."""

from rmq_spark.errors import OutboxMisused
from rmq_spark.outbox.tables import Tables


def restored_database(tables: Tables, published: int, number: int) -> OutboxMisused:
    """Return the error for a round that Redis has published and the database has not begun."""
    return OutboxMisused(
        f"Redis has published round {published} of the outbox {tables.messages}, and the table "
        f"{tables.relay} is at round {number}: the database was restored from a backup. Messages "
        "that it shows as new or sending may have been sent. To send them again: "
        f"UPDATE {tables.relay} SET rounds = {published}, done = {published}; {_send(tables)}."
    )


def unknown_round(tables: Tables, published: int, number: int) -> OutboxMisused:
    """Return the error for an open round that Redis may have published elsewhere."""
    return OutboxMisused(
        f"Round {number} of the outbox {tables.messages} is open, and Redis knows only round "
        f"{published}: this is another Redis or key prefix, or Redis has lost data. The messages "
        "of the round may have been sent. To send them (again): "
        f"UPDATE {tables.relay} SET done = rounds; {_send(tables)}."
    )


def forgotten_round(tables: Tables) -> OutboxMisused:
    """Return the error for messages that are being sent although no round is open."""
    return OutboxMisused(
        f"{tables.messages} has messages in the state sending, but according to {tables.relay} no "
        "round is open: that table was restored or created again, or somebody else has set the "
        f"state. They may have been sent. To send them (again): {_send(tables)}."
    )


def _send(tables: Tables) -> str:
    return f"UPDATE {tables.messages} SET state = 'new' WHERE state = 'sending'"
