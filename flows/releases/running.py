"""Charge, computation and notices of a planned release.

A planned release is charged to a ledger, computed and written in the same way from a flow and in a notebook. No
orchestrator or cluster is required. A Dask client or another resource of the caller is passed to the curator, which
sums rows and adds noise.

Each notice is sent once, with public facts only, as a log line, a Prefect event and a webhook call. A notice has a key.
When several processes have the same notice, the first one records it in the home folder, logs it and emits the event.
The webhook is called until it accepts the notice: by this process, and again with every later notice. All calls carry
the same ``Idempotency-Key``. A failed delivery never fails a release and does not hold back other notices.

Only one process at a time calls the webhook for a notice, and no process calls it again once it was accepted.
Ordinarily there is therefore one call. If a process dies after the response and before recording it, the next process
calls once more.

The progress of a partitioned sum is reported at the terminal, in Prefect's display and in the log. The number of
finished partitions and their total are public.

>>> progress = summing()
>>> progress(1, 8)
"""

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from pathlib import Path
from typing import Any

from dpca.artifacts.files import write_artifact
from dpca.backends.atomic_files import claim_file, make_folder, writing
from dpca.errors import BudgetExhausted, Unavailable
from dpca_tasks.errors import InvalidInput, StepTaken
from dpca_tasks.privacy.curator import Curator, DisclosingCurator
from dpca_tasks.privacy.gate import Reservation
from dpca_tasks.records.blocks import BlockSource
from flows.families.base import PlannedRelease, family_of, read_planned, stored_request
from flows.families.columns import Columns
from flows.orchestration.stage_calls import emit_public_event, stored_secret
from flows.remote_ledger.workspaces import ReleaseWorkspace
from flows.reports.activity import begin_step, report_parts
from flows.reports.terminal import about, log_event
from flows.settings import check_webhook, cluster_settings
from storage.ledger.balance import ReleaseLedger
from storage.ledger.releases import Grant, Release

PAUSES = (0.5, 2.0)
"""Seconds before each repeated call for a notice; after the first notice that fails, the others get one call each."""
LONGEST = 30.0
"""Seconds after which a delivery stops and leaves the remaining notices to the next delivery. Notices are delivered in
the order of their last call, oldest first.
"""
FOLDER = "notices"
_URL_BLOCK, _KEY_BLOCK = "dpca-webhook-url", "dpca-webhook-secret"


def give_notice(home: Path, event: str, *, key: str, about: str, facts: Mapping[str, Any]) -> bool:
    """Record an event as `note_event` does, and deliver all pending notices; return whether the event is new."""
    is_first = note_event(home, event, key=key, about=about, facts=facts)
    deliver_notices(home)
    return is_first


def note_event(home: Path, event: str, *, key: str, about: str, facts: Mapping[str, Any]) -> bool:
    """Write the notice of an event, unless it was written before; return whether it was written now.

    Parameters
    ----------
    home : Path
        The folder of the workspace.
    event : str
        Kind of the event, such as ``release.held``.
    key : str
        Identifies the event; the same in every process and every attempt.
    about : str
        Subject of the event: a published name, or ``budget.POPULATION``.
    facts : mapping
        Public facts only.
    """
    name = hashlib.sha256(key.encode()).hexdigest()[:32]
    notice = {"event": f"dpca.{event}", "id": name, "about": about, **facts}
    folder = home / FOLDER
    shown = folder / f"{name}.delivered"
    if shown.exists():
        return False
    with writing(folder):
        make_folder(folder)
        is_first = claim_file(shown, json.dumps(notice).encode())
    if is_first:
        log_event("notice", notice=event, about=about, **facts)
        emit_public_event(f"dpca.{event}", resource=f"dpca.{about}", facts=notice)
    return is_first


def warn_of_budget(ledger: ReleaseLedger, release_id: str, population: str) -> None:
    """Send a notice for each warning level of a budget that was first reached by the charge of this release."""
    for level in ledger.alerts(release_id):
        statement = ledger.statement(population, newest=0)
        facts = {"population": population, "percent_left": level, "remaining": statement.remaining}
        facts["statement"] = statement.budget.statement(statement.spent)
        key = f"budget {ledger.id} {population} {level}"
        give_notice(ledger.home, "budget.low", key=key, about=f"budget.{population}", facts=facts)


def deliver_notices(home: Path) -> int:
    """Call the webhook for every notice that it has not accepted yet; return the number of pending notices.

    Without a webhook there is nothing to call, and no notice stays pending.

    Raises
    ------
    Unavailable
        If the accepted notices cannot be recorded; the webhook is then called for them again.
    """
    waiting = _waiting(home / FOLDER)
    if not waiting:
        return 0
    try:
        url, secret = _webhook()
    except (InvalidInput, Unavailable) as refused:  # a faulty Prefect block is found only here
        log_event("notices_pending", count=len(waiting), reason=str(refused))
        return len(waiting)
    left, began = 0, time.monotonic()
    pauses: Sequence[float] = PAUSES
    for shown in waiting:
        with writing(home / FOLDER), _delivering(shown) as mine:
            if not mine:
                continue
            taken = url is None
            if url is not None and time.monotonic() - began < LONGEST:
                from flows.releases.webhook import posted  # loads HTTP libraries, so it is imported late

                taken = posted(url, shown.read_bytes(), key=shown.stem, secret=secret, pauses=pauses)
            if taken:
                claim_file(_taken(shown), b"")
            else:
                left, pauses = left + 1, ()
                os.utime(shown)  # a failed notice becomes the last one in the next delivery
    if left:
        log_event("notices_pending", count=left)
    return left


