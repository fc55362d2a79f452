"""The demo, and the search for settings of completion.

The demo runs the shipped data through the real flows twice and is charged once. The search uses generated ratings only,
ranks settings by their error, and refuses private rows with a statement of what the runs would cost.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from prefect.client.orchestration import SyncPrefectClient

from dpca.home import home as real_home
from dpca.registry.reader import Registry
from dpca_tasks.accounting.calibration import gaussian_epsilon, gaussian_noise_multiplier
from flows.demo import own_home
from flows.tune import GRIDS, Search, search
from storage.datasets.catalog import Catalog
from storage.workspace import Workspace
from tests.flows.conftest import Command, newest_run


def test_the_demo_releases_publishes_and_draws_and_a_second_run_is_free(
    home: Path, dpca: Command, prefect: SyncPrefectClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "the demo's own"
    monkeypatch.setenv("DPCA_STORE_URL", "s3://a-real-bucket/that-must-not-be-touched")
    monkeypatch.setenv("DPCA_KEY_FOLDER", str(tmp_path / "real keys"))
    first = dpca("demo", "--home", own, "--json")
    assert first.status == 0
    report = json.loads(first.out)
    assert (report["artifact"], report["alias"], report["reused"]) == ("a9a-subspace@1", "champion", False)
    assert (report["epsilon"], report["delta"]) == (1.0, 1e-6)
    assert report["spent"] == pytest.approx(1.0, rel=1e-6)
    assert 0 < report["remaining"] < 4
    assert Path(report["plot"]).read_bytes().startswith(b"\x89PNG")
    assert "ingested a9a: 32,561 records x 123 features" in first.err
    assert "░█" in first.err
    assert "● marks the 10" in first.err
    assert "10 of 10 components are above the noise" in first.err
    assert newest_run(prefect, "fit-subspace").state_name == "Completed"

    again = dpca("demo", "--home", own, "--json")
    assert again.status == 0
    repeated = json.loads(again.out)
    assert (repeated["release"], repeated["reused"]) == (report["release"], True)
    assert (repeated["spent"], repeated["remaining"]) == (report["spent"], report["remaining"])
    assert "its snapshot is reused" in again.err
    assert "nothing was spent" in again.err

    assert report["home"] == str(own)
    assert not home.exists()
    assert not (tmp_path / "real keys").exists()
    for name in ("DPCA_STORE_URL", "DPCA_KEY_FOLDER"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("DPCA_HOME", str(own))
    _check_utility()


def test_the_home_of_the_demo_is_not_that_of_the_user(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with own_home(None) as folder:
        assert os.environ["DPCA_HOME"] == str(folder)
    assert folder.name == "dpca-demo"
    assert os.environ["DPCA_HOME"] == str(home)
    monkeypatch.delenv("DPCA_HOME")
    with own_home(None) as folder:
        assert real_home() == folder
    assert "DPCA_HOME" not in os.environ
    assert real_home() not in (folder, *folder.parents)


@pytest.mark.parametrize("below", [".", "home"])
def test_a_home_of_the_demo_that_cannot_be_written_is_named(dpca: Command, tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("in the way")
    chosen = tmp_path / "file" / below
    shown = dpca("demo", "--home", chosen, "--json").complaint(1)
    assert shown == f"dpca: {chosen} is not a writable folder; name one for the demo with --home"


def _check_utility() -> None:
    """Check that the released subspace captures nearly the variance of the best one: 0.9992 of it on average."""
    ledger = Workspace.open().ledger
    catalog = Catalog(ledger.engine, ledger.home)
    dataset = catalog.open(catalog.current("a9a"))
    moment = np.zeros((dataset.n_features, dataset.n_features))
    for number in range(dataset.n_blocks):
        block = dataset.read(number)
        rows = np.zeros((block.row_ptr.size - 1, dataset.n_features))
        rows[np.repeat(np.arange(len(rows)), np.diff(block.row_ptr)), block.indices] = block.values
        moment += rows.T @ rows
    components = Registry.open().load("a9a-subspace@champion").components
    best = np.linalg.eigvalsh(moment)[-len(components) :].sum()
    assert np.einsum("ki,ij,kj->", components, moment, components) / best > 0.995


SIZE = ("--users", 300, "--items", 60, "--rank", 2, "--ratings-per-user", 20, "--epsilon", 5, "--delta", "1e-4")
TUNE = ("completion", "tune", *SIZE)


def test_settings_are_ranked_by_their_error_on_generated_ratings(dpca: Command) -> None:
    words = (*TUNE, "--mechanism", "one_shot", "--try", "user_ridge=0.1,30", "--try", "scaling=normalise,clip")
    rows = json.loads(dpca(*words, "--json").out)
    assert len(rows) == 4
    assert [row["rmse"] for row in rows] == sorted(row["rmse"] for row in rows)
    # with so few users, the setting with strong shrinkage has the smallest error
    assert rows[0]["settings"].startswith("user_ridge=30")
    assert rows == json.loads(dpca(*words, "--json").out)


@pytest.mark.parametrize("mechanism", sorted(GRIDS))
def test_every_mechanism_accepts_its_search_grid(mechanism: str) -> None:
    requested = Search(
        task="low-rank",
        users=120,
        items=40,
        rank=2,
        ratings_per_user=15,
        epsilon=5.0,
        delta=1e-4,
        mechanism=mechanism,
        tried={name: values[:1] for name, values in GRIDS[mechanism].items()},
    )
    (row,) = search(requested)
    assert row["rmse"] > 0.0
    assert row["settings"] == " ".join(f"{name}={values[0]}" for name, values in GRIDS[mechanism].items())


def test_tuning_on_private_rows_is_refused_with_the_true_cost(dpca: Command) -> None:
    """Tune on private rows: refused, with the cost of twelve Gaussian releases, whose squared losses add up."""
    words = ("--try", "user_ridge=1,2,3", "--draws", 4)
    complaint = dpca("completion", "tune", "films", *SIZE, *words).complaint(1)
    each = gaussian_noise_multiplier(epsilon=5.0, delta=1e-4)
    together = gaussian_epsilon(noise_multiplier=each / 12**0.5, delta=1e-4)
    assert f"12 runs at epsilon 5 are 12 releases and cost epsilon {together:.3g} in total" in complaint
    assert together > 20


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (("--task", "films"), "task='films' is unknown"),
        (("--mechanism", "als"), "mechanism='als' is unknown"),
        (("--try", "speed=1"), "has no setting 'speed'"),
        (("--try", "user_ridge"), "write --try KEY=V1,V2"),
        (("--try", "user_ridge=1,2", "--draws", 150), "300 runs exceed the limit of 200"),
    ],
)
def test_an_impossible_search_is_refused_in_one_line(dpca: Command, words: tuple[object, ...], rule: str) -> None:
    assert rule in dpca(*TUNE, *words).complaint(1)
