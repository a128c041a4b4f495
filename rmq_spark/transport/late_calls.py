"""What a connection has sent and Redis has not received is dropped when the connection is closed.

Otherwise the kernel goes on sending it. A call that was given up and repeated on a new connection
would then run once more when the network is back: after newer calls, which it would undo. (Seen: a
payload that came back after its successor, and a topic that was paused after its resume.)
"""

import os
import socket
import struct
import weakref
from typing import Any

# For SO_LINGER: on, for 0 seconds. A close then resets the connection.
_DROP = struct.pack("ii", 1, 0)
# The sockets of this process. A fork closes its copies: only the last close resets a connection.
_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def on_connect(connection: Any) -> None:
    """Set a new connection of redis-py up, and log in."""
    drop_unsent(connection)
    connection.on_connect()


def drop_unsent(connection: Any) -> None:
    """Set a new connection of redis-py up, before or after its login."""
    _drop_at_close(connection._sock)
    _sockets.add(connection._sock)


async def on_async_connect(connection: Any) -> None:
    """Set a new connection of redis-py's asyncio client up, and log in."""
    writer = connection._writer
    _drop_at_close(writer.get_extra_info("socket"))
    writer.close = writer.transport.abort  # close would send what waits in the program, too
    await connection.on_connect()


def _drop_at_close(of: Any) -> None:
    if of.family != socket.AF_UNIX:  # nothing can be lost on the way, and so come late
        of.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DROP)


def _close_copies() -> None:
    for each in list(_sockets):
        each.close()


os.register_at_fork(after_in_child=_close_copies)
