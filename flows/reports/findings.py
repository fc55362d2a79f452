"""What a check of an installation found and how to fix it; checks of backups and of what consumers believe."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import sqlalchemy as sa

from storage.backups.kept_dates import read_dates
from storage.database import tables
from storage.database.engine import reading
from storage.home import key_folder
from storage.ledger import journal
from storage.registry.roots import newest_root
from storage.registry.signed_files import public_name
from storage.registry.signed_pointers import PUBLISHERS_KEY
from storage.registry.signing import read_key
from storage.workspace import Workspace

Verdict = Literal["ok", "note", "fix"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check found: ``ok``; a ``note``, with which runs succeed; or something to ``fix``."""

    check: str
    verdict: Verdict
    found: str
    advice: str = ""


def check_backups(workspace: Workspace) -> Iterator[Finding]:
    """Note that a ledger that has spent was never backed up from this machine, or no backup of it was rehearsed."""
    with reading(workspace.ledger.engine) as connection:
        entries = journal.head(connection).seq
        is_used = connection.execute(sa.select(tables.release.c.id).limit(1)).first() is not None
    dates = read_dates(workspace.ledger.id)
    if made := dates.get("made"):
        found = f"the last one from this machine is of {made['at'][:10]}, {entries - made['entries']} entries ago"
        advice = "" if dates.get("rehearsed") else "prove that it restores: dpca backup rehearse BACKUP"
        yield Finding(check="backup", verdict="note" if advice else "ok", found=found, advice=advice)
    elif is_used:
        advice = "dpca backup create FOLDER; a lost ledger has forgotten what nobody else knows"
        yield Finding(check="backup", verdict="note", found="none was made from this machine", advice=advice)


def check_signing(workspace: Workspace) -> Iterator[Finding]:
    """Report whether consumers who pinned the root believe what this ledger signs."""
    root, path = newest_root(workspace.store), key_folder() / PUBLISHERS_KEY
    if not path.exists():
        yield Finding(check="signing", verdict="ok", found="the first publication makes the publisher's key")
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
            found=f"key {key[:16]}... may not sign by version {root.version} of the root, so consumers refuse it",
            advice="delegate to it with dpca registry root update, then dpca registry resign",
        )
    else:
        found = f"signed by key {key[:16]}..., as version {root.version} of the root says"
        yield Finding(check="signing", verdict="ok", found=found)
