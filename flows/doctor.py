"""Checks of everything that a run depends on.

They cover settings, versions, folders, database, store, cluster, Prefect and the clock. Every check reports what it
found and how to fix it. Only three changes last: an empty home is created where none exists, pointer files are
rewritten to match the ledger, and a note records where the next check continues. No check reads a dataset.
"""

import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version
from itertools import chain
from pathlib import Path
from ssl import create_default_context
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import sqlalchemy as sa
from packaging.requirements import Requirement
from sqlalchemy.exc import ArgumentError

from dpca.backends.atomic_files import OTHERS
from dpca.backends.base import Place
from dpca.backends.local import LocalPlace, open_place
from dpca.errors import StorageError
from dpca.home import (
    WORKERS,
    home,
    is_on_read_only_disk,
    key_folder,
    ledger_url,
    state_folder,
    store,
    writable_home,
)
from dpca.registry.roots import PUBLISHERS_KEY, newest_root, public_name
from dpca_tasks.errors import DpcaError
from dpca_tasks.threads import is_loopback
from flows.clusters.connecting import check_address, connect, open_cluster
from flows.orchestration.own_server import left_servers
from flows.remote_ledger.remote_workspace import check_remote_ledger
from flows.reports.terminal import Finding
from flows.settings import Settings, cluster_settings
from storage.backups.copying import read_dates
from storage.database import tables
from storage.database.engine import reading, transaction
from storage.ledger import journal
from storage.ledger.budgets import other_units
from storage.ledger.checks import PART
from storage.ledger.stream_rows import Answers
from storage.registry.agreement import IncrementalCheck
from storage.registry.signing import read_key
from storage.workspace import Workspace

if TYPE_CHECKING:
    import httpx
    from prefect.settings import Settings as PrefectSettings

PACKAGE = "dpca-pipeline"
PROBE = b"dpca doctor"
FREE_BYTES = 2**30
CLOCK_SKEW = 5.0  # largest accepted difference between this machine's clock and the database's clock, in seconds
PLACES = (
    *("DPCA_HOME", "DPCA_STORE_URL", "DPCA_DATABASE_URL", "DPCA_KEY_FOLDER", "DPCA_STATE_FOLDER"),
    *("DPCA_REQUIRE_SIGNATURE", "DPCA_SIGNATURE_DAYS"),
    *("DPCA_CACHE_FOLDER", "DPCA_DEBUG", "DPCA_ALLOW_SHARED_HOME"),
)


def examine(*, everything: bool = False) -> list[Finding]:
    """Run every check, and return each distinct finding once.

    A check runs before the checks that depend on its subject. The check of ledger and registry continues where the
    previous one ended, unless ``everything`` is set.
    """
    if ledger_url() is not None:
        return _once(
            _guarded(check) for check in (_settings, _transport, _versions, _home, _store, check_remote_ledger, *_AFTER)
        )
    before = (_settings, _transport, _versions, _home, _keys, _store)
    if is_on_read_only_disk(home()):
        return _once(_guarded(check) for check in (*before, _ledger_as_it_is, *_AFTER))
    open_once = cache(Workspace.open)  # if this fails, every check fails with the same error, which is reported once
    check_once = cache(lambda: _incremental_check(open_once(), everything=everything))
    return _once(
        (
            *(_guarded(check) for check in before),
            _guarded(_database, open_once),
            _guarded(_ledger, check_once),
            _guarded(_streams, open_once),
            _guarded(_units, open_once),
            _guarded(_witness, open_once),
            _guarded(_registry, open_once, check_once),
            *(_guarded(check, open_once) for check in (check_signing, check_backups, _clock)),
            *(_guarded(check) for check in _AFTER),
        )
    )


def _once(found: Iterable[Iterator[Finding]]) -> list[Finding]:
    reported: dict[str, Finding] = {}
    for finding in chain.from_iterable(found):
        reported.setdefault(finding.found, finding)
    return list(reported.values())


