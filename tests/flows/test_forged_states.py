"""Forged states, results, parameters and runs in Prefect's API have no effect on releases.

The attacker has write access to the API. The ledger alone decides what is released and charged; a run's result is
passed inside the process that waits for it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import State
from prefect.exceptions import SignatureMismatchError
from prefect.flow_engine import run_flow
from prefect.results import ResultStore
from prefect.serializers import PickleSerializer
from prefect.settings import PREFECT_LOCAL_STORAGE_PATH
from prefect.states import Cancelled, Completed, Crashed, Failed, Scheduled

from dpca.backends import atomic_files
from dpca.registry.reader import Registry
from flows.jobs import fit_subspace, run_release
from flows.releases.stages import release_directly
from flows.requests import SubspaceRequest
from storage.workspace import Workspace
from tests.flows.conftest import newest_run
from tests.flows.test_fit import REQUEST

WHERE = ("reserve.row_committed", "keep.row_committed", "commit.row_committed", "pointer.row_written")
FORGED: tuple[State[Any], ...] = (Completed(), Failed(name="BudgetExhausted"), Cancelled(), Crashed())


def _few(cases: Sequence[Any]) -> list[Any]:
    """Mark all cases but the last to run only in `make audit`."""
    return [*(pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.audit_only)
              for case in cases[:-1]), cases[-1]]  # fmt: skip


class Planted:
    """An object that creates a marker file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Path]]:
        """Return the call that creates the marker file on unpickling."""
        return Path.touch, (self.mark,)


def forge_result(prefect: SyncPrefectClient, mark: Path) -> None:
    """Forge a result that runs code when it is read, and set the newest run to completed with this result."""
    record = ResultStore(serializer=PickleSerializer()).create_result_record(Planted(mark), key=f"forged-{mark.name}")
    path = Path(str(PREFECT_LOCAL_STORAGE_PATH.value())) / str(record.metadata.storage_key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(record.serialize())
    forged = {"type": "COMPLETED", "name": "Cached", "data": record.metadata.model_dump(mode="json")}
    run = newest_run(prefect, "fit-subspace")
    answer = prefect.request(
        "POST", "/flow_runs/{id}/set_state", path_params={"id": run.id}, json={"state": forged, "force": True}
    )
    assert answer.json()["status"] == "ACCEPT"


@contextmanager
def act_at(patch: pytest.MonkeyPatch, point: str, act: Callable[[], object]) -> Iterator[None]:
    """Call ``act`` once, when a run first reaches a crash point."""
    left = [act]
    patch.setattr(atomic_files, "hook", lambda reached: left.pop()() if reached == point and left else None)
    yield
    assert not left, "the run did not reach the point"


def count(home: Path) -> tuple[int, int, int]:
    """Return the numbers of releases, charges and versions in a home."""
    workspace = Workspace.read_only()
    with workspace.ledger.engine.connect() as connection:
        charged = connection.exec_driver_sql("SELECT count(*) FROM event WHERE name = 'release_reserved'").scalar_one()
    releases = workspace.ledger.statement("people").releases
    return len(releases), charged, sum(len(Registry.open().versions(name)) for name in Registry.open().names())


@pytest.mark.parametrize("point", _few(WHERE))
def test_a_forged_result_is_neither_used_nor_unpickled(
    ready: Path, prefect: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, point: str
) -> None:
    mark = tmp_path / "run-by-the-reader"

    with act_at(monkeypatch, point, lambda: forge_result(prefect, mark)):
        report = run_release(SubspaceRequest(**REQUEST))
    assert newest_run(prefect, "fit-subspace").state_name == "Cached"  # Prefect's server accepts the forged state
    assert not mark.exists()
    assert (report["artifact"], report["digest"]) == ("sub@1", Registry.open().verify("sub@1").digest)
    assert count(ready) == (1, 1, 1)


@pytest.mark.parametrize(("point", "forged"), _few([*product(WHERE, FORGED)]), ids=str)
def test_a_state_forged_during_a_run_changes_nothing(
    ready: Path, prefect: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch, point: str, forged: State[Any]
) -> None:
    def forge() -> None:
        prefect.set_flow_run_state(newest_run(prefect, "fit-subspace").id, forged, force=True)

    with act_at(monkeypatch, point, forge):
        report = run_release(SubspaceRequest(**REQUEST))
    assert report["digest"] == Registry.open().verify("sub@1").digest
    assert run_release(SubspaceRequest(**REQUEST))["reused"]
    assert count(ready) == (1, 1, 1)


@pytest.mark.parametrize("point", _few(WHERE))
def test_a_run_deleted_in_prefect_is_finished_nevertheless(
    ready: Path, prefect: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    with act_at(monkeypatch, point, lambda: prefect.delete_flow_run(newest_run(prefect, "fit-subspace").id)):
        report = run_release(SubspaceRequest(**REQUEST))
    assert report["digest"] == Registry.open().verify("sub@1").digest
    assert count(ready) == (1, 1, 1)


def scheduled(prefect: SyncPrefectClient, **parameters: Any) -> UUID:
    """Create a run with arbitrary parameters, as an attacker does."""
    made = prefect.create_flow_run(fit_subspace, parameters={**REQUEST, **parameters}, state=Scheduled())
    return made.id


def state_of(prefect: SyncPrefectClient, run: UUID) -> str | None:
    """Execute a created run as a worker does; return the name of its final state."""
    try:
        state: Any = run_flow(fit_subspace, flow_run=prefect.read_flow_run(run), return_type="state")
    except SignatureMismatchError:
        return "no such parameter"
    return str(state.name)


def test_a_run_that_is_forced_to_run_repeatedly_is_one_release(ready: Path, prefect: SyncPrefectClient) -> None:
    run = scheduled(prefect)
    for _ in range(3):
        assert state_of(prefect, run) == "Completed"
        prefect.set_flow_run_state(run, Scheduled(), force=True)
    assert count(ready) == (1, 1, 1)


@pytest.mark.parametrize(
    ("parameters", "ending"),
    _few(
        [
            ({"epsilon": 1e6}, "BudgetExhausted"),
            ({"mechanism": "non_private", "epsilon": None, "delta": None}, "Refused"),
            ({"i_know_this_is_not_private": True}, "no such parameter"),
            ({"run_key": "ours", "clip_norm": 2.0}, "Refused"),
            ({"publish": "../sub"}, "Refused"),
        ]
    ),
    ids=str,
)
def test_forged_parameters_release_nothing_that_is_not_charged(
    ready: Path, prefect: SyncPrefectClient, parameters: dict[str, Any], ending: str
) -> None:
    release_directly(SubspaceRequest(**REQUEST, run_key="ours"))
    before = Workspace.read_only().ledger.statement("people").spent
    assert state_of(prefect, scheduled(prefect, **parameters)) == ending
    assert Workspace.read_only().ledger.statement("people").spent == before
    assert count(ready) == (1, 1, 1)


def test_a_forged_request_that_is_released_is_charged(ready: Path, prefect: SyncPrefectClient) -> None:
    release_directly(SubspaceRequest(**REQUEST))
    assert state_of(prefect, scheduled(prefect, epsilon=0.1, publish="theirs")) == "Completed"
    assert count(ready) == (2, 2, 2)
