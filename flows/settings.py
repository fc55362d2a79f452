"""Performance and place settings, from ``DPCA_*`` variables. None of them can change a guarantee."""

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Where to compute. What to compute, and at which privacy, is never a setting.

    ``DPCA_CLUSTER`` is ``local`` (worker processes of this machine), ``none`` (this process alone: the fastest for
    small data), or the address of a Dask scheduler (``tls://host:8786``, ``tcp://host:8786``).
    """

    model_config = SettingsConfigDict(env_prefix="DPCA_", extra="ignore")

    cluster: str = Field(default="local", description="`local`, `none`, or the address of a Dask scheduler.")
    workers: int = Field(default=2, ge=1, description="Worker processes of a local cluster.")
    allow_plaintext: bool = Field(default=False, description="Admit tcp:// to a host that is not loopback.")
    encrypted_scratch: bool = Field(default=False, description="Declare that the workers' spill folder is encrypted.")


def cluster_settings(workers: int | None = None) -> Settings:
    """Read the settings; an explicit number of workers wins."""
    settings = Settings()
    return settings if workers is None else settings.model_copy(update={"workers": workers})
