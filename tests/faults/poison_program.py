"""Functions of a service that note each message in a file, and end their process at some."""

import os
import re
import signal
import sys
import threading
import time

from rmq_spark.client import connect

# A file that several processes append to.
FILE = os.open(os.environ["NOTED"], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
POISON = b"poison"


def write(message):
    os.write(FILE, b"%s %d\n" % (message.content, message.delivery_count))


def note(message):
    write(message)
    if message.content.startswith(POISON):
        os.kill(os.getpid(), signal.SIGKILL)


def note_slowly(message):
    """What is in progress beside a poison is always the same."""
    if not message.content.startswith(POISON):
        time.sleep(0.05)
    note(message)


def hold_the_interpreter(seconds):
    """Run what lets no other thread of this process run."""
    length, took = 20, 0.0
    while took < seconds:
        began = time.monotonic()
        re.match(r"(a+)+$", "a" * length + "b")
        took = time.monotonic() - began
        length += 1


def hold_or_note(message):
    if message.content.startswith(POISON):
        hold_the_interpreter(float(os.environ["HELD_S"]))
    write(message)


def consume(broker, topic):
    """A consumer in plain Python that is ended by one of its messages."""
    with broker.consumer(topic, "billing") as consumer:
        for batch in consumer.batches(limit=100):
            for message in batch:
                if sys.argv[4:] == ["raises"] and message.content.startswith(POISON):
                    raise ValueError("no such customer")
                note(message)
            batch.commit()


def consume_in_threads(broker, topic):
    """Four consumers in one process."""

    def run(number):
        with broker.consumer(topic, f"billing-{number}") as consumer:
            for batch in consumer.batches(limit=100):
                for message in batch:
                    note_slowly(message)
                batch.commit()

    for number in range(4):
        threading.Thread(target=run, args=(number,)).start()


def listen(broker, topic):
    """Two listeners in one process, with threads."""
    terms = {"workers": 4, "visibility_timeout": os.environ["LEASE"]}
    with (
        broker.listen(topic, "one", hold_or_note, **terms),
        broker.listen(topic, "two", hold_or_note, **terms),
    ):
        threading.Event().wait()


if __name__ == "__main__":
    with connect(sys.argv[2]) as connected:
        globals()[sys.argv[1]](connected, sys.argv[3])
        for thread in threading.enumerate():
            if thread is not threading.main_thread() and not thread.daemon:
                thread.join()
