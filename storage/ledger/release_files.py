"""What lies beside the database of releases under way, their keys and staged steps, until they end."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from storage.backends.crash_points import reached
from storage.database import tables
from storage.database.engine import transaction
from storage.errors import Corrupt, Unavailable
from storage.ledger import journal
from storage.ledger.orphans import names_in, remove_orphans
from storage.ledger.releases import check_states
from storage.ledger.replay import ENDED
from storage.ledger.secret_keys import KeyFolder

_ROWS = sa.select(tables.release).where(tables.release.c.id.in_(sa.bindparam("ids", expanding=True)))


@dataclass(frozen=True, slots=True)
class ReleaseFiles:
    """The keys of releases, and the folder of their staged steps."""

    keys: KeyFolder = field(repr=False)
    staging: Path

    def steps_of(self, release_id: str) -> Path:
        """Return the folder of a release's staged steps."""
        return self.staging / release_id

    def forget(self, release_id: str) -> None:
        """Erase the key of a release that ended, then its staged steps."""
        self.keys.erase(release_id)
        reached("commit.key_erased")
        shutil.rmtree(self.steps_of(release_id), ignore_errors=True)
        reached("commit.staging_removed")

    @contextmanager
    def drawing(self, engine: sa.Engine) -> Iterator[None]:
        """Sweep where a transaction fails that drew a key, as its commit does on a full disk.

        A long-lived process may not open its home again.
        """
        before = set(self.keys.release_ids())
        try:
            yield
        except Exception:
            if not before.issuperset(self.keys.release_ids()):
                with suppress(Unavailable):
                    self.sweep(engine)
            raise

    def sweep(self, engine: sa.Engine) -> None:
        """Finish what a crash or a full disk left: keys and steps of ended releases, and all that never got a row.

        They are listed while no transaction can be drawing a key, and only what was listed goes. So a release that
        began since keeps its key, however long this process slept, and a key without a row goes at once, whatever a
        clock says. Staged folders without a row may still be written, and go when they are old. What a row edited by
        hand would end keeps its key.
        """
        drawn, left, known, ended = set[str](), set[str](), set[str](), list[str]()
        if self._listed():
            with transaction(engine) as connection:
                journal.lock(connection)
                drawn, left = set(self.keys.release_ids()), self._listed()
                for row in connection.execute(_ROWS, {"ids": list(left)}).all():
                    known.add(row.id)
                    if row.state in ENDED:
                        with suppress(Corrupt):
                            check_states(connection, [row])
                            ended.append(row.id)
        for name in ended:
            self.forget(name)
        for name in drawn - known:
            self.keys.erase(name)
        remove_orphans(self.keys.folder)
        remove_orphans(self.staging, among=left - known)

    def _listed(self) -> set[str]:
        return {*names_in(self.staging), *self.keys.release_ids()}
