"""Test files that arrive in an inbox, the refresh loop that processes them, and a webhook that records notices."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from dpca.registry.reader import Registry
from flows.jobs import run_refresh
from flows.refresh import refresh_directly
from flows.requests import SubspaceRequest
from storage.datasets.ingest_options import IngestOptions
from storage.ledger.ledger import Ledger
from storage.workspace import Workspace

NAME, DATASET, DELTA, FEATURES = "people-map", "people", 1e-6, 8
OPTIONS = IngestOptions(records_at_most=4_000)


def drop(inbox: Path, name: str, *, seed: int, turned: int = 0) -> Path:
    """Write a file of rows to an inbox; two columns, starting at column ``turned``, have most of the variance."""
    inbox.mkdir(exist_ok=True)
    scales = np.roll(np.array([1.0, 0.7, *(FEATURES - 2) * (0.02,)]), turned)
    rows = np.random.default_rng(seed).normal(size=(2_000, FEATURES)) * scales
    part = inbox / f"{name}.part"
    with part.open("wb") as file:
        np.save(file, rows)
    return part.rename(inbox / name)


def request(**others: Any) -> SubspaceRequest:
    requested: dict[str, Any] = {
        "dataset": DATASET,
        "publish": NAME,
        "components": 2,
        "epsilon": 4.0,
        "delta": DELTA,
        "clip_norm": 2.0,
    }
    return SubspaceRequest(**(requested | others))


def refresh(inbox: Path, *, direct: bool = True, releases: int | None = None, **others: Any) -> dict[str, Any]:
    """Run the refresh loop once; each file in the inbox counts as complete immediately."""
    run = refresh_directly if direct else run_refresh
    return run(str(inbox), request(**others), OPTIONS, settled=0.0, releases=releases)


def open_budget(epsilon: float = 20.0) -> Ledger:
    ledger = Workspace.open().ledger
    ledger.open_budget(DATASET, epsilon=epsilon, delta=DELTA)
    return ledger


def champion() -> int:
    return Registry.open().resolve(f"{NAME}@champion").version


def states() -> list[str]:
    return [row.state for row in Workspace.read_only().ledger.statement(DATASET).releases]


class Webhook:
    """The notices that a webhook received, with headers and bodies, and how it answers."""

    def __init__(self) -> None:
        self.reported: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.failures = 0
        self.refuses: str | None = None
        self.seconds = 0.0
        self.url = ""

    def events(self) -> list[str]:
        return [shown["event"] for shown in self.reported]


@contextmanager
def listening() -> Iterator[Webhook]:
    """Run a webhook on loopback; it answers 503 to the first ``failures`` posts, and 400 to the notice ``refuses``."""
    hook = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            payload = self.rfile.read(int(self.headers["Content-Length"]))
            hook.headers.append(dict(self.headers.items()))
            hook.bodies.append(payload)
            time.sleep(hook.seconds)
            if hook.failures:
                hook.failures -= 1
                self.send_response(503)
            elif json.loads(payload)["id"] == hook.refuses:
                self.send_response(400)
            else:
                hook.reported.append(json.loads(payload))
                self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hook.url = f"http://127.0.0.1:{server.server_port}/secret-path"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield hook
        finally:
            server.shutdown()
            thread.join()
