"""An authority of the tests' own, the certificate of its servers on this machine, and those of their clients."""

from datetime import datetime
from pathlib import Path

import trustme

from tests.servers.home import Home


class Certificates:
    """What one authority has signed.

    Args:
        folder: where clients' files are written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority = trustme.CA()
        self._server = self._authority.issue_cert("localhost")
        self.authority = folder / "ca.pem"
        self._authority.cert_pem.write_to_path(self.authority)

    def give(self, home: Home) -> None:
        """Write a server's files into its folder: `ca.pem`, `server.pem` and `server.key`."""
        chain = "".join(blob.bytes().decode() for blob in self._server.cert_chain_pems)
        home.write("ca.pem", self._authority.cert_pem.bytes().decode())
        home.write("server.pem", chain)
        home.write("server.key", self._server.private_key_pem.bytes().decode())

    def client(self, name: str, *, ends: datetime | None = None) -> tuple[Path, Path]:
        """The files of a client's new certificate and key; its common name is the role, or the user."""
        issued = self._authority.issue_cert(f"{name}@localhost", common_name=name, not_after=ends)
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        issued.cert_chain_pems[0].write_to_path(certificate)
        issued.private_key_pem.write_to_path(key)
        key.chmod(0o600)
        return certificate, key
