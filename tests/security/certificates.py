"""Certificates, and the servers that can show them."""

import datetime
import subprocess

import trustme

from rmq_spark.dev_servers.redis_server import free_port


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


def speaks_tls(executable):
    """Whether a redis-server was built with TLS; one without knows no such setting."""
    done = subprocess.run(
        [executable, "--tls-port", "0", "--port", "0", "--maxclients", "none"],
        capture_output=True,
        text=True,
        check=False,
    )
    # All settings are read in order: what stops it is the first one that is wrong.
    return "maxclients" in done.stdout + done.stderr
