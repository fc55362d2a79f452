"""A run has one progress card, and none after its end: done, refused, failed or killed."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from threading import Event
from typing import Any

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import Artifact
from prefect.context import TaskRunContext

from flows.fit import run_fit
from flows.orchestration import progress_card
from flows.releases import running, stages
from flows.requests.subspace import SubspaceRequest
from storage.workspace import Workspace
from tests.flows.conftest import newest_run


def _request(**others: Any) -> SubspaceRequest:
    asked = {"dataset": "people", "components": 2, "epsilon": 0.5, "delta": 1e-6, "clip_norm": 1.5, "publish": "sub"}
    return SubspaceRequest(**{**asked, **others})


def _cards(prefect: SyncPrefectClient) -> list[Artifact]:
    return [card for card in prefect.read_artifacts() if card.type == "progress"]


@pytest.fixture
def seen(prefect: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch) -> list[list[Artifact]]:
    """The cards that are there while a release is computed."""
    found: list[list[Artifact]] = []
    finish = running.finish_release

    def finish_release(*args: Any, progress: Any, **others: Any) -> str:
        progress(1, 2)  # as a cluster does
        found.append(_cards(prefect))
        progress(2, 2)
        found.append(_cards(prefect))
        return finish(*args, progress=progress, **others)

    monkeypatch.setattr(stages, "finish_release", finish_release)
    return found


@pytest.mark.usefixtures("ready")
def test_a_run_has_one_card_which_names_its_release_alone_and_goes_with_it(
    prefect: SyncPrefectClient, seen: list[list[Artifact]]
) -> None:
    report = run_fit(_request())
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
        run_fit(_request())
    assert len(seen[-1]) == 1
    assert _cards(prefect) == []


@pytest.mark.usefixtures("ready")
def test_the_card_of_a_killed_run_is_removed_by_the_next(
    prefect: SyncPrefectClient, seen: list[list[Artifact]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:  # as if the process died before it could remove it
        patch.setattr(SyncPrefectClient, "delete_artifact", lambda *_: None)
        run_fit(_request())
    (left,) = _cards(prefect)
    run_fit(_request(run_key="next"))
    assert left.id not in {card.id for card in seen[-1]}
    assert _cards(prefect) == []


@pytest.mark.usefixtures("ready")
def test_a_card_that_another_run_removed_comes_back(
    prefect: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_card, "UPDATE_EVERY", 0.0)
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
        run_fit(_request())
    assert [card.data for card in found[0]] == [75.0]
    assert _cards(prefect) == []


@pytest.mark.usefixtures("ready")
def test_the_card_of_a_run_that_goes_on_is_left_until_it_is_silent_for_long(
    prefect: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []

    def finish_release(*_: Any, progress: Any, **__: Any) -> str:
        progress(1, 4)
        for patience in (progress_card.FORSAKEN, timedelta(0)):
            monkeypatch.setattr(progress_card, "FORSAKEN", patience)
            with progress_card.progress_card("release other") as other:
                other(1, 2)
                found.append(len(_cards(prefect)))
        raise RuntimeError

    monkeypatch.setattr(stages, "finish_release", finish_release)
    with pytest.raises(RuntimeError):
        run_fit(_request())
    assert found == [2, 1]


@pytest.mark.usefixtures("ready")
def test_a_direct_run_shows_none(prefect: SyncPrefectClient, seen: list[list[Artifact]]) -> None:
    run_fit(_request(), direct=True)
    assert seen
    assert not any(seen)
    assert Workspace.read_only().registry.names() == ["sub"]


def test_a_report_that_is_under_way_when_the_run_ends_leaves_no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster reports from threads: one is in a call of Prefect while the run fails, another comes after the end."""
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

    monkeypatch.setattr(progress_card, "_client", lambda: nullcontext(Prefect()))
    monkeypatch.setattr(progress_card, "_remove_left", lambda *_: None)
    monkeypatch.setattr(TaskRunContext, "get", lambda: "a task")
    monkeypatch.setattr(progress_card, "create_progress_artifact", create)
    monkeypatch.setattr(progress_card, "update_progress_artifact", update)
    with ThreadPoolExecutor(1) as pool, progress_card.progress_card("release r") as show:
        show(1, 2)
        pool.submit(show, 2, 2)
        assert calling.wait(10)
        assert cards == {"card"}
    show(2, 2)
    assert cards == set()
