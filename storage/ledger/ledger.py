"""The ledger of budgets and releases, and the protocol that charges each release exactly once.

The ledger has one budget per population and one row per release. A release goes through these operations: ``reserve``
charges the budget before anything is computed. ``begin`` starts the computation; from then on, the release cannot be
abandoned without charge. The answer of each step is stored as soon as it is noised. ``commit`` publishes the artifact
in one transaction. After a crash at any point, the budget is charged and the release can be resumed. A charge is never
refunded after ``begin``.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from dpca.backends.atomic_files import reached
from dpca.errors import Conflict, Finished, Refused
from dpca.home import STAGING
from dpca.privacy_unit import PrivacyUnit
from dpca_tasks.accounting.events import Event, shown_event
from storage.database.engine import reading, transaction
from storage.ledger import budgets, journal, releases
from storage.ledger.balance import (
    Pace,
    Quote,
    Statement,
    admitted_charge,
    history_of,
    pace_of,
    quote_of,
    read_charged,
    runs_that_fit,
    statement_of,
)
from storage.ledger.budgets import Budget, check_name, check_snapshot_unit, lock_budget, open_budget, read_budget
from storage.ledger.checks import CheckedChanges, Compared, check_changes, compare
from storage.ledger.releases import (
    Grant,
    KeyFolder,
    Release,
    ReleaseFiles,
    check_abandon,
    find_by_run_key,
    find_release,
    read_release,
    standing_grant,
    under_run_key,
)
from storage.ledger.step_answers import LedgerSteps, Reservation, StepStore
from storage.ledger.streams import Streams
from storage.ledger.witness import Witnesses, note_joint_versions, note_release, note_versions

__all__ = ["Budget", "Grant", "Ledger", "Release", "Reservation", "Statement"]


class Ledger:
    """Budgets and releases in a database; keys of releases and noised answers are in folders outside the database.

    `storage.workspace.Workspace` opens a ledger: it finds the database and the folders through ``DPCA_HOME`` and other
    settings, and checks that they belong together.
    """

    def __init__(self, engine: sa.Engine, *, home: Path, keys: KeyFolder, witness: Witnesses, ledger_id: str) -> None:
        self.engine = engine
        self.home = home
        self.id = ledger_id
        self._keys = keys
        self._files = ReleaseFiles(keys, home / STAGING)
        self._witness = witness

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """Run one writing transaction of the ledger, then record the journal's last hash outside the database.

        Raises
        ------
        Refused
            When an older copy of the database was restored while this process was running. Nothing is written then.
        """
        with transaction(self.engine) as connection:
            self._witness.follow(connection)
            yield connection
            current = journal.head(connection)
        reached("record.committed")
        self._witness.advance(current, engine=self.engine)

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Read one consistent snapshot of the ledger.

        Raises
        ------
        Refused
            When an older copy of the database was restored while this process was running.
        """
        with reading(self.engine) as connection:
            self._witness.follow(connection)
            yield connection

    def drawing(self) -> AbstractContextManager[None]:
        """Return a context for drawing the key of a release; if it fails, keys without a database row are erased."""
        return self._files.drawing(self.engine)

    def open_budget(
        self,
        population: str,
        *,
        epsilon: float,
        delta: float,
        relation: str = "add_remove",
        filter: str = "gdp",  # noqa: A002 - the name of this term in `Budget`
        failure_delta: float | None = None,
        unit: str | None = None,
        rows_per_unit: int | None = None,
        allow_large_delta: bool = False,
    ) -> Budget:
        """Open a population's budget, or return the open budget if it has the same terms.

        ``failure_delta`` is the part of delta that is reserved for events known only by (epsilon, delta). If it is 0,
        no such event is admitted after the first Gaussian release. If it is None, it is a tenth of delta; but if a
        budget with the same delta is already open, it is the failure_delta of that budget. ``unit`` is the name of the
        ids of individuals, whose rows are protected together. A dataset may have at most ``rows_per_unit`` rows per
        individual. Without ``unit``, the privacy unit is one row. ``allow_large_delta`` allows a delta of 1 / (number
        of records) or more.

        Raises
        ------
        Invalid
            When a term is outside its allowed range.
        Conflict
            When the budget is open with other terms, or another budget's name differs only by case.
        Refused
            When delta is not below 1 / (number of records), and ``allow_large_delta`` is false.
        """
        terms: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "relation": relation, "filter": filter}
        terms |= {"failure_delta": failure_delta, "allow_large_delta": allow_large_delta}
        terms["unit"] = PrivacyUnit.requested(unit, rows_per_unit)
        with self.transaction() as connection:
            return open_budget(connection, population, **terms)

    @property
    def streams(self) -> Streams:
        """The streams of the ledger: releases that are charged once, and published at every date of a schedule."""
        return Streams(ledger=self, keys=self._keys, witness=self._witness, forget=self._files.forget)

    def budget(self, population: str) -> Budget:
        """Return the terms of a population's budget.

        Raises
        ------
        NotFound
            When the population has no budget.
        """
        with reading(self.engine) as connection:
            return read_budget(connection, population)

    def statement(self, population: str, *, newest: int | None = None, burn_down: bool = False) -> Statement:
        """Return the allowed, spent and remaining budget, with all or only the ``newest`` releases.

        With ``burn_down``, the statement includes the remaining budget after each release.
        """
        with reading(self.engine) as connection:
            return statement_of(connection, population, newest=newest, burn_down=burn_down)

    def history(self, population: str, *, newest: int | None = None) -> list[dict[str, Any]]:
        """Return the spent and remaining budget after each charged release, oldest first.

        ``newest`` limits the list to the newest releases.
        """
        with reading(self.engine) as connection:
            return history_of(connection, population, newest=newest)

    def quote(self, population: str, event: Event, *, epsilon: float, delta: float, void: bool = False) -> Quote:
        """Return the total after one more event, or the reason for its refusal, without charging anything."""
        with reading(self.engine) as connection:
            budget, charged = read_charged(connection, population)
        return quote_of(budget, charged, event, epsilon=epsilon, delta=delta, void=void)

    def pace(self, population: str, *, runs: int, delta: float | None = None) -> Pace:
        """Share the remaining budget among ``runs`` more Gaussian releases, by default at the budget's delta."""
        with reading(self.engine) as connection:
            budget, charged = read_charged(connection, population)
        return pace_of(budget, charged, runs=runs, delta=delta)

    def runs_that_fit(self, population: str, *, epsilon: float, delta: float) -> int:
        """Return how many more Gaussian releases with this (epsilon, delta) would be admitted in sequence."""
        with reading(self.engine) as connection:
            budget, charged = read_charged(connection, population)
        return runs_that_fit(budget, charged, epsilon=epsilon, delta=delta)

    def alerts(self, release_id: str) -> tuple[int, ...]:
        """Return the alert levels (percentages of the budget left) that this release was the first to reach."""
        with reading(self.engine) as connection:
            return budgets.levels_reached(connection, release_id)

    def find(self, run_key: str, *, population: str | None = None) -> Release | None:
        """Return the release with a run key (the name under which it was requested), or None if there is none.

        With ``population``, only releases of this population count. They include a release that was reserved under this
        run key through a remote ledger.
        """
        with reading(self.engine) as connection:
            return find_by_run_key(connection, run_key, population=population)

    def release(self, release_id: str) -> Release:
        """Return the row of the release with this id.

        Raises
        ------
        NotFound
            When the ledger has no such release.
        """
        with reading(self.engine) as connection:
            return read_release(connection, release_id)

    def reserve(
        self,
        population: str,
        *,
        run_key: str,
        fingerprint: str,
        event: Event,
        epsilon: float,
        delta: float,
        snapshot_id: str,
        request: Mapping[str, Any],
        void: bool = False,
    ) -> Grant:
        """Charge a release to a budget, or return the existing release with this run key.

        Parameters
        ----------
        population : str
            The population whose budget is charged.
        run_key : str
            The name of the request. A request with the same run key gets the same release, even if that was reserved
            through a remote ledger.
        fingerprint : str
            Digest of the complete request, which detects another request under the same run key.
        event : mapping
            The DP event of the release, in the form of `dpca_tasks.accounting.events`.
        epsilon, delta : float
            The nominal guarantee of the release. Subsampled parts of the event are charged at this delta.
        snapshot_id, request : str and mapping
            The id of the snapshot and the request, with which the release can be resumed.
        void : bool
            Whether to admit an event without privacy. Such an event exceeds every budget, but is then charged anyway,
            and permanently. Afterwards, the spent epsilon is infinite, nothing remains, and no private release of this
            population is admitted. The journal records this. For all other events, the option has no effect.

        Raises
        ------
        Conflict
            When the run key belongs to another request.
        Refused
            When the snapshot has another privacy unit than the budget. Nothing is charged or written.
        BudgetExhausted
            When the budget does not admit the event. Nothing is charged or written.
        """
        check_name("run key", run_key)
        budget = self.budget(population)
        rules = budget.build_filter()
        # the event is checked and its charge computed before the lock is taken
        rules.charge_after(rules.zero, event, delta=delta)
        with self.drawing(), self.transaction() as connection:
            lock_budget(connection, budget)
            for standing in under_run_key(connection, run_key, population=population):
                return standing_grant(standing, population, fingerprint)
            check_snapshot_unit(connection, budget, snapshot_id)
            charge, total = admitted_charge(connection, budget, event, epsilon=epsilon, delta=delta, void=void)
            key = releases.new_key()
            release_id = releases.release_id_of(key)
            if find_release(connection, release_id) is not None:
                raise Conflict(f"release {release_id} already exists; a key serves only one release: draw another key.")
            self._keys.create(release_id, key)
            reached("reserve.key_written")
            row = {
                **{"id": release_id, "population": population, "run_key": run_key, "fingerprint": fingerprint},
                **{"snapshot_id": snapshot_id, "request": dict(request), "event": event},
                **{"epsilon": epsilon, "delta": delta, "accounting": rules.accounting},
            }
            releases.enter_release(connection, row, charge=charge)
            budgets.note_levels(connection, budget, total, release_id=release_id)
            reached("reserve.row_written")
        reached("reserve.row_committed")
        return Grant(release_id=release_id, state="reserved", is_new=True)

    def begin(self, release_id: str) -> Reservation:
        """Begin a reserved release, which then remains charged, or resume a release that has begun.

        Raises
        ------
        Refused
            When the release was abandoned or closed. `Finished`, a subclass, when the release is committed.
        """
        with self.transaction() as connection:
            row = read_release(connection, release_id, lock=True)
            releases.check_unfinished(row)
            if row.state == "reserved":
                releases.move_release(connection, row, "noising", "release_begun")
                self._witness.note(note_release(connection, release_id))
            else:
                journal.append(connection, "release_resumed", population=row.population, release_id=release_id)
            charged = releases.charged_terms(connection, row)
            reached("begin.row_written")
        reached("begin.row_committed")
        steps = StepStore(self.steps(release_id), self._files.steps_of(release_id), release_id, self._keys)
        return Reservation(release_id=release_id, event=shown_event(row.event), **charged, _steps=steps)

    def steps(self, release_id: str) -> LedgerSteps:
        """Return access to the recorded digests of the answers of a release's steps (queries)."""
        return LedgerSteps(self.transaction, self.reading, release_id)

    def key(self, release_id: str) -> bytes:
        """Return the secret key of a release that has begun, for a separate process that draws the release's noise.

        Raises
        ------
        Refused
            When the release has not begun, or was given up. `Finished`, a subclass, when the release is committed.
        """
        row = self.release(release_id)
        releases.check_unfinished(row)
        if row.state != "noising":
            raise Refused(
                f"release {release_id} is {row.state}; its key is available only after the release has begun: begin it."
            )
        return self._keys.read(release_id)

    def commit[T](self, release_id: str, *, artifact_digest: str, record: Callable[[sa.Connection], T]) -> T:
        """Commit a release: store the digest of its artifact and the rows that ``record`` writes, in one transaction.

        A repeated call with the same artifact only repeats ``record``, which must therefore be idempotent. For example,
        ``record`` may publish the release under a second name. The key and the stored steps of the release are removed
        after the transaction.

        Raises
        ------
        Refused
            When the release has not begun, or was given up. `Finished`, a subclass, when the release was committed with
            another artifact.
        """
        with self.transaction() as connection:
            row = read_release(connection, release_id, lock=True)
            if row.state == "noising":
                releases.move_release(
                    connection, row, "committed", "release_committed", artifact_digest=artifact_digest
                )
            elif row.state != "committed":
                raise Refused(f"release {release_id} is {row.state}; only a release that began can be committed.")
            elif row.artifact_digest != artifact_digest:
                raise Finished(
                    f"release {release_id} was committed as {row.artifact_digest}, not {artifact_digest}; a release "
                    "has one artifact: use the committed artifact."
                )
            result = record(connection)
            self._witness.note(note_versions(connection, release_id))
            reached("commit.row_written")
        reached("commit.row_committed")
        self._files.forget(release_id)
        return result

    def publish_joint[T](self, joint_id: str, *, record: Callable[[sa.Connection], T]) -> T:
        """Run ``record``, which writes the published version of a joint release (of several sites), in one transaction.

        A joint release is charged in the ledgers of its sites, not in this ledger.
        """
        with self.transaction() as connection:
            result = record(connection)
            self._witness.note(note_joint_versions(connection, joint_id))
        return result

    def abandon(self, release_id: str) -> None:
        """Give up a reserved release that has not begun; its charge is removed, and it can never begin.

        Raises
        ------
        Refused
            When the release has begun. Also when its charge limits the charges of later releases; see
            `storage.ledger.releases.check_abandon`.
        """
        self._end(release_id, "reserved", "abandoned", "release_abandoned", check=check_abandon)

    def close(self, release_id: str) -> None:
        """Give up a release that has begun. The release remains charged; its key and stored answers are erased."""
        self._end(release_id, "noising", "closed", "release_closed")

    def verify(self) -> int:
        """Check the journal's hash chain, all rows, and the hashes recorded outside the database.

        Return the number of journal entries.

        Raises
        ------
        Corrupt
            When a journal entry was changed, or a row differs from the journal.
        Refused
            When entries are missing at the end of the journal.
        """
        with reading(self.engine) as connection:
            self._witness.check(connection)
            return compare(connection).entries

    def check_changes(self, before: Compared | None = None) -> CheckedChanges:
        """Check the ledger incrementally after an earlier check, or completely as `verify` does.

        `storage.ledger.checks` states which part of the ledger an incremental check reads.

        Raises
        ------
        Corrupt, Refused
            When the ledger is damaged, or entries are missing; see `verify`.
        """
        with reading(self.engine) as connection:
            self._witness.check(connection)
            return check_changes(connection, before)

    def _end(
        self,
        release_id: str,
        before: str,
        after: str,
        event: str,
        *,
        check: Callable[[sa.Connection, Release], None] = lambda *_: None,
    ) -> None:
        with self.transaction() as connection:
            row = read_release(connection, release_id, lock=True)
            if row.state not in (before, after):
                raise Refused(f"release {release_id} is {row.state}; only a {before} release can become {after}.")
            if row.state == before:
                check(connection, row)
                releases.move_release(connection, row, after, event)
        self._files.forget(release_id)

    def sweep(self) -> None:
        """Remove keys and stored answers that a crash left behind; see `storage.ledger.releases.ReleaseFiles.sweep`."""
        self._files.sweep(self.engine)
