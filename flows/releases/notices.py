"""Notices: who has to know is told once, in public facts, by a line of the log, an event of Prefect and a webhook.

A notice has a key: of several processes that have the same to say, the first writes it down in the home folder, and
tells. Its webhook is called until it answers, by this process and by every later notice, always with the same
``Idempotency-Key``. That nobody answers never fails a release.
"""

import hashlib
import hmac
import http.client
import json
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dpca_tasks.errors import InvalidInput
from flows.orchestration.prefect_events import emit_public_event, stored_secret
from flows.reports.logs import log_event
from flows.settings import check_webhook, cluster_settings
from storage.backends.atomic_files import make_folder, writing
from storage.backends.claims import claim_file
from storage.ledger.ledger import Ledger

PAUSES = (0.5, 2.0)
"""Seconds between the calls of a webhook in one go."""
PATIENCE = 5.0
"""Seconds that each may take."""
FOLDER = "notices"
_URL_BLOCK, _KEY_BLOCK = "dpca-webhook-url", "dpca-webhook-secret"


def give_notice(home: Path, event: str, *, key: str, about: str, facts: Mapping[str, Any]) -> bool:
    """Tell of an event, unless it was told before; return whether it was told now.

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
    folder, payload = home / FOLDER, json.dumps(notice).encode()
    told, pending = folder / f"{name}.told", folder / f"{name}.pending"
    if told.exists():
        return False
    with writing(folder):
        make_folder(folder)
        claim_file(pending, payload)  # before it counts as told, so that a crash in between loses nothing
        is_first = claim_file(told, b"")
    if is_first:
        log_event("notice", notice=event, about=about, **facts)
        emit_public_event(f"dpca.{event}", resource=f"dpca.{about}", facts=notice)
    deliver_notices(home)
    return is_first


def warn_of_budget(ledger: Ledger, release_id: str, population: str) -> None:
    """Tell that a budget runs low, where a release's charge was the first to reach a level of it."""
    for level in ledger.alerts(release_id):
        statement = ledger.statement(population)
        facts = {"population": population, "percent_left": level, "remaining": statement.remaining}
        key = f"budget {ledger.id} {population} {level}"
        give_notice(ledger.home, "budget.low", key=key, about=f"budget.{population}", facts=facts)


def deliver_notices(home: Path) -> int:
    """Call the webhook for every notice that it did not take yet; return how many are left.

    Without a webhook there is nobody to call, and none is left.
    """
    pending = sorted((home / FOLDER).glob("*.pending"))
    if not pending:
        return 0
    try:
        url, secret = _webhook()
    except InvalidInput as refused:  # of an address in a block of Prefect, which is read after the charge
        log_event("notices_pending", count=len(pending), reason=str(refused))
        return len(pending)
    delivered = 0
    for note in pending:
        with suppress(FileNotFoundError):  # another process delivered it meanwhile
            if url is not None and not _posted(url, note.read_bytes(), key=note.stem, secret=secret):
                break
            note.unlink()
        delivered += 1
    if left := len(pending) - delivered:
        log_event("notices_pending", count=left)
    return left


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


def _posted(url: str, payload: bytes, *, key: str, secret: str | None) -> bool:
    headers = {"Content-Type": "application/json", "Idempotency-Key": key, "User-Agent": "dpca"}
    if secret is not None:
        headers["X-Dpca-Signature"] = "sha256=" + hmac.new(secret.encode(), payload, hashlib.sha256).hexdigest()
    for pause in (*PAUSES, None):
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
