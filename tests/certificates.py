"""Certificate files of a test's own certificate authority, for Dask clusters that use TLS."""

from dataclasses import dataclass
from pathlib import Path

from flows.clusters import certificates


@dataclass(frozen=True, slots=True)
class Files:
    """The certificate of the authority, a certificate that it signed, and the private key of the signed certificate."""

    ca: Path
    cert: Path
    key: Path

    @property
    def settings(self) -> dict[str, str]:
        """Return the environment variables that point ``dpca`` to the files."""
        return {"DPCA_TLS_CA": str(self.ca), "DPCA_TLS_CERT": str(self.cert), "DPCA_TLS_KEY": str(self.key)}

    @property
    def options(self) -> list[str]:
        """Return the options that point ``dask scheduler`` and ``dask worker`` to the files."""
        return ["--tls-ca-file", str(self.ca), "--tls-cert", str(self.cert), "--tls-key", str(self.key)]


def issue(folder: Path) -> Files:
    """Create a new authority and write its certificates to a folder."""
    folder.mkdir(parents=True)
    made = certificates.issue()
    files = Files(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
    files.ca.write_text(made.ca)
    files.cert.write_text(made.cert)
    files.key.touch(mode=0o600)
    files.key.write_text(made.key)
    return files
