"""What a peer's program in Python was given by watching.py."""

import os
from pathlib import Path

import redis

PORT = int(os.environ["PEER_PORT"])
URL = f"redis://127.0.0.1:{PORT}/0"
PART, PARTS = int(os.environ["PEER_PART"]), int(os.environ["PEER_PARTS"])


def own_contents() -> list[str]:
    """The contents that this one of the senders sends."""
    return Path(os.environ["PEER_CONTENTS"]).read_text().splitlines()[PART::PARTS]


def tell_done(messages: int) -> None:
    """Adds to the number of messages that were worked on."""
    with redis.Redis(port=PORT) as client:
        client.incrby("peer_done", messages)