def _guarded(check: Callable[..., Iterator[Finding]], *subjects: Callable[[], object]) -> Iterator[Finding]:
    try:
        yield from check(*(subject() for subject in subjects))
    except (DpcaError, StorageError, OSError) as error:
        found, _, advice = " ".join(str(error).split()).partition(";")
        named = check.__name__.strip("_").removeprefix("check_").replace("_", " ")
        yield Finding(check=named, verdict="fix", found=found, advice=advice.strip().rstrip("."))


def _settings() -> Iterator[Finding]:
    known = {*PLACES, *(f"DPCA_{name.upper()}" for name in Settings.model_fields)}
    unknown = sorted(name for name in os.environ if name.startswith("DPCA_") and name not in known)
    cluster_settings()
    if unknown:
        yield Finding(
            check="settings",
            verdict="note",
            found=f"{', '.join(unknown)} is not a setting and has no effect",
            advice=f"the settings are {', '.join(sorted(known))}",
        )
    else:
        yield Finding(check="settings", verdict="ok", found="every DPCA_* variable is a known setting")


def _transport() -> Iterator[Finding]:
    """Report a remote database or object store whose connection may be unencrypted, or whose server is not verified."""
    url = os.environ.get("DPCA_DATABASE_URL", "")
    if url.startswith("postgresql") and not _is_verified(url):
        yield Finding(
            check="transport",
            verdict="note",
            found="DPCA_DATABASE_URL allows an unencrypted connection or an unverified server",
            advice="add sslmode=verify-full, and sslrootcert=FILE with the authority of the server's certificate",
        )
    endpoint = urlsplit(os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT", ""))
    if endpoint.scheme == "http" and not is_loopback(endpoint.hostname or ""):
        yield Finding(
            check="transport",
            verdict="note",
            found="AWS_ENDPOINT_URL sends rows and keys unencrypted",
            advice="use https://, and set SSL_CERT_FILE to the certificate of a private authority",
        )


def _is_verified(address: str) -> bool:
    try:
        url = sa.make_url(address)
    except (ArgumentError, ValueError):
        return True  # an invalid address is reported by the check of the database
    if url.query.get("sslmode", os.environ.get("PGSSLMODE")) == "verify-full":
        return True
    named = [url.host] if url.host else sa.util.to_list(url.query.get("host")) or []
    # a host that begins with "/" is the folder of a local socket
    hosts = [urlsplit(f"//{host}").hostname for host in named if not host.startswith("/")]
    return all(host is not None and is_loopback(host) for host in hosts)


_EXTRAS = ("tables", "s3", "local", "pipeline")
"""The extras that a machine must have installed to make releases."""


def _versions() -> Iterator[Finding]:
    wrong = []
    for line in requires(PACKAGE) or ():
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in _EXTRAS):
            continue
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            installed = "missing"
        if installed == "missing" or not requirement.specifier.contains(installed, prereleases=True):
            wrong.append(f"{requirement.name} {installed} (needs {requirement.specifier or 'any'})")
    if wrong:
        advice = "install the versions of the lock file: newer ones stop schedules silently, or break Prefect's server"
        yield Finding(check="versions", verdict="fix", found="; ".join(wrong), advice=advice)
    else:
        yield Finding(check="versions", verdict="ok", found=f"prefect {version('prefect')}, dask {version('dask')}")


def _home() -> Iterator[Finding]:
    folder = writable_home()
    yield _private("home", folder)
    free = shutil.disk_usage(folder).free
    enough = free >= FREE_BYTES
    yield Finding(
        check="disk",
        verdict="ok" if enough else "fix",
        found=f"{free / 2**30:.1f} GiB free in {folder}",
        advice="" if enough else "free some space: ingest and staging write there",
    )


def _keys() -> Iterator[Finding]:
    folder = key_folder()
    if not folder.exists():
        yield Finding(check="keys", verdict="ok", found=f"{folder} will be created by the first release")
        return
    yield _private("keys", folder)


