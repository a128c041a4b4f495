"""A service with a listener: notes each message in a file, until SIGTERM."""

import asyncio
import os
import sys

from rmq_spark import Bury, Retry, Snooze, aio
from rmq_spark.client import connect

# Also in the processes of the listener, which import this module.
KIND, URL, TOPIC, NAME, NOTED, LEASE = sys.argv[1:7]
GROUP, DOOMED = [*sys.argv[7:], "", ""][:2]
SETTINGS = {"visibility_timeout": LEASE, "group": GROUP}
# Several processes append to it.
FILE = os.open(NOTED, os.O_CREAT | os.O_WRONLY | os.O_APPEND)


def note(message):
    if DOOMED and message.content.endswith(DOOMED.encode()):
        raise ValueError("this message always fails")
    verdict = obey(message)
    os.write(FILE, message.content + b":%d" % message.delivery_count * verdict + b"\n")


def obey(message):
    """Raise what a content asks for behind its number. Returns whether it does."""
    match message.content.partition(b"-")[2]:
        case b"bury":
            raise Bury("as it says")
        case b"retry" if message.delivery_count == 1:
            raise Retry("1ms")
        case b"snooze" if not os.path.exists(f"{NOTED}-awake"):
            raise Snooze("1s")
        case verdict:
            return bool(verdict)


async def note_in_loop(message):
    await asyncio.sleep(0)
    note(message)


def run():
    with connect(URL) as broker:
        broker.listen(TOPIC, NAME, note, processes=KIND == "processes", **SETTINGS).run()


async def run_in_loop():
    async with await aio.connect(URL) as broker:
        await broker.listen(TOPIC, NAME, note_in_loop, **SETTINGS).run()


if __name__ == "__main__":
    asyncio.run(run_in_loop()) if KIND == "asyncio" else run()
