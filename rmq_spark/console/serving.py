"""The web server of the console."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import uvicorn

from rmq_spark.console.console import Console
from rmq_spark.console.console_app import create_app
from rmq_spark.errors import InvalidOption

LONGEST_END_S = 15
# Requests beyond this number are refused at once: each takes a thread.
MOST_REQUESTS = 200


@contextlib.contextmanager
def serve(console: Console) -> Iterator[str]:
    """Serve a console within the block; yields its address. Raises InvalidOption."""
    settings = console.settings
    listening = _listen(settings.host, settings.port)
    config = uvicorn.Config(
        create_app(console),
        access_log=False,  # an address may hold what a user has searched for
        log_level="warning",
        limit_concurrency=MOST_REQUESTS,
        server_header=False,
        timeout_graceful_shutdown=2,
        ws="none",
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening],), name="rmq-console")
    thread.start()
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    try:
        yield f"http://{host}:{listening.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(LONGEST_END_S)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen()
    except OSError as error:
        listening.close()
        raise InvalidOption(
            f"Cannot listen on {host}:{port} ({error.strerror}). Accepted: an address of this "
            "machine and a free port, or 0 for any."
        ) from None
    return listening
