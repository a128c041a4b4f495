"""Run several functions in one process, each for the messages of its topic.

Redis is at RMQ_REDIS_URL, by default on this machine, where `rmq local` starts one.

    $ python examples/many_functions.py
    refunded r1
    shipped p1
    told p1

As a daemon: `cd examples && rmq listen many_functions --name desk`
"""

import os
import signal

import rmq_spark

PARCELS, REFUNDS = "Example.Parcels", "Example.Refunds"

done = []


@rmq_spark.listener(PARCELS, workers=4, timeout="30s")
def ship(message):
    """Ship a parcel."""
    note("shipped", message)


@rmq_spark.listener(PARCELS, group="mail")  # a group gets a copy of every message
async def tell(message):
    """Mail the customer."""
    note("told", message)


@rmq_spark.listener(REFUNDS)
def refund(message):
    """Give the money back."""
    note("refunded", message)


def note(what, message):
    """Keep what was done. The example ends after three messages, as a daemon does by Ctrl-C."""
    done.append(f"{what} {message.content.decode()}")
    if __name__ == "__main__" and len(done) == 3:
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    with rmq_spark.connect() as broker:
        for topic, groups in ((PARCELS, ["default", "mail"]), (REFUNDS, ["default"])):
            if broker.find(topic):  # left by an earlier run
                broker.delete(topic)
            broker.create(topic, "FixedTime", slot_amount=4, groups=groups)
        broker.queue(PARCELS).send(["p1"], fixed_time=0)
        broker.queue(REFUNDS).send(["r1"], fixed_time=0)

        # Until a signal. All functions stop together, after the messages in progress.
        rmq_spark.run(ship, tell, refund, name="desk", broker=broker)
        print(*sorted(done), sep="\n")
