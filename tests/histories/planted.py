"""Planted faults of the code that plays a history; specific checks must find each of them.

Each fault is a mistake that the protocol was designed to prevent, and replaces one or more functions of the product.
None of them exists in the product.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from dpca.home import store
from storage.ledger import witness
from storage.ledger.ledger import Ledger
from storage.ledger.releases import remove_orphans
from storage.ledger.witness import Witness
from storage.registry import agreement, publishing
from tests.histories.playing import Plant
from tests.histories.violation import Check, Violation


@contextmanager
def clock() -> Iterator[None]:
    """Plant a fault: a release in progress is abandoned when its key is an hour old by some process's clock."""
    original = Ledger.sweep

    def sweep(ledger: Ledger) -> None:
        original(ledger)
        remove_orphans(ledger._keys.folder, among=ledger._keys.release_ids())

    with patch.object(Ledger, "sweep", sweep):
        yield


@contextmanager
def at_once() -> Iterator[None]:
    """Plant a fault: the release of a run key is looked up before the lock is taken.

    So two rows of the table may be for one run key.
    """
    original = Ledger.reserve

    def reserve(ledger: Ledger, population: str, *, run_key: str, **terms: Any) -> Any:
        if ledger.find(run_key) is not None:
            return original(ledger, population, run_key=run_key, **terms)
        ledger.budget(population)
        # the table's constraint would refuse an equal run key, so the second row gets another one
        entered_meanwhile = ledger.find(run_key) is not None
        return original(ledger, population, run_key=run_key + " again" * entered_meanwhile, **terms)

    with patch.object(Ledger, "reserve", reserve):
        yield


@contextmanager
def restore() -> Iterator[None]:
    """Plant a fault: a restored database is trusted without comparison with witnesses and registry."""
    with (
        patch.object(Witness, "check", lambda *_args, **_named: None),
        patch.object(witness, "_require", lambda *_: None),
        patch.object(agreement, "_refuse_unknown", lambda *_: None),
        patch.object(publishing, "_require_all_shown", lambda *_: None),
    ):
        yield


@contextmanager
def key() -> Iterator[None]:
    """Plant a fault: the key of a release is erased before the release is committed."""
    original = Ledger.commit

    def commit(ledger: Ledger, release_id: str, **terms: Any) -> Any:
        ledger._files.forget(release_id)
        return original(ledger, release_id, **terms)

    with patch.object(Ledger, "commit", commit):
        yield


@contextmanager
def pointer() -> Iterator[None]:
    """Plant a fault: the pointer of a version is written before the version is committed."""
    original = publishing.add_version

    def add_version(connection: Any, *, name: str, **terms: Any) -> int:
        version = original(connection, name=name, **terms)
        publishing.rebuild_pointers(connection, store(), [name])
        return version

    with patch.object(publishing, "add_version", add_version):
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A planted fault, and the names of the checks that must find it; violations of other checks do not count."""

    plant: Plant
    finders: frozenset[Check]

    def found_in(self, violations: Iterable[Violation]) -> list[Violation]:
        """Return the violations reported by the checks that must find the fault."""
        return [violation for violation in violations if violation.check in self.finders]


PLANTS: Mapping[str, Planted] = {
    "clock": Planted(plant=clock, finders=frozenset({"keys are kept"})),
    "at once": Planted(plant=at_once, finders=frozenset({"charged once"})),
    "restore": Planted(plant=restore, finders=frozenset({"noise is charged"})),
    "key": Planted(plant=key, finders=frozenset({"keys are kept"})),
    "pointer": Planted(plant=pointer, finders=frozenset({"recorded before shown"})),
}
