"""The results of messages, written back to the outbox by those who consume them."""

from collections.abc import Iterable, Mapping, Sequence

from rmq_spark.errors import InvalidOption
from rmq_spark.outbox.databases.sql_database import IDS_A_STATEMENT, Connection, among
from rmq_spark.outbox.exceptions import Refused, insert_exceptions
from rmq_spark.outbox.rows import ID_HEADER
from rmq_spark.outbox.tables import Tables
from rmq_spark.protocol.chunks import chunks
from rmq_spark.protocol.claims import Delivered

# The states that a mark sets, each with those that it expects to find. A message may be consumed
# before the relay has marked it as sent; a dead one may be requeued, and delivered then.
EXPECTED = {
    "delivered": ("sent", "sending", "dead"),
    "dead": ("sent", "sending"),
    "refused": ("sent", "sending"),
}


def ids_of(messages: Iterable[Delivered | int]) -> list[int]:
    """Return the ids of messages in the outbox; of those that have no such header, none.

    Raises InvalidOption for what is no list of messages or ids.
    """
    if isinstance(messages, int | str | Delivered):
        raise InvalidOption(
            f"mark takes a list of messages, not a single {type(messages).__name__}. Write "
            "mark(state, [...]).",
            name="messages",
        )
    ids = []
    for message in messages:
        if isinstance(message, int):
            ids.append(message)
            continue
        # The last one is of the relay; others were forwarded by a service.
        found = [value for name, value in getattr(message, "headers", ()) if name == ID_HEADER]
        if found and found[-1] is not None and found[-1].isdigit():
            ids.append(int(found[-1]))
    return ids


def mark(
    connection: Connection,
    tables: Tables,
    state: str,
    ids: Sequence[int],
    unless: str | None = None,
    *,
    timed: bool,
) -> int:
    """Set the state of messages, within the open transaction. Return how many it was set for.

    Compares and sets: a message in another state than those that are expected stays as it is, and
    gets a row in the exceptions table with both states. One that has the state already counts as
    set. unless: a state of messages to leave as they are, without a row in the exceptions table.
    timed: whether the table has sent_at, which a message lacks until its round is finished.
    Raises InvalidOption for an unknown state.
    """
    if state not in EXPECTED:
        raise InvalidOption(
            f"state={state!r} is not accepted. Accepted: {', '.join(EXPECTED)}.", name="state"
        )
    expected = ", ".join(f"'{each}'" for each in EXPECTED[state])
    sent_at = ", sent_at = COALESCE(sent_at, CURRENT_TIMESTAMP)" if timed else ""
    marked = 0
    for some in chunks(sorted(set(ids)), IDS_A_STATEMENT):
        these = among(some)
        # Lock them first: what is read now is what is found then.
        found = dict(
            connection.query(
                f"SELECT id, state FROM {tables.messages} WHERE {these} ORDER BY id FOR UPDATE"
            )
        )
        connection.run(
            f"UPDATE {tables.messages} SET state = %s{sent_at} "
            f"WHERE {these} AND state IN ({expected})",
            [state],
        )
        accepted = {*EXPECTED[state], state}
        marked += sum(each in accepted for each in found.values())
        left = [number for number in some if unless is None or found.get(number) != unless]
        insert_exceptions(
            connection, tables.exceptions, _unexpected(tables, state, left, found, accepted)
        )
    return marked


def _unexpected(
    tables: Tables,
    state: str,
    ids: Iterable[int],
    found: Mapping[int, str],
    accepted: set[str],
) -> list[Refused]:
    """Return the exceptions of messages whose state is not one of those accepted."""
    expected = ", ".join(EXPECTED[state])
    missing = "it has no row here"
    return [
        Refused(
            *(f"{tables.messages} id {number}", None, None),
            f"The message is {state}, but "
            f"{f'its state here is {found[number]}' if number in found else missing}. "
            f"Expected: {expected}.",
        )
        for number in ids
        if number not in found or found[number] not in accepted
    ]
