"""The certificate that this process shows a Dask cluster, and the authority whose certificates it accepts."""

import os
import ssl
from pathlib import Path

from distributed.security import Security

from dpca_tasks.errors import InvalidInput
from flows.clusters.temporary_certificates import issue
from flows.settings import Settings

ROLES = ("client", "scheduler", "worker")  # a cluster that is started for a run uses one certificate for all


def is_configured(settings: Settings) -> bool:
    """Return whether any TLS file is named, here or in Dask's own configuration."""
    return any(_files(_security(settings)).values())


def cluster_security(settings: Settings) -> Security:
    """Return what TLS connections use: ``DPCA_TLS_CA``, ``DPCA_TLS_CERT`` and ``DPCA_TLS_KEY``.

    What is not set there comes from Dask's own configuration (``distributed.comm.tls``). Either side of a connection
    shows a certificate of that authority or is turned away; nothing travels in clear text.

    Raises
    ------
    InvalidInput
        When one of the three is missing, is no file that this user can read, or does not hold what it should.
    """
    security = _security(settings)
    for name, value in _files(security).items():
        if not value:
            raise InvalidInput(
                f"DPCA_CLUSTER={settings.cluster!r} needs a certificate and {name} is not set; set DPCA_TLS_CA, "
                "DPCA_TLS_CERT and DPCA_TLS_KEY to PEM files."
            )
        if "\n" not in value and not (Path(value).is_file() and os.access(value, os.R_OK)):
            raise InvalidInput(f"{name}={value} is no file that can be read; correct the path, or its permissions.")
    try:
        security.get_connection_args("client")
    except (ssl.SSLError, ValueError):
        raise InvalidInput(
            "DPCA_TLS_CA, DPCA_TLS_CERT and DPCA_TLS_KEY must name, in PEM, an authority's certificate, one that it "
            "signed, and the private key of that one without a passphrase; give three files that belong together."
        ) from None
    return security


def temporary_security() -> Security:
    """Return what the processes of one run show each other: a certificate made now, whose key stays in memory."""
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
