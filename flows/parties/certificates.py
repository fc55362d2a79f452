"""Pinned certificates by which parties identify each other, and reading of the parties' YAML files.

A party accepts only the certificates that its configuration lists; no certificate authority is used. Unlisted and
expired certificates are refused. A site is accepted only with the certificate listed for its address. A configuration
file is YAML with one mapping; an unknown name in the mapping is an error.
"""

import hashlib
import ssl
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from dpca.backends.atomic_files import create_file, open_regular, read_file
from dpca.errors import Corrupt, Invalid
from dpca.schemas.schema import load_yaml
from dpca_tasks.errors import InvalidInput
from dpca_tasks.noise.keystream import SecretKey
from dpca_tasks.sites.secure_sum.wire import Identity

_MOST_CONFIG_BYTES = 1 << 20


def read_yaml(path: Path, *, what: str) -> Mapping[str, Any]:
    """Read a YAML file with one mapping.

    Raises
    ------
    InvalidInput
        When the file cannot be read, or does not hold one mapping.
    """
    try:
        content = load_yaml(read_file(path, most=_MOST_CONFIG_BYTES).decode())
    except Invalid as error:
        raise InvalidInput(f"{what} {path} cannot be read as YAML: {error}.") from None
    except (Corrupt, OSError, UnicodeError):
        raise InvalidInput(
            f"{what} {path} cannot be read as YAML of at most {_MOST_CONFIG_BYTES} bytes; correct the path or the file."
        ) from None
    if not isinstance(content, Mapping) or not all(isinstance(name, str) for name in content):
        raise InvalidInput(f"{what} {path} must be a mapping of names to values; see the documentation of this file.")
    return content


def check_names(content: Mapping[str, Any], *, known: set[str], needed: set[str], what: str) -> None:
    """Check that a mapping has all ``needed`` names, and no name outside ``known``.

    Raises
    ------
    InvalidInput
        When names are unknown or missing; the message lists them.
    """
    if unknown := sorted(set(content) - known):
        raise InvalidInput(
            f"{what} has unknown {', '.join(unknown)}; it may have {', '.join(sorted(known))}; correct it."
        )
    if missing := sorted(needed - set(content)):
        raise InvalidInput(f"{what} lacks {', '.join(missing)}; add them.")


LIFETIME = timedelta(days=365)
_MOST_BYTES = 1 << 16


def read_certificate(path: Path) -> str:
    """Read one certificate in PEM.

    Raises
    ------
    InvalidInput
        When the file does not hold exactly one certificate.
    """
    try:
        text = read_file(path, most=_MOST_BYTES).decode("ascii")
        (_,) = x509.load_pem_x509_certificates(text.encode())
    except (Corrupt, OSError, ValueError):
        raise InvalidInput(
            f"{path} is not a file with one certificate in PEM; make one with `dpca site key` or `dpca ledger key`."
        ) from None
    return text


def fingerprint_of(pem: str) -> str:
    """Return the SHA-256 digest of a certificate."""
    return x509.load_pem_x509_certificate(pem.encode()).fingerprint(hashes.SHA256()).hex()


def fingerprint_of_der(der: bytes) -> str:
    """Return the SHA-256 digest of a certificate in DER, as received from a connection."""
    return hashlib.sha256(der).hexdigest()


def days_left(pem: str) -> float:
    """Return the number of days for which a certificate is still valid."""
    return (x509.load_pem_x509_certificate(pem.encode()).not_valid_after_utc - datetime.now(UTC)) / timedelta(days=1)


def key_of(pem: str) -> bytes:
    """Return the public key of a certificate."""
    public = x509.load_pem_x509_certificate(pem.encode()).public_key()
    return public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def signing_key_of(pem: str) -> bytes:
    """Return the Ed25519 public key of a certificate, which verifies a site's signatures in a secure sum.

    Raises
    ------
    InvalidInput
        When the key of the certificate is not an Ed25519 key.
    """
    public = x509.load_pem_x509_certificate(pem.encode()).public_key()
    if not isinstance(public, Ed25519PublicKey):
        raise InvalidInput(
            "a certificate's key is not Ed25519, which sites need to sign in a secure sum; make one with `dpca site "
            "key`."
        )
    return public.public_bytes_raw()


def signing_identity(key: Path) -> Identity:
    """Return the signing identity of a site in secure sums, made from the private key of its certificate.

    Raises
    ------
    InvalidInput
        When the file does not hold an Ed25519 key without a passphrase.
    """
    try:
        private = load_pem_private_key(read_file(key, most=_MOST_BYTES), password=None)
    except (Corrupt, OSError, ValueError, TypeError):
        private = None
    if not isinstance(private, Ed25519PrivateKey):
        raise InvalidInput(f"{key} is not an Ed25519 key without a passphrase; make one with `dpca site key`.")
    return Identity(SecretKey(private.private_bytes_raw()))


def make_identity(name: str, folder: Path, *, lifetime: timedelta = LIFETIME) -> Path:
    """Write a new key and its certificate; return the path of the certificate.

    The key is ``NAME.key``, readable only by its owner, and the certificate is ``NAME.pem``.

    Raises
    ------
    InvalidInput
        When one of the files exists already.
    """
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    if certificate.exists() or key.exists():
        raise InvalidInput(f"{certificate} or {key} already exists, and a key is never replaced; choose another name.")
    made, now = Ed25519PrivateKey.generate(), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(made.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(made, None)
    )
    folder.mkdir(parents=True, exist_ok=True)
    create_file(key)
    key.write_bytes(made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    certificate.write_bytes(signed.public_bytes(Encoding.PEM))
    return certificate


def identity_facts(name: str, folder: Path) -> dict[str, str]:
    """Write a key and certificate with `make_identity`; return their paths and the certificate's fingerprint."""
    certificate = make_identity(name, folder)
    return {
        "certificate": str(certificate),
        "key": str(certificate.with_suffix(".key")),
        "fingerprint": fingerprint_of(certificate.read_text("ascii")),
    }


def listening_context(*, certificate: Path, key: Path, peers: Iterable[str]) -> ssl.SSLContext:
    """Return the TLS context of a service that accepts only connections with the given certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    return _pinned(context, certificate=certificate, key=key, peers=peers)


def calling_context(*, certificate: Path, key: Path, peer: str) -> ssl.SSLContext:
    """Return the TLS context of calls to the service with the certificate ``peer``; the host name is not checked."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the pinned certificate identifies the peer, not its host name
    return _pinned(context, certificate=certificate, key=key, peers=[peer])


def _pinned(context: ssl.SSLContext, *, certificate: Path, key: Path, peers: Iterable[str]) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata="\n".join(peers))
    try:
        with open_regular(certificate) as shown, open_regular(key) as private:  # opening a pipe would block
            paths = [f"/dev/fd/{file.fileno()}" for file in (shown, private)]
            context.load_cert_chain(paths[0], paths[1], password=_no_password)
    except (Corrupt, OSError, ValueError):
        raise InvalidInput(
            f"{certificate} and {key} must be a certificate and its private key in PEM, without a passphrase; make "
            "both with `dpca site key` or `dpca ledger key`."
        ) from None
    return context


def _no_password() -> str:
    raise ValueError("a passphrase is required")
