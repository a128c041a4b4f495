"""A service that works on serial streams with a listener: in threads, in processes or in asyncio.

The first argument is a job as JSON, as for stream_program. When the listener fails, it is started
again, as a supervisor would.
"""

import asyncio
import json
import os
import sys
import threading
import time
from pathlib import Path

from rmq_spark import aio
from rmq_spark.client import connect
from rmq_spark.errors import RmqError

# Also in the processes of the listener, which import this module.
JOB = json.loads(sys.argv[1])
TRY_AGAIN_S = 0.5


def note(message, stream, begun):
    place = f"{JOB['name']}-{os.getpid()}-{threading.get_ident()}"
    consumer, batch, _, _ = message.claim_id.rsplit(":", 3)
    noted = {
        "stream": stream["stream"],
        "number": int(stream["number"]),
        "start": begun,
        "end": time.monotonic(),
        "place": place,
        "consumer": consumer,
        "batch": int(batch),
    }
    with (Path(JOB["out"]) / f"{place}.jsonl").open("a") as notes:
        notes.write(json.dumps(noted) + "\n")


def work(message):
    stream, begun = json.loads(message.content), time.monotonic()
    time.sleep(stream["ms"] / 1000)
    note(message, stream, begun)


async def work_in_loop(message):
    stream, begun = json.loads(message.content), time.monotonic()
    await asyncio.sleep(stream["ms"] / 1000)
    note(message, stream, begun)


def run():
    with connect(JOB["url"]) as broker:
        processes = JOB["kind"] == "processes"
        listener = broker.listen(
            JOB["topic"], JOB["name"], work, processes=processes, **JOB["settings"]
        )
        listener.run()


async def run_in_loop():
    async with await aio.connect(JOB["url"]) as broker:
        await broker.listen(JOB["topic"], JOB["name"], work_in_loop, **JOB["settings"]).run()


def main() -> None:
    while True:
        try:
            asyncio.run(run_in_loop()) if JOB["kind"] == "asyncio" else run()
        except RmqError as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            time.sleep(TRY_AGAIN_S)
        else:
            return


if __name__ == "__main__":
    main()
