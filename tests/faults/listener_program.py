"""A service with a listener: notes each message in a file, until SIGTERM."""

import asyncio
import os
import sys

from rmq_spark import aio
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
    os.write(FILE, message.content + b"\n")


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
