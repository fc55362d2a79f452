"""The configuration of a remote ledger: its operator's own file.

::

    listen: "0.0.0.0:8790"
    key: ledger.key                   # its certificate beside it, ledger.pem
    clients:
      - {name: runner, certificate: runner.pem, role: runner, populations: [patients]}
      - {name: board, certificate: board.pem, role: reader, populations: [patients]}

Paths are from the folder of the file. A runner releases; a reader sees budgets, and can spend nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpca_tasks.errors import InvalidInput
from flows.parties.certificates import fingerprint_of, key_of, read_certificate
from flows.parties.config_files import check_names, read_yaml

RUNNER, READER = ROLES = ("runner", "reader")
_NEEDED = {"listen", "key", "clients"}
_OF_CLIENTS = {"name", "certificate", "role", "populations"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Who may ask the ledger, and of whose budgets."""

    name: str
    certificate: str = field(repr=False)
    role: str
    populations: frozenset[str]

    @property
    def fingerprint(self) -> str:
        """The SHA-256 digest of the certificate."""
        return fingerprint_of(self.certificate)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerConfig:
    """The configuration of the service."""

    listen: str
    key: Path
    clients: tuple[Client, ...]

    @property
    def certificate(self) -> Path:
        """What the service shows, beside its key."""
        return self.key.with_suffix(".pem")


def read_config(path: Path | str) -> LedgerConfig:
    """Read and check the configuration.

    Raises
    ------
    InvalidInput
        When it is not as it must be, or two clients have one name or key.
    """
    path = Path(path)
    content = read_yaml(path, what="the configuration")
    check_names(content, known=_NEEDED, needed=_NEEDED, what=f"{path}")
    listed = content["clients"]
    if not isinstance(listed, list) or not listed:
        raise InvalidInput(f"clients of {path} is no list, and each who may ask is an entry of it; list them.")
    clients = tuple(_client(each, folder=path.parent) for each in listed)
    _check_different("name", [client.name for client in clients], path)
    _check_different("key", [key_of(client.certificate).hex() for client in clients], path)
    return LedgerConfig(listen=str(content["listen"]), key=path.parent / str(content["key"]), clients=clients)


def _check_different(what: str, found: list[str], path: Path) -> None:
    if len(set(found)) < len(found):
        raise InvalidInput(f"two clients of {path} have one {what}; give each one of its own.")


def _client(content: Any, *, folder: Path) -> Client:
    if not isinstance(content, Mapping):
        raise InvalidInput("an entry of clients is no mapping with name, certificate, role and populations; add them.")
    name = content.get("name")
    if not isinstance(name, str) or not name.isprintable() or not name.strip():
        raise InvalidInput("an entry of clients has no name, and refusals are logged by it; give it one.")
    check_names(content, known=_OF_CLIENTS, needed=_OF_CLIENTS, what=f"client {name!r}")
    populations = content["populations"]
    if not isinstance(populations, list) or not all(isinstance(each, str) for each in populations):
        raise InvalidInput(f"populations of client {name!r} is no list of names; list those it may ask about.")
    if content["role"] not in ROLES:
        raise InvalidInput(f"role of client {name!r} must be {RUNNER} or {READER}; correct it.")
    return Client(
        name=name,
        certificate=read_certificate(folder / str(content["certificate"])),
        role=content["role"],
        populations=frozenset(populations),
    )
