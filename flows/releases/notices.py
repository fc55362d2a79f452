"""Notices: who has to know is told once, in public facts, by a line of the log, an event of Prefect and a webhook.

A notice has a key: of several processes that have the same to say, the first writes it down in the home folder, and
tells. Its webhook is called until it takes it, by this process and by every later notice, always with the same
``Idempotency-Key``. That nobody takes it never fails a release, and holds no other notice back.

Of several processes one calls the webhook for a notice at a time, and none does once it was taken. So ordinarily it is
called once; a process that dies between the answer and the note of it leaves one more call to the next.
"""

import fcntl
import hashlib
import hmac
import http.client
import json
import os
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dpca_tasks.errors import InvalidInput
from flows.orchestration.prefect_events import emit_public_event, stored_secret
from flows.reports.logs import log_event
from flows.settings import check_webhook, cluster_settings
from storage.backends.atomic_files import make_folder, writing
from storage.backends.claims import claim_file
from storage.errors import Unavailable
from storage.ledger.protocol import ReleaseLedger

PAUSES = (0.5, 2.0)
"""Seconds between the calls of a webhook in one go, for the first notice that it does not take; others get one call."""
PATIENCE = 5.0
"""Seconds that each may take."""
LONGEST = 30.0
"""Seconds that one go may take before it leaves what is left to the next; what waits longest since its last call
comes first."""
FOLDER = "notices"
_URL_BLOCK, _KEY_BLOCK = "dpca-webhook-url", "dpca-webhook-secret"


def give_notice(home: Path, event: str, *, key: str, about: str, facts: Mapping[str, Any]) -> bool:
    """Note an event as `note_event` does, and deliver every notice that waits; return whether it was noted now."""
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
        What happened, such as ``release.held``.
    key : str
        The same for the same event, in every process and every attempt.
    about : str
        What it happened to: a published name, or ``budget.POPULATION``.
    facts : mapping
        Public facts alone.
    """
    name = hashlib.sha256(key.encode()).hexdigest()[:32]
    notice = {"event": f"dpca.{event}", "id": name, "about": about, **facts}
    folder = home / FOLDER
    told = folder / f"{name}.told"
    if told.exists():
        return False
    with writing(folder):
        make_folder(folder)
        is_first = claim_file(told, json.dumps(notice).encode())
    if is_first:
        log_event("notice", notice=event, about=about, **facts)
        emit_public_event(f"dpca.{event}", resource=f"dpca.{about}", facts=notice)
    return is_first


def warn_of_budget(ledger: ReleaseLedger, release_id: str, population: str) -> None:
    """Tell that a budget runs low, where a release's charge was the first to reach a level of it."""
    for level in ledger.alerts(release_id):
        statement = ledger.statement(population, newest=0)
        facts = {"population": population, "percent_left": level, "remaining": statement.remaining}
        facts["statement"] = statement.budget.statement(statement.spent)
        key = f"budget {ledger.id} {population} {level}"
        give_notice(ledger.home, "budget.low", key=key, about=f"budget.{population}", facts=facts)


def deliver_notices(home: Path) -> int:
    """Call the webhook for every notice that it did not take yet; return how many are left.

    Without a webhook there is nobody to call, and none is left.

    Raises
    ------
    Unavailable
        If it cannot be noted which were taken; they are called for again.
    """
    waiting = _waiting(home / FOLDER)
    if not waiting:
        return 0
    try:
        url, secret = _webhook()
    except (InvalidInput, Unavailable) as refused:  # of a block of Prefect, which is read after the charge
        log_event("notices_pending", count=len(waiting), reason=str(refused))
        return len(waiting)
    left, began = 0, time.monotonic()
    pauses: Sequence[float] = PAUSES
    for told in waiting:
        with writing(home / FOLDER), _delivering(told) as mine:
            if not mine:
                continue
            if url is None or (
                time.monotonic() - began < LONGEST
                and _posted(url, told.read_bytes(), key=told.stem, secret=secret, pauses=pauses)
            ):
                claim_file(_taken(told), b"")
            else:
                left, pauses = left + 1, ()
                os.utime(told)  # the others come first the next time
    if left:
        log_event("notices_pending", count=left)
    return left


def _waiting(folder: Path) -> list[Path]:
    """Return the files of notices that no webhook took yet, the one first that was told or tried longest ago."""
    taken = {path.stem for path in folder.glob("*.taken")}
    told = (path for path in folder.glob("*.told") if path.stem not in taken)
    return sorted(told, key=lambda path: (path.stat().st_mtime_ns, path))


def _taken(told: Path) -> Path:
    return told.with_suffix(".taken")


@contextmanager
def _delivering(told: Path) -> Iterator[bool]:
    """Keep other processes from calling the webhook for a notice; yield whether it is for this one to do."""
    with told.open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield not _taken(told).exists()


def _webhook() -> tuple[str | None, str | None]:
    """Return address and key of the webhook: from the settings, else from blocks of Prefect."""
    settings = cluster_settings()
    if settings.webhook_url is not None:
        key = settings.webhook_secret
        return settings.webhook_url.get_secret_value(), None if key is None else key.get_secret_value()
    url = stored_secret(_URL_BLOCK)
    if url is None:
        return None, None
    check_webhook(url)
    return url, stored_secret(_KEY_BLOCK)


def _posted(url: str, payload: bytes, *, key: str, secret: str | None, pauses: Sequence[float]) -> bool:
    headers = {"Content-Type": "application/json", "Idempotency-Key": key, "User-Agent": "dpca"}
    if secret is not None:
        headers["X-Dpca-Signature"] = "sha256=" + hmac.new(secret.encode(), payload, hashlib.sha256).hexdigest()
    for pause in (*pauses, None):
        asked = urllib.request.Request(url, data=payload, headers=headers, method="POST")
        with suppress(OSError, http.client.HTTPException), _OPENER.open(asked, timeout=PATIENCE) as answer:
            if 200 <= answer.status < 300:
                return True
        if pause is not None:
            time.sleep(pause)
    return False


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follow no redirect: it would send the notice elsewhere."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)
