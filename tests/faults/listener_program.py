"""A service with a listener: notes each message in a file, until SIGTERM."""

import os
import sys

from rmq_spark.client import connect


def main(url: str, topic: str, name: str, noted: str, lease: str) -> None:
    """Listen to a topic. noted: the file, to which several processes may append."""
    file = os.open(noted, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def note(message):
        os.write(file, message.content + b"\n")

    with connect(url) as broker:
        broker.listen(topic, name, note, visibility_timeout=lease).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
