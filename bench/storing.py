"""Messages that are stored as if they had been sent, faster than sending them."""

from rmq_spark.client import Queue

MESSAGES_A_CALL = 1000
SPAN_MS = 36_000_000  # in which stored messages fall due, evenly


def waiting(number: int) -> bytes:
    """The content of a message that waits. Its slot is the number's remainder by the slots."""
    return b"message %026d" % number


def dead(number: int) -> bytes:
    """The content of a dead message."""
    return b"dead message %021d" % number


def store_waiting(queue: Queue, slot: int, messages: int, due_ms: int) -> None:
    """Fills the store of a slot, with messages of 34 bytes. due_ms: the first of SPAN_MS."""
    slots = queue.definition.slot_amount
    step = SPAN_MS // max(1, messages)
    pipeline, key = queue.server.client.pipeline(transaction=False), queue.keys.store(slot)
    for start in range(0, messages, MESSAGES_A_CALL):
        words: list[object] = []
        for number in range(start, min(messages, start + MESSAGES_A_CALL)):
            words += (due_ms + step * number, waiting(slot + slots * number))
        pipeline.execute_command("ZADD", key, *words)
    pipeline.hincrby(queue.keys.stats(slot), "accepted", messages)
    pipeline.execute()


def store_dead(queue: Queue, slot: int, messages: int, now_ms: int) -> None:
    """Fills the dead queue of a slot; every tenth message died of another reason."""
    slots = queue.definition.slot_amount
    pipeline = queue.server.client.pipeline(transaction=False)
    for start in range(0, messages, MESSAGES_A_CALL):
        scores: list[object] = []
        deaths: list[object] = []
        for number in range(start, min(messages, start + MESSAGES_A_CALL)):
            content = dead(slot + slots * number)
            reason = b"ValueError: unknown customer" if number % 10 else b"TimeoutError: too slow"
            scores += (now_ms - messages + number, content)
            deaths += (content, b"billing %d %s" % (len(reason), reason))
        pipeline.execute_command("ZADD", queue.keys.dead(slot), *scores)
        pipeline.execute_command("HSET", queue.keys.deaths(slot), *deaths)
    pipeline.hincrby(queue.keys.stats(slot), "accepted", messages)
    pipeline.hincrby(queue.keys.stats(slot), "dead", messages)
    pipeline.execute()