def _waiting(folder: Path) -> list[Path]:
    """Return the files of pending notices, ordered by the time of writing or of the last call, oldest first."""
    taken = {path.stem for path in folder.glob("*.taken")}
    shown = (path for path in folder.glob("*.delivered") if path.stem not in taken)
    return sorted(shown, key=lambda path: (path.stat().st_mtime_ns, path))


def _taken(shown: Path) -> Path:
    return shown.with_suffix(".taken")


@contextmanager
def _delivering(shown: Path) -> Iterator[bool]:
    """Lock a notice against webhook calls by other processes; yield whether this process must make the call."""
    with shown.open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield not _taken(shown).exists()


def _webhook() -> tuple[str | None, str | None]:
    """Return the URL and the signing key of the webhook, from the settings or else from Prefect blocks."""
    settings = cluster_settings()
    if settings.webhook_url is not None:
        key = settings.webhook_secret
        return settings.webhook_url.get_secret_value(), None if key is None else key.get_secret_value()
    url = stored_secret(_URL_BLOCK)
    if url is None:
        return None, None
    check_webhook(url)
    return url, stored_secret(_KEY_BLOCK)


def summing(show: Callable[[int, int], None] | None = None) -> Callable[[int, int], None]:
    """Return the progress callback of a sum, which also calls ``show``.

    A cluster calls it from its own threads. Each call runs in the context of the stage, which Prefect and the log
    require.
    """
    context = copy_context()

    def report(done: int, total: int) -> None:
        begin_step("summing partitions")
        report_parts(done, total)
        if show is not None:
            show(done, total)
        if done == total:
            begin_step("adding noise and post-processing")
            log_event("summed", partitions=total)

    return lambda done, total: context.copy().run(report, done, total)


def charge_release(ledger: ReleaseLedger, planned: PlannedRelease[Any]) -> Grant:
    """Charge a planned release to its population's budget, or find the existing release of its run key.

    Raises
    ------
    BudgetExhausted
        When the budget does not admit the release. Nothing is charged.
    """
    with about(run_key=planned.run_key, population=planned.population, mechanism=planned.plan.mechanism):
        try:
            grant = ledger.reserve(
                planned.population,
                run_key=planned.run_key,
                fingerprint=planned.fingerprint,
                event=planned.plan.event,
                epsilon=planned.plan.target.epsilon,
                delta=planned.plan.target.delta,
                void=planned.request.i_know_this_is_not_private,
                snapshot_id=planned.snapshot_id,
                request=stored_request(planned),
            )
        except BudgetExhausted:
            log_event("refused", remaining=ledger.statement(planned.population, newest=0).remaining)
            raise
        log_event("reserved", release=grant.release_id, state=grant.state)
        warn_of_budget(ledger, grant.release_id, planned.population)
    return grant


def finish_release(workspace: ReleaseWorkspace, release: Release, **others: Any) -> str:
    """Begin or resume a charged release, and write its artifact; return the artifact's digest.

    Parameters
    ----------
    workspace : ReleaseWorkspace
    release : Release
    **others
        Keyword arguments of the curator: a Dask client, a progress callback. Without a client it computes in this
        thread.

    Raises
    ------
    Finished
        When another process finished the release in the meantime.
    """
    ledger, catalog = workspace.ledger, workspace.catalog
    snapshot = catalog.entry(release.snapshot_id)
    planned = read_planned(release, unit=ledger.budget(release.population).privacy_unit)
    rows, family = catalog.open(snapshot), family_of(planned.request)
    planned = family.ready(planned)
    reservation = ledger.begin(release.id)
    log_event("began", mechanism=planned.plan.mechanism)
    begin_step("loading rows and code")
    began = time.monotonic()
    result = run_mechanism(planned, family.source(planned, rows), reservation, **others)
    begin_step("writing the artifact")
    log_event("computed", seconds=round(time.monotonic() - began, 3))
    columns = Columns.of(rows)
    artifact = family.state(planned, result, release_id=release.id, columns=columns).with_encoder(columns.encoder)
    for warning in artifact.manifest.get("warnings", ()):
        log_event("warned", warning=warning)
    return write_artifact(artifact, home=workspace.home, place=workspace.store)


def run_mechanism(planned: PlannedRelease[Any], source: BlockSource, reservation: Reservation, **others: Any) -> Any:
    """Run the mechanism; if another process answers a step first, run the mechanism again with the stored answers."""
    while True:
        with suppress(StepTaken):
            return planned.mechanism.run(_curator(planned, source, reservation, **others), planned.plan)


def _curator(planned: PlannedRelease[Any], source: BlockSource, reservation: Reservation, **others: Any) -> Curator:
    """Return the curator (which sums rows and adds noise) of a release; only releases without privacy get no noise."""
    if planned.plan.target.i_know_this_is_not_private:
        return DisclosingCurator(source, reservation, i_know_this_is_not_private=True, **others)
    return Curator(source, reservation, **others)
