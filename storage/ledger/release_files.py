"""What lies beside the database of releases under way, their keys and staged steps, until they end."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from storage.backends.crash_points import reached
from storage.database import tables
from storage.database.engine import transaction
from storage.ledger import journal
from storage.ledger.orphans import names_in, remove_orphans
from storage.ledger.releases import ENDED
from storage.ledger.secret_keys import KeyFolder

_STATES = sa.select(tables.release.c.id, tables.release.c.state).where(
    tables.release.c.id.in_(sa.bindparam("ids", expanding=True))
)


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

    def sweep(self, engine: sa.Engine) -> None:
        """Finish what a crash left: keys and steps of ended releases, and whatever never got a row.

        They are listed while no transaction can be drawing a key, and only what was listed goes. So a release that
        began since keeps its key, however long this process slept, and whatever a clock says.
        """
        states, left = dict[str, str](), set[str]()
        if self._listed():
            with transaction(engine) as connection:
                journal.lock(connection)
                left = self._listed()
                states = {row.id: row.state for row in connection.execute(_STATES, {"ids": list(left)})}
        for name, state in states.items():
            if state in ENDED:
                self.forget(name)
        for folder in (self.staging, self.keys.folder):
            remove_orphans(folder, among=left - states.keys())

    def _listed(self) -> set[str]:
        return {*names_in(self.staging), *self.keys.release_ids()}
