"""Performance and place settings, from ``DPCA_*`` variables. None of them can change a guarantee."""

from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from dpca_tasks.errors import InvalidInput
from flows.reports.logs import LogFormat

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_SAFE = (("https", True), ("https", False), ("http", True))


class Settings(BaseSettings):
    """Where to compute. What to compute, and at which privacy, is never a setting.

    ``DPCA_CLUSTER`` is ``local`` (worker processes of this machine), ``none`` (this process alone: the fastest for
    small data), the address of a Dask scheduler (``tls://host:8786``, ``tcp://host:8786``), or what starts a cluster
    for each run: ``kubernetes``, ``gateway`` or ``slurm``.
    """

    model_config = SettingsConfigDict(env_prefix="DPCA_", extra="ignore")

    cluster: str = Field(
        default="local",
        description="`local`, `none`, a Dask scheduler's address, `kubernetes`, `gateway` or `slurm`.",
    )
    workers: int = Field(default=2, ge=1, description="Workers of a cluster that is started for the run.")
    tls_ca: Path | None = Field(default=None, description="Certificate of the authority that the cluster trusts (PEM).")
    tls_cert: Path | None = Field(default=None, description="This process's certificate, signed by it (PEM).")
    tls_key: Path | None = Field(default=None, description="The private key of that certificate (PEM).")
    allow_plaintext: bool = Field(default=False, description="Admit rows in clear text on a network that is trusted.")
    sites_key: Path | None = Field(default=None, description="The private key of a roster's aggregator (PEM).")
    log: LogFormat = Field(default="off", description="How a run's events go to stderr: `off`, `text` or `json`.")
    webhook_url: SecretStr | None = Field(default=None, description="Where notices are sent: an https:// address.")
    webhook_secret: SecretStr | None = Field(default=None, description="The key by which notices are signed.")
    encrypted_scratch: bool = Field(default=False, description="Declare that the workers' spill folder is encrypted.")


def cluster_settings(workers: int | None = None) -> Settings:
    """Read the settings; an explicit number of workers wins.

    Raises
    ------
    InvalidInput
        When a setting is outside its domain.
    """
    try:
        settings = Settings() if workers is None else Settings(workers=workers)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = f"{Settings.model_config['env_prefix']}{first['loc'][0]}".upper()
        raise InvalidInput(f"{name}={first['input']!r} is refused: {first['msg']}; fix that setting.") from None
    if settings.webhook_url is not None:
        check_webhook(settings.webhook_url.get_secret_value())
    return settings


def check_webhook(url: str) -> None:
    """Refuse the address of a webhook that others could read or that is none; it is a secret, so it is not quoted.

    Raises
    ------
    InvalidInput
        When it is not https, nor http on this machine.
    """
    parts = urlsplit(url)
    if not parts.hostname or (parts.scheme, parts.hostname in _LOOPBACK) not in _SAFE:
        raise InvalidInput(
            "DPCA_WEBHOOK_URL must begin with https://, or with http:// on loopback; correct that setting."
        )
