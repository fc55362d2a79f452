"""Attempts to access each service with wrong credentials: wrong certificate, password or key."""

import gc
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import dask
import obstore
import psycopg
from distributed import Client
from distributed.security import Security
from obstore.exceptions import BaseError

from tests.integration.processes import BIN, Failure, check
from tests.integration.services import Stack
from tests.web_server import Files, issue


def keep_strangers_out(stack: Stack) -> int:
    """Try to access Dask, PostgreSQL and the store with wrong credentials; return the number of attempts."""
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    return sum((_knock_at_dask(stack), _knock_at_postgresql(stack), _knock_at_the_store(stack)))


def _knock_at_dask(stack: Stack) -> int:
    stranger, plain = issue(stack.root / "stranger"), stack.dask_address.replace("tls://", "tcp://")
    clients: dict[str, tuple[str, Security | None]] = {
        "a client without a certificate": (stack.dask_address, None),
        "a client of another authority": (stack.dask_address, _security(stranger, ca=stranger.ca)),
        "a client that trusts ours": (stack.dask_address, _security(stranger, ca=stack.certificates.ca)),
        "a client in clear text": (plain, None),
    }
    with dask.config.set({"distributed.comm.timeouts.connect": "3s"}):
        for who, (address, security) in clients.items():
            _refused(who, partial(_join, address, security), Exception)
    workers = {"of another authority": (stack.dask_address, stranger.options), "in clear text": (plain, [])}
    for who, (address, options) in workers.items():
        waits = ("--no-nanny", "--no-dashboard", "--death-timeout", "8")
        done = stack.processes.run(
            BIN / "dask",
            "worker",
            address,
            *waits,
            *options,
            environment={"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "3s"},
        )
        check("Registered to" not in done.stdout + done.stderr, f"a worker {who} joined the cluster")
    ours = _security(stack.certificates, ca=stack.certificates.ca)
    with Client(stack.dask_address, security=ours, set_as_default=False) as client:
        known = client.scheduler_info(n_workers=-1)["workers"]
        check(len(known) == len(stack.dask_workers), f"the cluster has {len(known)} workers")
    return len(clients) + len(workers)


def _knock_at_postgresql(stack: Stack) -> int:
    wrong = {
        "Prefect's account at the ledger": stack.database_url("prefect", "dpca"),
        "the curator's account at Prefect's database": stack.database_url("dpca_curator", "prefect"),
        "the curator's account at another database": stack.database_url("dpca_curator", "postgres"),
        "a wrong password": stack.database_url("dpca_curator", "dpca", password="a guess"),
        "no password": stack.database_url("dpca_curator", "dpca", password=""),
    }
    for who, url in wrong.items():
        _refused(who, partial(psycopg.connect, url.replace("+psycopg", "")), psycopg.OperationalError)
        done = stack.processes.run(
            BIN / "dpca", "budget", "show", "people", environment=stack.curator | {"DPCA_DATABASE_URL": url}
        )
        check((done.returncode, done.stdout) == (1, ""), f"dpca with {who} ended with {done.returncode}")
        _one_line(done.stderr, who, "the database cannot be used")
    return len(wrong)


def _knock_at_the_store(stack: Stack) -> int:
    (row,) = stack.query("SELECT path FROM snapshot ORDER BY seq LIMIT 1")
    rows, names = f"{row.path}/zarr.json", "registry/names/people-map.json"
    curator, worker, consumer = (stack.store(name) for name in ("curator", "worker", "consumer"))
    nobody = stack.store("consumer", secret="a guess")
    tries: dict[str, Callable[[], object]] = {
        "a consumer that reads rows": lambda: obstore.get(consumer, rows),
        "a consumer that writes": lambda: obstore.put(consumer, names, b"{}"),
        "a consumer that deletes": lambda: obstore.delete(consumer, names),
        "a worker that reads artifacts": lambda: obstore.get(worker, names),
        "a worker that writes": lambda: obstore.put(worker, rows, b"{}"),
        "a wrong secret": lambda: obstore.get(nobody, names),
    }
    for who, attempt in tries.items():
        _refused(who, attempt, BaseError)
    for key in (rows, names):
        check(obstore.get(curator, key).bytes(), f"{key} is gone")
    stranger = stack.consumer | {"AWS_SECRET_ACCESS_KEY": "a guess"}
    done = stack.processes.run(BIN / "dpca", "registry", "list", environment=stranger)
    check((done.returncode, done.stdout) == (1, ""), f"dpca with a wrong secret ended with {done.returncode}")
    _one_line(done.stderr, "a wrong secret", "the credentials are not accepted")
    return len(tries)


def _join(address: str, security: Security | None) -> None:
    Client(address, security=security, timeout=5, set_as_default=False).close()


def _refused(who: str, attempt: Callable[[], object], kind: type[Exception]) -> None:
    try:
        attempt()
    except kind:
        pass
    else:
        raise Failure(f"{who} got access")
    # a refused Dask client closes when it is garbage-collected, which would block while another client starts
    gc.collect()


def _one_line(shown: str, who: str, words: str) -> None:
    lines = shown.splitlines()
    check(len(lines) == 1 and words in lines[0], f"dpca with {who} said {shown!r}")


def _security(files: Files, *, ca: Path) -> Security:
    return Security(
        require_encryption=True, tls_ca_file=str(ca), tls_client_cert=str(files.cert), tls_client_key=str(files.key)
    )
