"""Workspace of a home (the data of one installation), which opens its ledger, catalog and registry together.

Settings such as ``DPCA_HOME`` determine the parts of a home: database, keys and store. A database is refused before
anything is written if it was restored from a copy, belongs to other keys, or lacks versions that the registry contains.

``Workspace.open()`` creates missing parts, upgrades older parts, refuses parts that do not belong together, and
completes work that a crash interrupted. ``Workspace.read_only()`` makes the same checks and changes nothing. It writes
no file and takes no lock, so it works on a read-only home and on a full disk. Each stage of a release opens one of the
two, once.

Examples
--------
::

    workspace = Workspace.open()
    workspace.ledger.open_budget("patients", epsilon=4.0, delta=1e-6)
    workspace.registry.names()
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import sqlalchemy as sa

from dpca.artifacts.files import read_artifact
from dpca.backends.base import Place
from dpca.errors import Refused
from dpca.home import database_url, key_folder, readable_home, signature_days, state_folder, store, writable_home
from dpca.registry.pointers import FOLDER, check_name
from dpca.registry.reader import Registry
from dpca.registry.roots import SIGNATURES
from dpca.registry.roots import SIGNED_FOLDER as SIGNED_POINTERS
from storage.database import tables
from storage.database.engine import (
    connect_as_is,
    connect_in_memory,
    connect_to_read,
    reading,
    schema_transaction,
    transaction,
    upgrade,
)
from storage.ledger import journal
from storage.ledger.ledger import Ledger
from storage.ledger.releases import KeyFolder, remove_orphans
from storage.ledger.witness import Witnesses, note_everything
from storage.registry import publishing
from storage.registry.agreement import AliasMove, alias_history, compare_artifacts, compare_names, stale_names
from storage.registry.restored import Recharged, accept
from storage.registry.signing import Signer

if TYPE_CHECKING:
    from storage.datasets.catalog import Catalog
    from storage.ledger.balance import Statement


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedHome:
    """The parts of an opened home, after checking that they belong together.

    Attributes
    ----------
    ledger : Ledger
    home : Path
    store : Place, the store of datasets and artifacts
    stale : collection of str, published names whose pointer files must be rewritten
    recharged : tuple of Recharged, the releases that were charged again if a restored ledger was just accepted
    """

    ledger: Ledger
    home: Path
    store: Place
    stale: Collection[str] = ()
    recharged: tuple[Recharged, ...] = ()


def open_home(
    *, accept_restored: str | None, charge_to: str | None, another_ledger: bool, even_locked: bool
) -> OpenedHome:
    """Open the home for writing, and create or upgrade it if necessary; the parameters are as for `Workspace.open`."""
    folder, keys, place = writable_home(), key_folder(), store()
    recharged: tuple[Recharged, ...] = ()
    engine = connect_as_is(database_url())
    with schema_transaction(engine) as connection:
        upgrade(connection)
        ledger_id = journal.identify(connection)
    witness = Witnesses(local=keys, separate=state_folder() / ledger_id)
    if accept_restored is not None:
        with transaction(engine) as connection:
            witness.check(connection, restored=True)
            terms: dict[str, Any] = {"charge_to": charge_to, "another_ledger": another_ledger}
            recharged = accept(connection, place, witness.noted(), reason=accept_restored, **terms)
            current = journal.head(connection)
            # `accept` marked reserved releases as begun, and begun releases need a note in the witness
            witness.note(note_everything(connection))
    else:
        with reading(engine) as connection:
            current = witness.check(connection)
            if witness.is_new:
                witness.note(note_everything(connection))
    stale = set() if even_locked else stale_names(engine, place)
    witness.advance(current, engine=engine, back=accept_restored is not None)
    ledger = Ledger(engine, home=folder, keys=KeyFolder(keys), witness=witness, ledger_id=ledger_id)
    return OpenedHome(ledger=ledger, home=folder, store=place, stale=stale, recharged=recharged)


def read_home() -> OpenedHome:
    """Open the home for reading; if there is no home, return an empty one that exists only in memory."""
    folder, place = readable_home(), store()
    keys, engine = key_folder(), connect_to_read(database_url())
    found = None if engine is None else _found(engine, home=folder, keys=keys, place=place)
    if found is None:
        engine = connect_in_memory()
        with schema_transaction(engine) as connection:
            journal.identify(connection)
        found = _found(engine, home=folder, keys=keys, place=place)
    assert found is not None
    return found


def _found(engine: sa.Engine, *, home: Path, keys: Path, place: Place) -> OpenedHome | None:
    """Open the home whose ledger is in a database, without changing anything; return None if there is no ledger."""
    with reading(engine) as connection:
        ledger_id = journal.find_id(connection)
        if ledger_id is None:
            return None
        witness = Witnesses(local=keys, separate=state_folder() / ledger_id)
        witness.check(connection)
    compare_names(engine, place)
    ledger = Ledger(engine, home=home, keys=KeyFolder(keys), witness=witness, ledger_id=ledger_id)
    return OpenedHome(ledger=ledger, home=home, store=place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """The ledger, datasets and registry of a home, opened together.

    Attributes
    ----------
    ledger : Ledger
    home : Path
    store : Place, the store of datasets and artifacts
    recharged : tuple of Recharged, the releases that were charged again if a restored ledger was just accepted

    See Also
    --------
    dpca.Registry : the published artifacts alone, without a database.
    dpca.open_budget : open a population's budget in one call.

    Examples
    --------
    >>> import dpca
    >>> workspace = dpca.Workspace.open()
    >>> _ = workspace.ledger.open_budget("patients", epsilon=4.0, delta=1e-6)
    >>> workspace.promote("news", version=1, alias="stable")
    >>> str(workspace.registry.resolve("news@stable"))
    'news@1'
    """

    ledger: Ledger
    home: Path
    store: Place
    recharged: tuple[Recharged, ...] = ()

    @property
    def catalog(self) -> "Catalog":
        """The catalog of datasets."""
        from storage.datasets.catalog import Catalog

        return Catalog(self.ledger.engine, self.home, self.store, ledger=self.ledger.id)

    def budget(self, population: str, *, dataset: str | None = None, publish: str | None = None) -> "PopulationBudget":
        """Return a population's budget as an object that estimators such as ``flows.estimators.PrivatePCA`` charge.

        Parameters
        ----------
        population : str
        dataset : str, optional
            The name of the dataset in which rows from memory are stored; by default ``rows.POPULATION``.
        publish : str, optional
            The name under which releases of these rows are published; by default one per family, such as
            ``subspace.patients``.

        Raises
        ------
        NotFound
            When the population has no budget.
        Invalid
            When a name is not allowed.
        """
        self.ledger.budget(population)
        if publish is not None:
            check_name(publish)
        return PopulationBudget(
            population,
            dataset=f"rows.{population}"[:100] if dataset is None else dataset,
            publish=publish,
            ledger_id=self.ledger.id,
            workspace=self,
        )

    @property
    def registry(self) -> Registry:
        """The registry of published artifacts."""
        return Registry(self.store)

    def alias_history(self, name: str, *, newest: int | None = None) -> tuple[AliasMove, ...]:
        """Return the moves of a published name's aliases, oldest first; ``newest`` limits the result to the newest.

        Raises
        ------
        NotFound
            When nothing was published under the name.
        """
        self.registry.resolve(check_name(name))
        with reading(self.ledger.engine) as connection:
            return alias_history(connection, name, newest=newest)

    @classmethod
    def open(
        cls,
        *,
        accept_restored: str | None = None,
        charge_to: str | None = None,
        another_ledger: bool = False,
        even_locked: bool = False,
    ) -> Self:
        """Open the workspace of this home, create the home if necessary, and complete work that a crash interrupted.

        Parameters
        ----------
        accept_restored : str, optional
            An operator's reason to continue with a database that was restored from a copy; see
            `storage.registry.restored.accept`.
        charge_to, another_ledger : str and bool
            Only with ``accept_restored``, for releases in the registry whose population is unknown: the population to
            charge for these releases, or whether another ledger published them.
        even_locked : bool
            Whether to open the home even if the registry contains names that this ledger did not publish; for
            operations that charge nothing.

        Raises
        ------
        Unavailable
            When the home folder or the database cannot be used.
        Refused
            When the database was restored from a copy, belongs to other keys, or lacks names that the registry
            contains.

        Notes
        -----
        Pointer files that changed since they were last written are found by one listing of plain and one of signed
        pointers. Only the changed files are read and rewritten.
        """
        found = open_home(
            accept_restored=accept_restored,
            charge_to=charge_to,
            another_ledger=another_ledger,
            even_locked=even_locked,
        )
        workspace = cls(ledger=found.ledger, home=found.home, store=found.store, recharged=found.recharged)
        if found.stale:
            workspace._rebuild(found.stale)
        if not even_locked:
            found.ledger.sweep()
            for kind in (FOLDER, SIGNED_POINTERS):
                remove_orphans(found.home / kind)
        return workspace

    @classmethod
    def read_only(cls) -> Self:
        """Open the workspace of this home for reading.

        If there is no home yet, the workspace is empty and exists only in memory. Work that `open` would complete after
        a crash, such as writing a pointer file, is not done.

        Raises
        ------
        Unavailable
            When the database cannot be read.
        Refused
            When the database was restored from a copy, belongs to other keys, lacks names that the registry contains,
            or would need an upgrade. Also when other users have access to the home.
        """
        found = read_home()
        return cls(ledger=found.ledger, home=found.home, store=found.store)

    def publish(
        self,
        release_id: str,
        *,
        name: str,
        artifact_digest: str,
        made: str | None = None,
        among: Collection[str] | None = None,
    ) -> int:
        """Commit a release with its artifact, publish it as the next version of a name, and return the version.

        The release's state, the version and the journal entries are written in one transaction. A repeated call changes
        nothing. Publishing the same release under a second name costs no further budget.

        Parameters
        ----------
        release_id : str
        name : str
        artifact_digest : str
            The digest of the artifact with which the release is committed.
        made : str, optional
            The digest of another artifact to publish instead. It must be derived from the release's artifact without
            reading a row.
        among : collection of str, optional
            If given, every earlier version of the name must come from one of these populations.

        Raises
        ------
        Finished
            When the release was committed with another artifact.
        Refused
            When a population that is not in ``among`` has published under the name. Nothing is committed then.
        Conflict
            When the release is already published under the name with another digest, or another ledger publishes the
            name.
        """
        digest = artifact_digest if made is None else made

        def record(connection: sa.Connection) -> int:
            return publishing.add_version(connection, name=name, digest=digest, release_id=release_id, among=among)

        version = self.ledger.commit(release_id, artifact_digest=artifact_digest, record=record)
        self._rebuild([name])
        return version

    def withhold(self, release_id: str, *, artifact_digest: str) -> None:
        """Commit a release with its artifact, without publishing it under a name.

        Raises
        ------
        Finished
            When the release was committed with another artifact.
        """
        self.ledger.commit(release_id, artifact_digest=artifact_digest, record=lambda connection: None)

    def publish_joint(
        self, joint_id: str, *, name: str, artifact_digest: str, sites: Sequence[Mapping[str, Any]]
    ) -> int:
        """Publish a joint release of several sites as the next version of a name, and return the version.

        A joint release is charged in the ledger of each site, not in this ledger.

        Parameters
        ----------
        joint_id : str
        name : str
        artifact_digest : str
        sites : sequence of mapping
            The public facts about the release of each site, as the artifact's manifest states them.

        Raises
        ------
        Conflict
            When the joint release was published with another artifact, or another ledger publishes the name.
        """

        def record(connection: sa.Connection) -> int:
            return publishing.add_version(
                connection, name=name, digest=artifact_digest, release_id=joint_id, sites=sites
            )

        version = self.ledger.publish_joint(joint_id, record=record)
        self._rebuild([name])
        return version

    def digest_of_joint(self, joint_id: str) -> str | None:
        """Return the digest of the published artifact of a joint release of several sites; None if unpublished."""
        with reading(self.ledger.engine) as connection:
            return publishing.digest_of_joint(connection, joint_id)

    def promote(self, name: str, *, version: int, alias: str, why: Mapping[str, Any] | None = None) -> None:
        """Point an alias of a name at a version; the journal records the move with the public facts ``why``.

        Raises
        ------
        Invalid, NotFound
            When the alias is not allowed, or the name has no such version.
        """
        with self.ledger.transaction() as connection:
            publishing.promote(connection, name=name, version=version, alias=alias, why=why)
        self._rebuild([name])

    def advance(
        self, name: str, *, version: int, alias: str, before: int | None, why: Mapping[str, Any] | None = None
    ) -> bool:
        """Move an alias to a version to which it has never pointed, and return whether it moved.

        See `storage.registry.publishing.advance` for the cases in which the alias is not moved.
        """
        with self.ledger.transaction() as connection:
            moved = publishing.advance(connection, name=name, version=version, alias=alias, before=before, why=why)
        self._rebuild([name])
        return moved

    def rebuild_pointers(self) -> None:
        """Check the pointer file of every name, and rewrite the files that disagree with the database.

        Temporary files next to the signatures of artifacts are removed here, and not at each opening, because that
        folder has one file per artifact.
        """
        self._rebuild(None)
        remove_orphans(self.home / SIGNATURES)

    def resign(self, *, above: int = 0) -> int:
        """Sign every pointer and artifact again, after checking every byte; return the number of versions.

        Parameters
        ----------
        above : int
            The new number of each signed pointer is higher than this number and than the pointer's current number. It
            is needed if both the files and the database were lost, because consumers refuse a pointer whose number
            is lower than the number of an earlier pointer.

        Raises
        ------
        Corrupt
            When an artifact has changed since its publication, or states another release than the ledger.
        """
        with self.ledger.reading() as connection:
            count = compare_artifacts(connection, self.store)
            digests = set(connection.execute(sa.select(tables.published.c.digest)).scalars())
        for digest in sorted(digests):
            read_artifact(self.store, digest)
        self._rebuild(None, above=above)
        return count

    def _rebuild(self, names: Collection[str] | None, *, above: int | None = None) -> None:
        with self.ledger.transaction() as connection:
            signer = Signer(keys=key_folder(), days=signature_days())
            publishing.rebuild_pointers(connection, self.store, names, signer=signer, above=above)


class PopulationBudget:
    """The budget of a population, which estimators charge for releases of rows in memory.

    Copying returns the same object. An unpickled budget opens the workspace of the current process when it is first
    used, and raises an error if that workspace has another ledger.

    Attributes
    ----------
    population : str, the name of the population
    dataset : str, the name of the dataset in which the rows are stored
    """

    def __init__(
        self, population: str, *, dataset: str, publish: str | None, ledger_id: str, workspace: Workspace | None = None
    ) -> None:
        self.population, self.dataset = population, dataset
        self._publish, self._ledger_id, self._workspace = publish, ledger_id, workspace

    def __repr__(self) -> str:
        """Return text with the population of the budget."""
        return f"PopulationBudget({self.population!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the same object, because a ledger is not copied."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the budget by names only, without a connection, key or path."""
        kind, publish = type(self), self._publish
        return partial(kind, self.population, dataset=self.dataset, publish=publish, ledger_id=self._ledger_id), ()

    @property
    def workspace(self) -> Workspace:
        """The workspace that contains the budget's ledger.

        Raises
        ------
        Refused
            When the workspace of this process has another ledger.
        """
        if self._workspace is None:
            opened = Workspace.open()
            if opened.ledger.id != self._ledger_id:
                raise Refused(
                    f"{self!r} belongs to another ledger than DPCA_HOME={opened.home}; set DPCA_HOME to its home, or "
                    "open the budget again."
                )
            self._workspace = opened
        return self._workspace

    def published_as(self, family: str) -> str:
        """Return the name under which releases of a family, such as ``subspace``, are published."""
        return f"{family}.{self.population.lower()}"[:100] if self._publish is None else self._publish

    def statement(self) -> "Statement":
        """Return the allowed, spent and remaining budget."""
        return self.workspace.ledger.statement(self.population)