def _private(check: str, folder: Path) -> Finding:
    mode = stat.S_IMODE(folder.stat().st_mode)
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        advice = "mount its disk for writing" if is_on_read_only_disk(folder) else f"chown it to {os.getuid()}"
        return Finding(check=check, verdict="fix", found=f"{folder} cannot be written", advice=advice)
    if mode & OTHERS:  # possible only if DPCA_ALLOW_SHARED_HOME is set
        return Finding(
            check=check,
            verdict="note",
            found=f"{folder} is open to other users (mode {mode:o}), as DPCA_ALLOW_SHARED_HOME admits",
            advice=f"chmod 700 {folder}",
        )
    return Finding(check=check, verdict="ok", found=f"{folder}, for this user alone")


def _store() -> Iterator[Finding]:
    place = store()
    if isinstance(place, LocalPlace):
        writable_home()
    with _probe(place) as path:
        returned = place.read(path).payload == PROBE
    yield Finding(
        check="store",
        verdict="ok" if returned else "fix",
        found=place.address
        + (" can be written, read and deleted" if returned else " returns other bytes than were written"),
        advice="" if returned else "use a store with read-after-write consistency",
    )


@contextmanager
def _probe(place: Place) -> Iterator[str]:
    folder = f"staging/doctor-{os.urandom(8).hex()}"
    place.write(f"{folder}/probe", PROBE, over=None)
    try:
        yield f"{folder}/probe"
    finally:
        place.remove(folder, marker="probe")


def _database(workspace: Workspace) -> Iterator[Finding]:
    engine = workspace.ledger.engine
    with transaction(engine) as connection:
        row = {"name": "dpca doctor", "alias": "dpca doctor", "version": 0}
        savepoint = connection.begin_nested()
        connection.execute(sa.table("alias", *map(sa.column, row)).insert().values(row))
        savepoint.rollback()
    yield Finding(
        check="database", verdict="ok", found=f"{shown_address(engine.url.render_as_string())} can be read and written"
    )


def _incremental_check(workspace: Workspace, *, everything: bool) -> IncrementalCheck:
    return IncrementalCheck(workspace.ledger, workspace.store, keys=key_folder(), everything=everything)


def _ledger(check: IncrementalCheck) -> Iterator[Finding]:
    found = check.ledger()
    entries, read = found.known.entries, "every row agrees with it"
    if found.part is not None:
        first, last = found.part
        read = (
            f"the new entries and the rows of events {first} to {last} agree with it; all rows are read again within "
            f"{-(-entries // PART)} runs, or now with dpca doctor --all"
        )
    yield Finding(check="ledger", verdict="ok", found=f"the journal is complete to event {entries}, and {read}")


def _ledger_as_it_is() -> Iterator[Finding]:
    """Verify the whole ledger of a read-only home, if the home exists."""
    if not home().is_dir():
        return
    entries = Workspace.read_only().ledger.verify()
    found = (
        f"the journal is complete to event {entries}, and every row agrees with it; no other "
        "check of the ledger was made"
    )
    yield Finding(check="ledger", verdict="ok", found=found)


def _streams(workspace: Workspace) -> Iterator[Finding]:
    """Check that every open stream has paid ticks (versions) left, and all noisy answers that its estimates need."""
    for name in dict.fromkeys(stream.name for stream in workspace.ledger.streams.all()):
        # of the streams of one name, `show` returns the newest; only the newest can be open
        stream, ticks = workspace.ledger.streams.show(name)
        if not stream.is_live:
            continue
        kept = Answers(place=workspace.store, ticks=ticks)
        lost = [str(tick.tick) for tick in ticks if tick.answer is not None and tick.tick not in kept]
        left, advice = stream.ticks - len(ticks), ""
        if lost:
            advice = (
                f"noisy answers of ticks {', '.join(lost)} are not in streams/{stream.id}: restore them from a copy"
            )
        elif left <= 0:
            advice = f"charge more ticks with dpca stream extend {stream.name}, or close the stream and open a new one"
        found = f"{stream.name}: {len(ticks)} of {stream.ticks} ticks used"
        yield Finding(check="streams", verdict="note" if advice else "ok", found=found, advice=advice)


def _units(workspace: Workspace) -> Iterator[Finding]:
    with transaction(workspace.ledger.engine) as connection:
        for found, advice in other_units(connection).values():
            yield Finding(check="units", verdict="note", found=found, advice=advice)


