"""Performance and location settings, read from ``DPCA_*`` variables.

No setting can change a guarantee.
"""

import os
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from dpca_tasks.errors import InvalidInput
from flows.reports.terminal import LogFormat

LOCAL = "local"
_PREFIX = "DPCA_"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_SAFE = (("https", True), ("https", False), ("http", True))


class Settings(BaseModel):
    """Settings for where runs compute, log and send notices.

    What is computed, and with which privacy guarantee, is never a setting. ``DPCA_CLUSTER`` is one of:

    - ``local``: worker processes on this machine. This is the default, but a release starts none if declared facts
      imply that one process suffices;
    - ``none``: this process alone, which is the fastest for small data;
    - the address of a Dask scheduler, such as ``tls://host:8786`` or ``tcp://host:8786``;
    - ``kubernetes``, ``gateway`` or ``slurm``, which start a cluster for each run.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    cluster: str = Field(
        default=LOCAL,
        description="`local`, `none`, a Dask scheduler's address, `kubernetes`, `gateway` or `slurm`.",
    )
    workers: int = Field(default=2, ge=1, description="Number of workers of a cluster started for the run.")
    tls_ca: Path | None = Field(default=None, description="Certificate of the authority that the cluster trusts (PEM).")
    tls_cert: Path | None = Field(
        default=None, description="Certificate of this process, signed by the authority (PEM)."
    )
    tls_key: Path | None = Field(default=None, description="Private key of that certificate (PEM).")
    allow_plaintext: bool = Field(default=False, description="Allow unencrypted rows on a trusted network.")
    sites_key: Path | None = Field(default=None, description="Private key of a roster's aggregator (PEM).")
    ledger_url: str | None = Field(default=None, description="Address of a remote ledger: https://host:port.")
    ledger_cert: Path | None = Field(default=None, description="Certificate of the remote ledger (PEM).")
    ledger_key: Path | None = Field(
        default=None, description="Private key of this process, as a client of the remote ledger (PEM)."
    )
    log: LogFormat = Field(default="off", description="Format of run events on stderr: `off`, `text` or `json`.")
    webhook_url: SecretStr | None = Field(default=None, description="Receiver of notices: an https:// address.")
    webhook_secret: SecretStr | None = Field(default=None, description="Key that signs notices.")
    encrypted_scratch: bool = Field(default=False, description="Declare that the workers' spill folder is encrypted.")

    @property
    def names_cluster(self) -> bool:
        """True if the user chose a cluster or a number of workers; if not, data declared as small use no cluster."""
        return not self.model_fields_set.isdisjoint(("cluster", "workers"))


def cluster_settings(workers: int | None = None) -> Settings:
    """Read the settings; an explicit number of workers takes precedence.

    Raises
    ------
    InvalidInput
        If a setting is outside its domain.
    """
    try:
        settings = _settings(workers, _variables())
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = f"{_PREFIX}{first['loc'][0]}".upper()
        raise InvalidInput(f"{name}={first['input']!r} is refused: {first['msg']}; fix that setting.") from None
    if settings.webhook_url is not None:
        check_webhook(settings.webhook_url.get_secret_value())
    if settings.ledger_url is not None:
        check_ledger(settings.ledger_url)
    return settings


@lru_cache(maxsize=2)
def _settings(workers: int | None, variables: frozenset[tuple[str, str]]) -> Settings:
    """Read the settings, and cache them until their environment variables change."""
    given = dict(variables) if workers is None else {**dict(variables), "workers": workers}
    return Settings.model_validate(given)


def _variables() -> frozenset[tuple[str, str]]:
    """Return the settings that environment variables name, by their names in `Settings`."""
    ours = ((name.upper(), value) for name, value in os.environ.items())
    return frozenset((name.removeprefix(_PREFIX).lower(), value) for name, value in ours if name.startswith(_PREFIX))


def check_ledger(url: str) -> None:
    """Check the address of a remote ledger, and refuse access rights that its clients must not hold.

    Raises
    ------
    InvalidInput
        If the address is not https, or the ledger's database or its keys are also set in this process.
    """
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname or parts.path.strip("/"):
        raise InvalidInput(f"DPCA_LEDGER_URL={url!r} must be https://host:port; correct that setting.")
    for name in ("DPCA_DATABASE_URL", "DPCA_KEY_FOLDER"):
        if os.environ.get(name):
            raise InvalidInput(
                f"{name} and DPCA_LEDGER_URL are both set, but a process with a remote ledger must not have access "
                "to the ledger's database or keys; unset one of them."
            )


def check_webhook(url: str) -> None:
    """Refuse a webhook address that is invalid, or whose notices others could read.

    The address is a secret, so the message does not quote it.

    Raises
    ------
    InvalidInput
        If the address is neither https nor http on this machine.
    """
    parts = urlsplit(url)
    if not parts.hostname or (parts.scheme, parts.hostname in _LOOPBACK) not in _SAFE:
        raise InvalidInput(
            "DPCA_WEBHOOK_URL must begin with https://, or with http:// on loopback; correct that setting."
        )
