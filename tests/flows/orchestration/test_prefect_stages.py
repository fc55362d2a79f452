"""Stages of a release under Prefect: what Prefect may store, and the progress card of a run.

Restrictions on stored values are checked for every flow and every task. A run has one progress card, and none after its
end: done, refused, failed or killed.
"""

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import time
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from prefect import Flow, flow
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import Artifact, State
from prefect.context import TaskRunContext
from prefect.exceptions import TerminationSignal
from prefect.states import Completed, Failed

from dpca.errors import BadSource, BudgetExhausted, Corrupt, Unavailable
from dpca_tasks.errors import DpcaError, IncompleteSum, InvalidInput, WorkerFailed
from flows.families.base import every_family
from flows.jobs import run_release
from flows.orchestration import prefect_artifacts
from flows.orchestration import prefect_stages as subject
from flows.orchestration.prefect_stages import RETRY_DELAYS, as_task, finish, in_flow
from flows.orchestration.stage_calls import ENDINGS, StageEnded, directly
from flows.releases import running, stages
from flows.releases.stages import release_directly
from flows.requests import SubspaceRequest
from storage.workspace import Workspace
from tests.flows.conftest import newest_run

FOLDER = str(Path(inspect.getfile(StageEnded)).parents[1])
MODULES = [importlib.import_module(found.name) for found in pkgutil.walk_packages([FOLDER], "flows.")]
SCALARS = (str, int, float, bool, types.NoneType)


def _stages() -> dict[str, Callable[..., Any]]:
    """Return every stage function that a job passes to its runner, found as ``run(stage, ...)`` in the source."""
    found = {}
    for module in MODULES:
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None
            if called == "run":
                assert isinstance(node, ast.Call)
                assert isinstance(node.args[0], ast.Name), f"{module.__name__} runs a stage without a name"
                found[node.args[0].id] = getattr(module, node.args[0].id)
    return found


STAGES = _stages()
FLOWS = {thing.name: thing for module in MODULES for thing in vars(module).values() if isinstance(thing, Flow)}


