"""Certificates, and the servers that can show them."""

import datetime
import socket
import ssl
import tempfile
from functools import cache
from pathlib import Path

import trustme

from rmq_spark.errors import ServerUnavailable
from rmq_spark.local.redis import LocalRedis, free_port


class Authority:
    """A certificate authority that only these tests know, and what it signed."""

    def __init__(self, folder):
        self.folder = folder
        self._ca = trustme.CA()
        self.file = str(folder / f"ca-{id(self)}.pem")
        self._ca.cert_pem.write_to_path(self.file)

    def certificate(self, *names, **options):
        """A certificate with its key, in one file."""
        path = self.folder / f"{'-'.join(names)}-{len(list(self.folder.iterdir()))}.pem"
        self._ca.issue_cert(*names, **options).private_key_and_cert_chain_pem.write_to_path(path)
        return str(path)

    def expired(self, name):
        start = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
        end = start + datetime.timedelta(days=1)
        return self.certificate(name, not_before=start, not_after=end)

    def settings(self, certificate, clients="no"):
        """How a server shows a certificate, beside its plain port."""
        return {
            "appendonly": "no",
            "tls-port": str(free_port()),
            "tls-cert-file": certificate,
            "tls-key-file": certificate,
            "tls-ca-cert-file": self.file,
            "tls-auth-clients": clients,
        }


@cache
def speaks_tls(executable):
    """Tell whether a redis-server speaks TLS: one is started with a certificate, and asked.

    Its settings do not tell: a server that was built with TLS as a module knows them without it.
    """
    with tempfile.TemporaryDirectory(prefix="rmq-tls-") as folder:
        authority = Authority(Path(folder))
        settings = authority.settings(authority.certificate("127.0.0.1"))
        address = ("127.0.0.1", int(settings["tls-port"]))
        trust = ssl.create_default_context(cafile=authority.file)
        try:
            with (
                LocalRedis(executable, settings),
                socket.create_connection(address) as connection,
                trust.wrap_socket(connection, server_hostname="127.0.0.1"),
            ):
                return True
        except (ServerUnavailable, OSError):
            return False
