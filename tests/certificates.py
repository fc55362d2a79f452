"""Certificates of an authority that lives as long as a test: what a Dask cluster under TLS asks for."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


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
    """Make an authority and one certificate for loopback, in a folder."""
    folder.mkdir(parents=True)
    ours, theirs = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    root = _builder(authority, authority, ours).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    leaf = _builder(subject, authority, theirs).add_extension(address, critical=False)
    files = Files(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
    files.ca.write_bytes(root.sign(ours, hashes.SHA256()).public_bytes(Encoding.PEM))
    files.cert.write_bytes(leaf.sign(ours, hashes.SHA256()).public_bytes(Encoding.PEM))
    files.key.touch(mode=0o600)
    files.key.write_bytes(theirs.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return files


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
    )