def _witness(workspace: Workspace) -> Iterator[Finding]:
    """Report the folder of the separate witness, the record outside the home that reveals a restored old ledger.

    Warn if a copy of the home folder would include the witness.
    """
    folder = state_folder() / workspace.ledger.id
    yield _private("witness", folder)
    if folder.resolve().is_relative_to(writable_home().resolve()):
        yield Finding(
            check="separate witness",
            verdict="note",
            found=f"the witness (outside record of the ledger) in {folder} is part of DPCA_HOME: restoring the whole "
            "home hides spent budget",
            advice="set DPCA_STATE_FOLDER to a folder that is neither copied nor restored with the home",
        )


def _registry(workspace: Workspace, check: IncrementalCheck) -> Iterator[Finding]:
    workspace.rebuild_pointers()
    yield Finding(check="registry", verdict="ok", found=f"{check.registry()} versions agree with the ledger")


def _clock(workspace: Workspace) -> Iterator[Finding]:
    engine = workspace.ledger.engine
    if engine.dialect.name != "postgresql":
        yield Finding(check="clock", verdict="ok", found="the database uses this machine's clock")
        return
    before = time.time()
    with reading(engine) as connection:
        theirs = float(connection.execute(sa.text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())
    after = time.time()
    skew = max(before - theirs, theirs - after, 0.0)
    close = skew <= CLOCK_SKEW
    yield Finding(
        check="clock",
        verdict="ok" if close else "fix",
        found=f"differs by {skew:.0f} s from the database's clock",
        advice="" if close else "start a time service: schedule slots and S3 signatures depend on the clock",
    )


def _cluster() -> Iterator[Finding]:
    settings = cluster_settings()
    check_address(settings)
    if "://" not in settings.cluster:
        yield Finding(check="cluster", verdict="ok", found=f"{settings.cluster}, started by each run")
        return
    place = store()
    with (
        open_cluster(settings, scratch=writable_home() / WORKERS) as address,
        connect(address, settings) as client,
        _probe(place) as path,
    ):
        assert client is not None
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        client.get_versions(check=True)
        blind = sum(not sees for sees in client.run(_sees, place.address, path).values())
    if blind:
        yield Finding(
            check="cluster",
            verdict="fix",
            found=f"{blind} of {len(workers)} workers cannot reach the store",
            advice="give them the same folder at the same path, or the credentials of DPCA_STORE_URL",
        )
        return
    if settings.cluster.startswith("tcp://"):
        yield Finding(
            check="cluster",
            verdict="note",
            found=f"everyone who reaches {address} can run programs in the cluster, as its user",
            advice="start the scheduler and its workers under TLS",
        )
    threads, memory = (sum(worker[name] for worker in workers) for name in ("nthreads", "memory_limit"))
    found = f"{len(workers)} workers, {threads} threads, {memory / 2**30:.1f} GiB, no worker may spill rows to disk"
    yield Finding(check="cluster", verdict="ok", found=f"{found}; at {address}")


def shown_address(url: str) -> str:
    """Return a URL without its query, which may hold a password, and without the password before its host."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    return f"{parts.scheme}://{name}{':***' if colon else ''}{at}{host}{parts.path}"


def _sees(address: str, path: str) -> bool:
    try:
        return open_place(address).read(path).payload == PROBE
    except (OSError, StorageError):
        return False


def _prefect() -> Iterator[Finding]:
    from prefect.settings import Settings as PrefectSettings

    settings = PrefectSettings()  # read now, because the settings may have changed
    if any(name.split(".")[0] == "dpca" for name in settings.logging.extra_loggers or ()):
        yield Finding(
            check="logging",
            verdict="fix",
            found="PREFECT_LOGGING_EXTRA_LOGGERS sends the log of dpca to Prefect",
            advice="remove dpca from it: reasons in the log may quote data, and Prefect is outside the trust boundary",
        )
    if not settings.api.url:
        yield Finding(
            check="prefect",
            verdict="note",
            found="no PREFECT_API_URL: each command starts its own server",
            advice="schedules need a permanent server: `prefect server start`, then set PREFECT_API_URL",
        )
        return
    import httpx

    address = shown_address(settings.api.url)
    try:
        answer = _call(settings)
    except httpx.HTTPError as error:
        found = f"no server answers at {address} ({type(error).__name__})"
        yield Finding(check="prefect", verdict="fix", found=found, advice="start it, or fix PREFECT_API_URL")
        return
    healthy, stranger = answer.status_code == httpx.codes.OK, answer.status_code == httpx.codes.UNAUTHORIZED
    wrong = "set PREFECT_API_AUTH_STRING to the server's NAME:PASSWORD" if stranger else "see the server's log"
    yield Finding(
        check="prefect",
        verdict="ok" if healthy else "fix",
        found=f"{address} answers {answer.status_code}",
        advice="" if healthy else wrong,
    )


def _servers() -> Iterator[Finding]:
    found = sorted(left_servers())
    if found:
        size = sum(size for _, size in found) / 2**20
        yield Finding(
            check="servers",
            verdict="fix",
            found=f"{len(found)} Prefect servers of killed commands are still running ({size:.0f} MiB)",
            advice=f"kill {' '.join(str(process) for process, _ in found)}",
        )


def _call(settings: "PrefectSettings") -> "httpx.Response":
    """Send Prefect's server a request that fails without the right credentials."""
    import httpx

    api = settings.api
    if api.key is not None:  # Prefect Cloud
        key = {"Authorization": f"Bearer {api.key.get_secret_value()}"}
        return httpx.get(f"{api.url}/health", headers=key, timeout=10)
    name, _, password = (api.auth_string.get_secret_value() if api.auth_string else "").partition(":")
    access = (name, password) if name else None
    verify = create_default_context(cafile=api.ssl_cert_file) if api.ssl_cert_file else True
    return httpx.get(f"{api.url}/admin/version", auth=access, verify=verify, timeout=10)


_AFTER = (_cluster, _prefect, _servers)


def check_backups(workspace: Workspace) -> Iterator[Finding]:
    """Report the last backup made from this machine.

    Note a used ledger that has no backup, or whose backup was never restored as a test.
    """
    with reading(workspace.ledger.engine) as connection:
        entries = journal.head(connection).seq
        is_used = connection.execute(sa.select(tables.release.c.id).limit(1)).first() is not None
    dates = read_dates(workspace.ledger.id)
    if made := dates.get("made"):
        age = f"{entries - made['entries']} journal entries ago"
        found = f"the last backup from this machine is of {made['at'][:10]}, {age}"
        advice = "" if dates.get("rehearsed") else "test that it restores: dpca backup rehearse BACKUP"
        yield Finding(check="backup", verdict="note" if advice else "ok", found=found, advice=advice)
    elif is_used:
        advice = "dpca backup create FOLDER; a lost ledger cannot be reconstructed"
        yield Finding(check="backup", verdict="note", found="no backup was made from this machine", advice=advice)


def check_signing(workspace: Workspace) -> Iterator[Finding]:
    """Report whether consumers who pinned the root accept the signatures of this ledger."""
    root, path = newest_root(workspace.store), key_folder() / PUBLISHERS_KEY
    if not path.exists():
        yield Finding(check="signing", verdict="ok", found="the first publication creates the publisher's key")
        return
    key = public_name(read_key(path))
    publisher = None if root is None else root.publishers.get(key)
    if root is None:
        yield Finding(
            check="signing", verdict="ok", found=f"signed by key {key[:16]}..., to which no root delegates yet"
        )
    elif publisher is None or publisher.state != "active":
        yield Finding(
            check="signing",
            verdict="fix",
            found=f"key {key[:16]}... may not sign in version {root.version} of the root, so consumers refuse it",
            advice="delegate to it with dpca registry root update, then run dpca registry resign",
        )
    else:
        found = f"signed by key {key[:16]}..., which version {root.version} of the root lists as a publisher"
        yield Finding(check="signing", verdict="ok", found=found)
