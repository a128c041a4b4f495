"""A service with a listener: notes each message in a file, until SIGTERM."""

import asyncio
import os
import sys

from rmq_spark import aio
from rmq_spark.client import connect

# Also in the processes of the listener, which import this module.
KIND, URL, TOPIC, NAME, NOTED, LEASE = sys.argv[1:]
# Several processes append to it.
FILE = os.open(NOTED, os.O_CREAT | os.O_WRONLY | os.O_APPEND)


def note(message):
    os.write(FILE, message.content + b"\n")


async def note_in_loop(message):
    await asyncio.sleep(0)
    note(message)


def run():
    with connect(URL) as broker:
        processes = KIND == "processes"
        listener = broker.listen(TOPIC, NAME, note, processes=processes, visibility_timeout=LEASE)
        listener.run()


async def run_in_loop():
    async with await aio.connect(URL) as broker:
        await broker.listen(TOPIC, NAME, note_in_loop, visibility_timeout=LEASE).run()


if __name__ == "__main__":
    asyncio.run(run_in_loop()) if KIND == "asyncio" else run()
