"""Certificates in files, of an authority that lives as long as a test: what a Dask cluster under TLS asks for."""

from dataclasses import dataclass
from pathlib import Path

from flows.clusters import certificates


@dataclass(frozen=True, slots=True)
class Files:
    """The authority's certificate, one that it signed, and the key of that one."""

    ca: Path
    cert: Path
    key: Path

    @property
    def settings(self) -> dict[str, str]:
        """The variables by which ``dpca`` finds them."""
        return {"DPCA_TLS_CA": str(self.ca), "DPCA_TLS_CERT": str(self.cert), "DPCA_TLS_KEY": str(self.key)}

    @property
    def options(self) -> list[str]:
        """The options by which ``dask scheduler`` and ``dask worker`` find them."""
        return ["--tls-ca-file", str(self.ca), "--tls-cert", str(self.cert), "--tls-key", str(self.key)]


def issue(folder: Path) -> Files:
    """Write the certificates of a new authority to a folder."""
    folder.mkdir(parents=True)
    made = certificates.issue()
    files = Files(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
    files.ca.write_text(made.ca)
    files.cert.write_text(made.cert)
    files.key.touch(mode=0o600)
    files.key.write_text(made.key)
    return files
