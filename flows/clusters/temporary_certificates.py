"""Certificates of an authority that lives in memory and signs once: what a cluster of one run asks everybody for."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_LIFETIME = timedelta(days=30)  # longer than any run
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
    """The authority's certificate, one for loopback that it signed, and the private key of that one, in PEM."""

    ca: str
    cert: str
    key: str = field(repr=False)


def issue() -> Issued:
    """Make an authority, let it sign one certificate for loopback, and forget its key: it never signs another."""
    ours, theirs = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    root = _builder(authority, authority, ours).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    known = x509.SubjectKeyIdentifier.from_public_key(ours.public_key())
    root = root.add_extension(known, critical=False).add_extension(_SIGNS, critical=True)
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(known)  # strict clients look for it
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
