"""Performance and place settings, from ``DPCA_*`` variables. None of them can change a guarantee."""

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from dpca_tasks.errors import InvalidInput


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
    """Read the settings; an explicit number of workers wins.

    Raises
    ------
    InvalidInput
        When a setting is outside its domain.
    """
    try:
        return Settings() if workers is None else Settings(workers=workers)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = f"{Settings.model_config['env_prefix']}{first['loc'][0]}".upper()
        raise InvalidInput(f"{name}={first['input']!r} is refused: {first['msg']}; mend that setting.") from None
