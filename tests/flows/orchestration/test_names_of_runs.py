"""What Prefect names a run by, and shows of it, is of the run's own dataset, population and published name alone."""

import json
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun

from flows.fit import fit_subspace
from tests.flows.conftest import FEATURES, FIT, Command

REQUEST: dict[str, Any] = {
    **{"components": 2, "epsilon": 0.5, "delta": 1e-6},
    **{"clip_norm": 1.5},
}


@pytest.fixture
def homes(ready: Path, dpca: Command, rows_file: Path) -> Path:
    """A home with two populations, each with a dataset, a budget and a published release."""
    words = (
        "--name",
        "rows-two",
        "--population",
        "folk-two",
        "--features",
        FEATURES,
        "--direct",
        "--allow-shared-rows",
    )
    assert dpca("dataset", "ingest", rows_file, *words).status == 0
    assert dpca("budget", "open", "folk-two", "--epsilon", "2", "--delta", "1e-6").status == 0
    fit = [{"people": "rows-two", "sub": "map-two"}.get(word, word) for word in FIT]
    assert dpca(*fit, "--direct", "--yes").status == 0
    assert dpca(*FIT, "--direct", "--yes").status == 0
    return ready


@pytest.mark.usefixtures("homes")
@pytest.mark.parametrize(
    ("own", "others"),
    [
        ({"dataset": "people", "publish": "sub"}, ("rows-two", "folk-two", "map-two")),
        ({"dataset": "rows-two", "publish": "map-two"}, ("people", "sub@", "release-sub")),
    ],
    ids=["people", "folk-two"],
)
def test_no_name_tag_card_or_limit_of_a_run_is_of_another_population(
    prefect: SyncPrefectClient, own: dict[str, str], others: tuple[str, ...]
) -> None:
    limits = [limit.tag for limit in prefect.read_concurrency_limits(limit=200, offset=0)]
    for asked, ends in (
        ({"dry_run": True}, "Admitted"),
        ({"run_key": f"next of {own['dataset']}"}, "Completed"),
        ({"epsilon": 3.0}, "BudgetExhausted"),
        ({"components": 60}, "Refused"),
    ):
        before = {run.id for run in prefect.read_flow_runs()}
        fit_subspace(**{**REQUEST, **own, **asked}, return_state=True)
        (run,) = (found for found in prefect.read_flow_runs() if found.id not in before)
        assert run.state_name == ends
        assert run.tags == []
        shown = _shown(prefect, run)
        assert own["dataset"] in shown
        assert [word for word in others if word in shown] == []
    assert [limit.tag for limit in prefect.read_concurrency_limits(limit=200, offset=0)] == limits


def _shown(prefect: SyncPrefectClient, run: FlowRun) -> str:
    """Return all that Prefect keeps of a run, of its tasks and of its artifacts, as text."""
    of_run = FlowRunFilter(id=FlowRunFilterId(any_=[run.id]))
    artifacts = prefect.read_artifacts(flow_run_filter=of_run)
    found = [run, *prefect.read_task_runs(flow_run_filter=of_run), *artifacts]
    return json.dumps([item.model_dump_json() for item in found])
