"""The barest scripts: what Redis itself allows, without any of the queue's promises.

Called from one plain Python process, in pipelines, best of three sizes. Sending stores messages
that are grouped by slot already, with one variadic ZADD a call. Receiving moves messages from one
sorted set to another and returns them, and removes them from there by one range removal a slot.
"""

import time
from collections.abc import Callable

import redis

SEND = "return redis.call('ZADD', KEYS[1], unpack(ARGV))"
# The added scores are one text for all, and only contents come back: no due times, no ranks, no
# retries. The last rank is added first, as in lua/claim.lua: that is faster while the set is small.
RECEIVE = """
local messages = redis.call('ZRANGE', KEYS[1], 0, ARGV[1] - 1)
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, ARGV[1] - 1)
local pairs_, last = {}, 2 * #messages + 2
for i = 1, #messages do
  pairs_[last - 2 * i - 1], pairs_[last - 2 * i] = '1', messages[i]
end
redis.call('ZADD', KEYS[2], unpack(pairs_))
return messages
"""
SEND_SIZES = (500, 1500, 3900)
RECEIVE_SIZES = (512, 1024, 2048)
BYTES_A_PIPELINE = 4 * 1024 * 1024
MESSAGES_A_PIPELINE = 8 * 2048

Pairs = dict[int, list[bytes]]


def send_seconds(client: "redis.Redis", by_slot: Pairs, size: int) -> float:
    """Seconds to store everything, ``size`` messages a call. by_slot: score, content, ..."""
    script = client.script_load(SEND)
    calls = [
        (f"limit_{slot}", pairs[at : at + 2 * size])
        for slot, pairs in by_slot.items()
        for at in range(0, len(pairs), 2 * size)
    ]
    bytes_a_call = max(1, sum(map(len, calls[0][1])))
    width = max(1, BYTES_A_PIPELINE // bytes_a_call)
    start = time.perf_counter()
    for at in range(0, len(calls), width):
        pipeline = client.pipeline(transaction=False)
        for key, pairs in calls[at : at + width]:
            pipeline.execute_command("EVALSHA", script, 1, key, *pairs)
        pipeline.execute()
    return time.perf_counter() - start


def receive_seconds(client: "redis.Redis", each: dict[int, int], size: int) -> float:
    """Seconds to move, return and remove what send_seconds stored, ``size`` messages a call.

    each: how many messages lie in each slot.
    """
    script = client.script_load(RECEIVE)
    width = MESSAGES_A_PIPELINE // size
    start, received = time.perf_counter(), 0
    # Slot by slot, so that Redis finds in its caches what it has just moved: in turns it is slower.
    for slot, count in each.items():
        for at in range(0, -(-count // size), width):
            pipeline = client.pipeline(transaction=False)
            for _ in range(at, min(at + width, -(-count // size))):
                keys = f"limit_{slot}", f"taken_{slot}"
                pipeline.execute_command("EVALSHA", script, 2, *keys, size)
            received += sum(map(len, pipeline.execute()))
        client.zremrangebyscore(f"taken_{slot}", "-inf", "+inf")
    seconds = time.perf_counter() - start
    if received != sum(each.values()):
        raise SystemExit(f"the barest script returned {received} of {sum(each.values())} messages")
    return seconds


class Best:
    """The fewest seconds that any of some sizes takes; the first time tells which it is."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self._sizes = sizes

    def of(self, measure: Callable[[int], float]) -> float:
        """Seconds of the best size. measure: returns the seconds that a size takes."""
        seconds = {size: measure(size) for size in self._sizes}
        best = min(seconds, key=lambda size: seconds[size])
        self._sizes = (best,)
        return seconds[best]
