"""Certificates of a Dask cluster.

The processes of a cluster present certificates to each other, and accept only certificates that one authority signed.
The settings name the files with the certificates. A local cluster, which is started for one run, uses a temporary
authority in memory, which signs one certificate.
"""

import os
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from distributed.security import Security

from dpca_tasks.errors import InvalidInput
from flows.settings import Settings

_LIFETIME = timedelta(days=30)  # validity of temporary certificates, longer than any run
_SIGNS = x509.KeyUsage(
    key_cert_sign=True,
    **dict.fromkeys(
        (
            *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
            *("key_agreement", "crl_sign", "encipher_only", "decipher_only"),
        ),
        False,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """Certificate of an authority, a loopback certificate that it signed, and the loopback private key, in PEM."""

    ca: str
    cert: str
    key: str = field(repr=False)


def issue() -> Issued:
    """Create an authority that signs one loopback certificate; its key is discarded, so it never signs another."""
    ours, theirs = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    root = _builder(authority, authority, ours).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    known = x509.SubjectKeyIdentifier.from_public_key(ours.public_key())
    root = root.add_extension(known, critical=False).add_extension(_SIGNS, critical=True)
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(known)  # strict TLS clients need it
    leaf = _builder(subject, authority, theirs).add_extension(address, critical=False)
    leaf = leaf.add_extension(signed_by, critical=False)
    return Issued(
        ca=root.sign(ours, hashes.SHA256()).public_bytes(Encoding.PEM).decode(),
        cert=leaf.sign(ours, hashes.SHA256()).public_bytes(Encoding.PEM).decode(),
        key=theirs.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
    )


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + _LIFETIME)
    )


ROLES = ("client", "scheduler", "worker")  # all roles use one certificate


def is_configured(settings: Settings) -> bool:
    """Return whether any TLS file is configured, in the settings or in Dask's own configuration."""
    return any(_files(_security(settings)).values())


def cluster_security(settings: Settings) -> Security:
    """Return the TLS configuration from ``DPCA_TLS_CA``, ``DPCA_TLS_CERT`` and ``DPCA_TLS_KEY``.

    Unset values come from Dask's own configuration (``distributed.comm.tls``). Each side of a connection must present
    a certificate of that authority or is rejected; nothing travels in clear text.

    Raises
    ------
    InvalidInput
        When one of the three is missing, is not a file that this user can read, or has invalid content.
    """
    security = _security(settings)
    for name, value in _files(security).items():
        if not value:
            raise InvalidInput(
                f"DPCA_CLUSTER={settings.cluster!r} needs a certificate, but {name} is not set; set "
                "DPCA_TLS_CA, DPCA_TLS_CERT and DPCA_TLS_KEY to PEM files."
            )
        if "\n" not in value and not (Path(value).is_file() and os.access(value, os.R_OK)):
            raise InvalidInput(f"{name}={value} is not a readable file; correct the path, or its permissions.")
    try:
        security.get_connection_args("client")
    except (ssl.SSLError, ValueError):
        raise InvalidInput(
            "DPCA_TLS_CA, DPCA_TLS_CERT and DPCA_TLS_KEY must be PEM files: the authority's "
            "certificate, a certificate signed by it, and the private key of that certificate without a "
            "passphrase; give three matching files."
        ) from None
    return security


def temporary_security() -> Security:
    """Return the TLS configuration of the processes of one run, with a new certificate whose key stays in memory."""
    made = issue()
    return _shown_by_all(ca=made.ca, cert=made.cert, key=made.key)


def _security(settings: Settings) -> Security:
    return _shown_by_all(ca=settings.tls_ca, cert=settings.tls_cert, key=settings.tls_key)


def _shown_by_all(*, ca: Path | str | None, cert: Path | str | None, key: Path | str | None) -> Security:
    shown = {f"tls_{role}_cert": cert for role in ROLES} | {f"tls_{role}_key": key for role in ROLES}
    given = {"tls_ca_file": ca, **shown}
    return Security(require_encryption=True, **{name: str(item) for name, item in given.items() if item is not None})


def _files(security: Security) -> dict[str, str | None]:
    shown = security.get_tls_config_for_role("client")
    return {"DPCA_TLS_CA": shown["ca_file"], "DPCA_TLS_CERT": shown["cert"], "DPCA_TLS_KEY": shown["key"]}
