"""A TCP proxy in front of servers: cuts, hushes and slows connections, and holds Redis' calls.

redis-py sends a request whole and then waits for all of its replies, so what a connection carries
is one script's call until something was answered. That is all the proxy knows of the protocol.
"""

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rmq_spark.local.redis import free_port

# A trap that nobody releases must not hang a query for ever.
LONGEST_HOLD_S = 300.0
# Of a digest that two reads share, this is what the first one may have.
_TAIL = 39


@dataclass(eq=False)
class Trap:
    """Catches the next call of one of some scripts, before Redis gets it or before it answers.

    scripts: names by digest. side: "request" or "reply". then: what happens to what was caught
    when it is released: "pass", "cut" (half of it passes, then the connection ends) or "drop".
    """

    scripts: dict[bytes, str]
    side: str
    then: str = "pass"
    hold: bool = True
    sprung: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    caught: str = ""
    ends: tuple[int, int] = (0, 0)  # ports of the client, and of ours to which it is connected
    altered: bool = False


class Proxy:
    """Listens on a loopback port of its own for each target, and passes everything on to it."""

    def __init__(self, *targets: int) -> None:
        self.targets = list(targets)  # the ports of new connections
        self._listeners = [
            socket.create_server(("127.0.0.1", free_port()), backlog=128) for _ in targets
        ]
        self.ports = [int(each.getsockname()[1]) for each in self._listeners]
        self.accepted = 0
        self.delay_s = 0.0  # of each part that it passes on
        self.renamed: dict[bytes, bytes] = {}  # words of a part -> others, just as long
        self._lock = threading.Lock()
        self._trap: Trap | None = None
        self._open: set[_Connection] = set()
        self._is_cut: set[int] = set()  # of our ports
        self.last_ends: dict[str, tuple[int, int]] = {}  # of who called a script last, as in Trap
        self.known: dict[bytes, str] = {}
        for at in range(len(targets)):
            threading.Thread(target=self._accept, args=(at,), daemon=True).start()

    @property
    def port(self) -> int:
        """The port that leads to the first target."""
        return self.ports[0]

    def cut(self, *ports: int) -> int:
        """Ends the connections of our ports, or of some, and takes no others; returns how many."""
        with self._lock:
            self._is_cut.update(ports or self.ports)
            ended = [each for each in self._open if each.ends[1] in self._is_cut]
        for each in ended:
            each.end()
        return len(ended)

    def mend(self, *ports: int) -> None:
        """Takes connections again."""
        with self._lock:
            self._is_cut.difference_update(ports or self.ports)

    def hush(self) -> None:
        """Accepts what comes on the open connections, and passes nothing on, not even their end."""
        with self._lock:
            for each in self._open:
                each.is_hushed = True

    def lead_to(self, target: int) -> None:
        """Ends all connections; new ones go to another server."""
        self.cut()
        self.targets[0] = target
        self.mend()

    def set(self, trap: Trap) -> None:
        """From now on the next such call is caught."""
        with self._lock:
            self._trap = trap

    def disarm(self) -> None:
        """Nothing is caught any more; what is held is released."""
        with self._lock:
            trap, self._trap = self._trap, None
        if trap is not None:
            trap.released.set()

    def close(self) -> None:
        """Ends all connections and takes no others."""
        self.disarm()
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # else its thread waits, and keeps the port
            listener.close()
        self.cut()

    def take(self, script: str | None, side: str, ends: tuple[int, int]) -> Trap | None:
        """The trap, if this call springs it; it springs once."""
        with self._lock:
            trap = self._trap
            if trap is None or script not in trap.scripts.values() or trap.side != side:
                return None
            self._trap = None
            trap.caught, trap.ends = str(script), ends
            trap.sprung.set()
            return trap

    def forget(self, connection: "_Connection") -> None:
        """Notes that a connection has ended."""
        with self._lock:
            self._open.discard(connection)

    def _accept(self, at: int) -> None:
        while True:
            try:
                client, (_, port) = self._listeners[at].accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.targets[at]))
            except OSError:
                client.close()
                continue
            connection = _Connection(self, client, server, (port, self.ports[at]))
            with self._lock:
                is_cut = self.ports[at] in self._is_cut
                if not is_cut:
                    self._open.add(connection)
                    self.accepted += 1
            if is_cut:
                connection.end()
            else:
                connection.start()


class _Connection:
    """One client's connection and the one to the server behind it. ends: as in Trap."""

    def __init__(
        self, proxy: Proxy, client: socket.socket, server: socket.socket, ends: tuple[int, int]
    ) -> None:
        self._proxy, self._client, self._server, self.ends = proxy, client, server, ends
        self._script: str | None = None
        self._tail = b""
        self._answered = False
        self.is_hushed = False

    def start(self) -> None:
        for source, take in ((self._client, self._request), (self._server, self._reply)):
            threading.Thread(target=self._pump, args=(source, take), daemon=True).start()

    def _pump(self, source: socket.socket, take: Callable[[bytes], bool]) -> None:
        """Takes what comes from one side until it ends, or until the other one is to end."""
        with contextlib.suppress(OSError):
            while part := source.recv(1 << 16):
                time.sleep(self._proxy.delay_s)
                for word, other in self._proxy.renamed.items():
                    part = part.replace(word, other)
                if not self.is_hushed and not take(part):
                    break
        if not self.is_hushed:
            self.end()
        source.close()

    def end(self) -> None:
        """Ends both sides."""
        self._proxy.forget(self)
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _request(self, part: bytes) -> bool:
        self._look_at(part)
        trap = self._proxy.take(self._script, "request", self.ends)
        if trap is not None:
            self._hold(trap)
        # Even of a client that has died meanwhile: its call was on its way.
        self._server.sendall(part)
        if trap is not None:
            trap.over.set()
        return True

    def _look_at(self, part: bytes) -> None:
        if self._answered:
            self._script, self._tail, self._answered = None, b"", False
        text = self._tail + part
        for digest, name in self._proxy.known.items():
            if digest in text:
                self._script = name
                self._proxy.last_ends[name] = self.ends
        self._tail = text[-_TAIL:]

    def _reply(self, part: bytes) -> bool:
        trap = self._proxy.take(self._script, "reply", self.ends)
        self._answered = True
        if trap is None:
            self._client.sendall(part)
            return True
        self._hold(trap)
        return self._pass_on(part, trap)

    def _hold(self, trap: Trap) -> None:
        if trap.hold:
            trap.released.wait(LONGEST_HOLD_S)

    def _pass_on(self, part: bytes, trap: Trap) -> bool:
        """What becomes of a reply that was held. False when the connection ends."""
        try:
            if _is_broken(self._server):
                return False  # Redis has died or cut it off: this reply never arrived
            if trap.then != "drop":
                self._client.sendall(part if trap.then == "pass" else part[: len(part) // 2])
            trap.altered = True
            return trap.then == "pass"
        finally:
            trap.over.set()


def _is_broken(end: socket.socket) -> bool:
    readable, _, _ = select.select([end], [], [], 0)
    try:
        return bool(readable) and not end.recv(1, socket.MSG_PEEK)
    except OSError:
        return True
