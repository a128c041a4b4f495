"""A TCP proxy in front of a server: passes everything on until it is cut, and again once mended."""

import contextlib
import socket
import threading
import time

from rmq_spark.local.redis import free_port


class TcpProxy:
    """Listens on a loopback port of its own. Cut, it ends all connections and takes no others.

    Hushed, it accepts what comes on its open connections, and passes nothing on, not even
    their end.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", free_port()), backlog=128)
        self.port = int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._hushed: set[socket.socket] = set()
        self.accepted = 0
        self.delay_s = 0.0  # of each part that it passes on
        self.renamed: dict[bytes, bytes] = {}  # words of an answer -> others, just as long
        self._is_cut = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        with self._lock:
            self._is_cut = True
            for end in self._open:
                _shut(end)
            self._open.clear()

    def hush(self) -> None:
        with self._lock:
            self._hushed |= self._open

    def mend(self) -> None:
        with self._lock:
            self._is_cut = False

    def lead_to(self, target: int) -> None:
        """Ends all connections; new ones go to another server."""
        self.cut()
        self._target = target
        self.mend()

    def lead_new_to(self, target: int) -> None:
        """New connections go to another server; existing ones stay."""
        self._target = target

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            with self._lock:
                if self._is_cut:
                    _shut(client)
                    _shut(server)
                    continue
                self._open |= {client, server}
                self.accepted += 1
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while part := source.recv(1 << 16):
                time.sleep(self.delay_s)
                for word, other in self.renamed.items():
                    part = part.replace(word, other)
                if source not in self._hushed:
                    sink.sendall(part)
        _shut(source)
        if source not in self._hushed:
            _shut(sink)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
