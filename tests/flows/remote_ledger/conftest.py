"""Fixture: a home with data and budget whose ledger is remote.

A remote ledger of tests runs in this process: a separate workspace behind the service's routes, and calls that may be
cut.
"""

import asyncio
import json
import shutil
from pathlib import Path
from threading import Lock
from typing import Any

import httpx
import pytest

from dpca_tasks.errors import SiteSilent
from flows.parties.calling import Caller
from flows.parties.listening import PEER
from flows.remote_ledger import remote_workspace
from flows.remote_ledger.messages import Answer
from flows.remote_ledger.remote_workspace import Connection
from flows.remote_ledger.service import READER, RUNNER, Client, LedgerService
from storage.workspace import Workspace

PEOPLE = "people"


SECRET = "private"


def move_away(home: Path, place: Path) -> dict[str, str]:
    """Move the database and the keys of a home to another folder; return the settings of that location."""
    place.mkdir(mode=0o700)
    shutil.move(home / "keys", place / "keys")
    for path in home.glob("dpca.sqlite*"):
        shutil.move(path, place / path.name)
    return {
        "DPCA_HOME": str(home),
        "DPCA_DATABASE_URL": f"sqlite:///{place / 'dpca.sqlite'}",
        "DPCA_KEY_FOLDER": str(place / "keys"),
        "DPCA_STATE_FOLDER": str(place / "state"),
    }


_ONE_AT_A_TIME = Lock()
"""Held while an application is built: FastAPI silences its warnings for the whole process meanwhile."""


class Loopback(Caller):
    """Connection to a service in this process.

    The first answer of each route in ``cut`` is lost, after the service has executed the request.
    """

    def __init__(self, service: LedgerService, name: str) -> None:
        with _ONE_AT_A_TIME:
            self._app = service.application({name: name})
        self._name = name
        self.cut: set[str] = set()
        self.for_good = False
        self.lost: list[str] = []

    def send(self, path: str, content: bytes, *, media: str, most: int) -> tuple[int, bytes]:
        """Execute a request as the service does, and raise `SiteSilent` if the answer is to be lost."""
        answer = asyncio.run(self._posted(path, content, media))
        name = path.rpartition("/")[2]
        if name in self.cut:
            if not self.for_good:
                self.cut.discard(name)
            self.lost.append(name)
            raise SiteSilent("the connection was cut.")
        return answer.status_code, answer.content

    async def _posted(self, path: str, content: bytes, media: str) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self._identified)) as client:
            return await client.post(f"https://ledger{path}", content=content, headers={"content-type": media})

    async def _identified(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app({**scope, PEER: self._name}, receive, send)


class RemoteHome:
    """A home, its ledger as opened by the service, and the connections of the service's clients."""

    def __init__(self, home: Path, place: Path, patch: pytest.MonkeyPatch) -> None:
        with pytest.MonkeyPatch.context() as opened:
            for name, value in move_away(home, place).items():
                opened.setenv(name, value)
            self.workspace = Workspace.open()
        self.ledger = self.workspace.ledger
        everybody = frozenset({PEOPLE})
        self.service = LedgerService(
            self.workspace,
            (
                Client(name="runner", certificate="", role=RUNNER, populations=everybody),
                Client(name="reader", certificate="", role=READER, populations=everybody),
                Client(name="others", certificate="", role=RUNNER, populations=frozenset({"others"})),
                Client(name="both", certificate="", role=RUNNER, populations=everybody | {"others"}),
            ),
        )
        self.caller = Loopback(self.service, "runner")
        patch.setattr(remote_workspace, "PAUSES", (0.0, 0.0))
        patch.setattr(remote_workspace, "connect", lambda *_: Connection(self.caller))
        for name, value in {"URL": "https://127.0.0.1:1", "CERT": "none.pem", "KEY": "none.key"}.items():
            patch.setenv(f"DPCA_LEDGER_{name}", value)

    def call(self, route: str, /, *, by: str = "runner", **requested: Any) -> Any:
        """Send a request to a route as a client does, and return the result."""
        return Connection(Loopback(self.service, by)).call(route, Answer[Any], **requested)

    def journal(self) -> list[str]:
        """Return the names of all entries of the journal, in order."""
        from sqlalchemy import text

        with self.ledger.transaction() as connection:
            return list(connection.execute(text("SELECT name FROM event ORDER BY seq")).scalars())

    def reported(self) -> str:
        """Return the ledger's statement of its population as text, to compare states before and after a request."""
        statement = self.ledger.statement(PEOPLE)
        return json.dumps([statement.spent, [(row.id, row.state, row.updated_at) for row in statement.releases]])


@pytest.fixture
def remote(ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RemoteHome:
    """Return a home whose ledger is reached through the routes of its service."""
    return RemoteHome(ready, tmp_path / SECRET, monkeypatch)