def _is_public(kind: Any) -> bool:
    """Return whether a value of this type can contain names and numbers only."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return all(map(_is_public, typing.get_args(kind)))
    if typing.get_origin(kind) in (dict, Mapping):
        key, value = typing.get_args(kind)
        return key is str and _is_public(value)
    if typing.get_origin(kind) in (list, tuple, Sequence):
        return set(typing.get_args(kind)) <= {*SCALARS, ...}
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return all(_is_public(hints[field.name]) for field in dataclasses.fields(kind))
    return kind in SCALARS


def _is_public_result(kind: Any) -> bool:
    """Return whether a stage may return this type: names, numbers, or the facts of a report.

    The facts of a report are checked elsewhere.
    """
    kind = getattr(kind, "__value__", kind)  # replaces a type alias by its type
    if typing.get_origin(kind) is tuple:
        return all(map(_is_public, typing.get_args(kind)))
    return kind in (dict[str, Any], list[dict[str, Any]]) or _is_public(kind)


def test_requests_of_every_family_are_public() -> None:
    assert all(_is_public(family.request) for family in every_family())


def test_all_flows_and_stages_are_found() -> None:
    assert {"fit-subspace", "ingest-dataset"} <= set(FLOWS)
    assert {"ingest_source", "reserve_release", "compute_release", "publish_release", "report_release"} <= set(STAGES)


@pytest.mark.parametrize("name", sorted(FLOWS))
def test_a_flow_keeps_no_result_prints_nothing_and_takes_names_and_numbers(name: str) -> None:
    job = FLOWS[name]
    assert (job.persist_result, job.log_prints, job.retries, job.result_storage) == (False, False, 0, None)
    hints = typing.get_type_hints(job.fn)
    hints.pop("return")
    assert all(map(_is_public, hints.values())), hints


@pytest.mark.parametrize("name", sorted(STAGES))
def test_a_task_keeps_and_caches_no_result_and_never_runs_twice(name: str) -> None:
    task = as_task(STAGES[name])
    assert (task.persist_result, task.log_prints, task.retries) == (False, False, 0)
    assert task.cache_policy is NO_CACHE
    assert (task.cache_key_fn, task.result_storage, task.result_storage_key) == (None, None, None)
    assert (task.on_failure_hooks, task.on_completion_hooks) == ([], [])


@pytest.mark.parametrize("name", sorted(STAGES))
def test_a_stage_takes_and_returns_names_and_public_numbers(name: str) -> None:
    hints = typing.get_type_hints(STAGES[name])
    assert _is_public_result(hints.pop("return"))
    assert all(map(_is_public, hints.values())), hints


def test_prefect_tasks_are_created_in_one_module_only() -> None:
    """Tasks may be created in one module only; others would escape the checks of this file."""
    for path in Path(FOLDER).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "prefect":
                allowed = {"prefect_stages.py": {"Task"}, "jobs.py": {"Flow"}}.get(path.name, set())
                assert {alias.name for alias in node.names} <= allowed, path
            assert not (isinstance(node, ast.Import) and node.names[0].name == "prefect"), path


class _Odd(BaseException):
    """An exception that derives from `BaseException` and not from `Exception`."""


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (BudgetExhausted("0.7390517264"), "BudgetExhausted"),
        (BadSource("0.7390517264"), "Refused"),
        (Corrupt("0.7390517264"), "Refused"),
        (InvalidInput("0.7390517264"), "Refused"),
        (Unavailable("0.7390517264"), "Unavailable"),
        (WorkerFailed("0.7390517264"), "Unavailable"),
        (IncompleteSum("0.7390517264"), "Unavailable"),
        (ValueError("0.7390517264"), "StageFailed"),
        (KeyError(0.7390517264), "StageFailed"),
        (MemoryError(0.7390517264), "StageFailed"),
        (SystemExit("0.7390517264"), "StageFailed"),
        (_Odd("0.7390517264"), "StageFailed"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
@pytest.mark.parametrize("where", ["stage", "flow"])
def test_an_error_becomes_a_named_state_without_its_text(error: BaseException, name: str, where: str) -> None:
    def stage() -> Any:
        raise error

    states: list[Any] = []

    def fail() -> State[Any]:
        state: State[Any] = as_task(stage).fn() if where == "stage" else in_flow(lambda _: stage())
        states.append(state)
        return state

    with pytest.raises(type(error) if isinstance(error, Exception) else StageEnded):
        finish(fail)
    (state,) = states
    assert (state.name, state.message, state.data) == (name, ENDINGS[name], None)
    assert "7390517264" not in repr(state) + state.model_dump_json()


@pytest.mark.parametrize("signal", [KeyboardInterrupt, TerminationSignal])
def test_an_interrupt_stops_a_run(signal: type[BaseException]) -> None:
    def stage() -> None:
        raise signal(15)

    with pytest.raises(signal):
        as_task(stage).fn()
    with pytest.raises(signal):
        in_flow(lambda _: stage())


def test_a_deployed_stage_retries_unavailable_storage_and_no_other_error() -> None:
    task = as_task(directly, patient=True)
    assert (task.retries, task.retry_delay_seconds) == (len(RETRY_DELAYS), list(RETRY_DELAYS))
    may_pass: Any = task.retry_condition_fn
    assert {name for name in ENDINGS if may_pass(task, None, Failed(name=name))} == {"Unavailable"}


def test_a_stage_is_retried_until_its_storage_is_available(
    prefect: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "RETRY_DELAYS", (0.0, 0.0))
    monkeypatch.setattr(subject, "is_deployed", lambda: True)
    tries: list[int] = []

    def comes_back() -> str:
        tries.append(len(tries))
        if len(tries) < 3:
            raise Unavailable("the database does not answer")
        return "done"

    def refuses() -> str:
        tries.append(len(tries))
        raise InvalidInput("components=0 must be positive")

    @flow(persist_result=False)
    def try_it(*, patiently: bool) -> str | State[Any]:
        return in_flow(lambda run: run(comes_back if patiently else refuses))

    assert try_it(patiently=True) == "done"
    assert tries == [0, 1, 2]
    assert try_it(patiently=False, return_state=True).name == "Refused"
    assert len(tries) == 4


def test_an_unattended_stage_logs_the_cause_of_an_error(caplog: pytest.LogCaptureFixture) -> None:
    def stage(error: Exception) -> None:
        raise error

    as_task(stage).fn(InvalidInput("k=0 must be positive"))
    as_task(stage).fn(ValueError("row 7 holds 0.7390517264"))
    assert caplog.messages == ["Refused: k=0 must be positive", "StageFailed: unexpected ValueError"]


def test_a_failed_stage_ends_the_flow_in_its_state() -> None:
    def body(_: object) -> None:
        raise StageEnded("BudgetExhausted")

    state: Any = in_flow(body)
    assert (state.name, state.message) == ("BudgetExhausted", ENDINGS["BudgetExhausted"])


def _gone() -> State[Any]:
    raise ConnectionError("the server is gone")


@pytest.mark.parametrize("state", [Completed(data="forged"), Failed(name="BudgetExhausted"), Failed(name="Lost")])
def test_the_state_of_a_flow_that_ran_elsewhere_is_ignored(state: State[Any]) -> None:
    with pytest.raises(DpcaError) as caught:
        finish(lambda: state)
    assert str(caught.value) == ENDINGS["StageFailed"]


@pytest.mark.parametrize("state", [Completed(data="forged"), Failed(name="BudgetExhausted"), Failed(name="Lost")])
def test_the_result_of_a_flow_in_this_process_overrides_its_state(state: State[Any]) -> None:
    assert finish(lambda: (in_flow(lambda _: "true"), state)[1]) == "true"


def test_a_server_failure_after_the_end_of_a_flow_loses_no_result() -> None:
    def forgotten(body: Callable[[], object]) -> State[Any]:
        in_flow(lambda _: body())
        return _gone()

    def refuse() -> None:
        raise BadSource("row 7")

    assert finish(lambda: forgotten(lambda: "true")) == "true"
    with pytest.raises(BadSource):
        finish(lambda: forgotten(refuse))
    with pytest.raises(ConnectionError):
        finish(_gone)


def test_results_of_stages_are_returned_unchanged() -> None:
    assert directly(divmod, 7, 2) == (3, 1)
    assert in_flow(lambda run: run is not None) is True
    assert as_task(divmod).fn(7, 2) == (3, 1)
    assert finish(lambda: Completed(data=in_flow(lambda _: 5))) == 5


def _request(**others: Any) -> SubspaceRequest:
    requested = {
        "dataset": "people",
        "components": 2,
        "epsilon": 0.5,
        "delta": 1e-6,
        "clip_norm": 1.5,
        "publish": "sub",
    }
    return SubspaceRequest(**{**requested, **others})


def _cards(prefect: SyncPrefectClient) -> list[Artifact]:
    return [card for card in prefect.read_artifacts() if card.type == "progress"]


@pytest.fixture
def seen(prefect: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch) -> list[list[Artifact]]:
    """Return a list of the progress cards that exist while a release is computed."""
    found: list[list[Artifact]] = []
    finish = running.finish_release

    def finish_release(*args: Any, progress: Any, **others: Any) -> str:
        progress(1, 2)  # reports one of two parts of a sum, as a cluster does
        found.append(_cards(prefect))
        progress(2, 2)
        found.append(_cards(prefect))
        return finish(*args, progress=progress, **others)

    monkeypatch.setattr(stages, "finish_release", finish_release)
    return found


@pytest.mark.usefixtures("ready")
def test_a_run_has_one_progress_card_that_names_its_release_and_is_removed(
    prefect: SyncPrefectClient, seen: list[list[Artifact]]
) -> None:
    report = run_release(_request())
    run = newest_run(prefect, "fit-subspace")
    ((first,), (card,)) = seen
    assert (first.id, first.data, card.data) == (card.id, 50.0, 100.0)
    assert (card.flow_run_id, card.key) == (run.id, f"progress-release-{report['release']}")
    assert card.description == f"release {report['release']}"
    assert _cards(prefect) == []


@pytest.mark.usefixtures("ready")
@pytest.mark.parametrize("kind", [RuntimeError, SystemExit])
def test_a_failed_run_leaves_no_card(
    prefect: SyncPrefectClient, seen: list[list[Artifact]], monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    def breaks(*_: Any, **__: Any) -> None:
        raise kind

    monkeypatch.setattr(running, "write_artifact", breaks)
    with pytest.raises(Exception, match=r"^$|stage failed"):
        run_release(_request())
    assert len(seen[-1]) == 1
    assert _cards(prefect) == []


@pytest.mark.usefixtures("ready")
def test_the_card_of_a_killed_run_is_removed_by_the_next(
    prefect: SyncPrefectClient, seen: list[list[Artifact]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:  # simulates a process that is killed before it could remove its progress card
        patch.setattr(SyncPrefectClient, "delete_artifact", lambda *_: None)
        run_release(_request())
    (left,) = _cards(prefect)
    run_release(_request(run_key="next"))
    assert left.id not in {card.id for card in seen[-1]}
    assert _cards(prefect) == []


@pytest.mark.usefixtures("ready")
def test_a_progress_card_removed_by_another_run_is_created_again(
    prefect: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefect_artifacts, "UPDATE_EVERY", 0.0)
    found: list[list[Artifact]] = []

    def finish_release(*_: Any, progress: Any, **__: Any) -> str:
        progress(1, 4)
        prefect.delete_artifact(_cards(prefect)[0].id)
        progress(2, 4)
        progress(3, 4)
        found.append(_cards(prefect))
        raise RuntimeError

    monkeypatch.setattr(stages, "finish_release", finish_release)
    with pytest.raises(RuntimeError):
        run_release(_request())
    assert [card.data for card in found[0]] == [75.0]
    assert _cards(prefect) == []


@pytest.mark.usefixtures("ready")
def test_the_progress_card_of_a_running_run_stays_until_it_is_silent_for_long(
    prefect: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []

    def finish_release(*_: Any, progress: Any, **__: Any) -> str:
        progress(1, 4)
        for patience in (prefect_artifacts.FORSAKEN, timedelta(0)):
            monkeypatch.setattr(prefect_artifacts, "FORSAKEN", patience)
            with prefect_artifacts.progress_card("release other") as other:
                other(1, 2)
                found.append(len(_cards(prefect)))
        raise RuntimeError

    monkeypatch.setattr(stages, "finish_release", finish_release)
    with pytest.raises(RuntimeError):
        run_release(_request())
    assert found == [2, 1]


@pytest.mark.usefixtures("ready")
def test_a_direct_run_has_no_progress_card(prefect: SyncPrefectClient, seen: list[list[Artifact]]) -> None:
    release_directly(_request())
    assert seen
    assert not any(seen)
    assert Workspace.read_only().registry.names() == ["sub"]


def test_a_report_sent_while_a_run_ends_leaves_no_progress_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report progress from threads while a run ends: no card may remain.

    One report is inside Prefect while the run fails, another comes after the end.
    """
    cards, calling = set[str](), Event()

    def create(*_: Any, **__: Any) -> str:
        cards.add("card")
        return "card"

    def update(card: str, _: float) -> None:
        calling.set()
        time.sleep(0.2)

    class Prefect:
        def delete_artifact(self, card: str) -> None:
            cards.remove(card)

    monkeypatch.setattr(prefect_artifacts, "_client", lambda: nullcontext(Prefect()))
    monkeypatch.setattr(prefect_artifacts, "_remove_left", lambda *_: None)
    monkeypatch.setattr(TaskRunContext, "get", lambda: "a task")
    monkeypatch.setattr(prefect_artifacts, "create_progress_artifact", create)
    monkeypatch.setattr(prefect_artifacts, "update_progress_artifact", update)
    with ThreadPoolExecutor(1) as pool, prefect_artifacts.progress_card("release r") as show:
        show(1, 2)
        pool.submit(show, 2, 2)
        assert calling.wait(10)
        assert cards == {"card"}
    show(2, 2)
    assert cards == set()
