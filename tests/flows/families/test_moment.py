"""The moment family through the command: a release, and everything that is derived from it at no charge."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpca.artifacts.derived import Correlations, DerivedModel
from dpca.artifacts.moment import AS_WEIGHTED, PrivateMoment
from dpca.registry.reader import Registry
from flows.published import moment_of
from flows.web.page_facts import version_facts
from flows.web.pages import Site
from storage.workspace import Workspace
from tests.flows.conftest import Command

ROWS = 4000
SCHEMA = """columns:
- {name: age, kind: numeric, range: [0, 100]}
- {name: job, kind: categorical, values: [a, b, c], others: refuse}
- {name: income, kind: numeric, range: [0, 200]}
"""
TERMS = ("--epsilon", "30", "--delta", "1e-6", "--clip-norm", "1.8", "--direct", "--yes", "--json")


def people() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ages, jobs and incomes, which depend on both."""
    rng = np.random.default_rng(2)
    age, job = rng.integers(20, 80, ROWS), rng.choice(3, ROWS, p=[0.5, 0.3, 0.2])
    return age, job, 20 + 0.8 * age + 30 * job + rng.normal(0, 10, ROWS)


@pytest.fixture
def ready(dpca: Command, tmp_path: Path) -> Path:
    """Ingest people by a schema, open their budget, and release their moment as ``people-moment``."""
    table, schema = tmp_path / "people.csv", tmp_path / "schema.yaml"
    cells = (f"{age},{'abc'[job]},{income:.2f}" for age, job, income in zip(*people(), strict=True))
    table.write_text("\n".join(["age,job,income", *cells]))
    schema.write_text(SCHEMA)
    words = ("--name", "people", "--table-schema", schema, "--records-at-most", ROWS, "--direct")
    assert dpca("dataset", "ingest", table, *words).status == 0
    assert dpca("budget", "open", "people", "--epsilon", "99", "--delta", "1e-5").status == 0
    assert dpca("moment", "fit", "people", "--publish", "people-moment", *TERMS).status == 0
    return tmp_path


def facts(dpca: Command, *words: Any) -> dict[str, Any]:
    """Run a command that must succeed, and return its facts."""
    ending = dpca(*words, "--json")
    assert ending.status == 0, ending
    found: dict[str, Any] = json.loads(ending.out)
    return found


def test_a_moment_and_its_models_cost_one_release(ready: Path, dpca: Command) -> None:
    before = Workspace.read_only().ledger.statement("people").spent
    ridge = facts(dpca, "derive", "ridge", "people-moment", "--target", "income", "--plot", ready / "ridge.svg")
    job = facts(dpca, "derive", "ridge", "people-moment", "--target", "job", "--publish", "jobs")
    lda = facts(dpca, "derive", "lda", "people-moment", "--label", "job")
    pca = facts(
        *(dpca, "derive", "pca", "people-moment", "--components", "2", "--whiten", "--scale", "famd"),
        *("--plot", ready / "pca.png"),
    )
    correlation = facts(dpca, "derive", "correlation", "people-moment", "--plot", ready / "map.svg")
    assert Workspace.read_only().ledger.statement("people").spent == before
    assert len(list(Workspace.read_only().ledger.history("people"))) == 1
    assert {found["artifact"] for found in (ridge, job, lda, pca, correlation)} == {
        *("people-moment.ridge@1", "jobs@1", "people-moment.lda@1", "people-moment.pca@1"),
        "people-moment.correlation@1",
    }
    registry = Registry.open()
    parent = registry.resolve("people-moment").digest
    for name, kind in (("people-moment.ridge", DerivedModel), ("people-moment.correlation", Correlations)):
        assert registry.load(name, kind).manifest["parent"] == parent
    assert ridge["r_squared"][0] > 0.7
    assert ridge["rows"][0]["low"] < ridge["rows"][0]["coefficient"] < ridge["rows"][0]["high"]
    assert correlation["significant_pairs"] >= 5
    assert all((ready / name).stat().st_size > 2000 for name in ("ridge.svg", "pca.png", "map.svg"))
    again = facts(dpca, "derive", "lda", "people-moment", "--label", "job")
    assert (again["artifact"], again["reused"]) == ("people-moment.lda@1", True)
    assert dpca("derive", "correlation", "people-moment").out.count("\n") > 10
    assert dpca("registry", "verify", "people-moment.ridge").status == 0


def test_the_release_is_the_moment_of_the_encoded_rows(ready: Path) -> None:
    age, job, income = people()
    encoded = np.column_stack([age / 100.0, np.eye(3)[job], np.clip(income, 0, 200) / 200.0])
    found = Registry.open().load("people-moment", PrivateMoment)
    mean, covariance = found.mean(), found.covariance()
    assert (np.abs(mean.values - encoded.mean(axis=0)) < 5 * mean.errors + 1e-4).all()  # 1e-4: the grid
    assert (np.abs(covariance.values - np.cov(encoded.T, bias=True)) < 5 * covariance.errors + 1e-4).all()
    assert found.manifest["plan"]["center"] == "private"


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_sampled_rows_are_a_table_of_the_schema(ready: Path, dpca: Command, suffix: str) -> None:
    path = ready / f"rows.{suffix}"
    found = facts(dpca, "derive", "sample", "people-moment", "--rows", 3000, "--output", path, "--seed", 4)
    assert found["mean_rms"] < 0.05
    assert found["parent"] == Registry.open().resolve("people-moment").digest
    assert found["correlation_rms"] < 0.25  # categories and clipping change correlations
    words = ("--table-schema", ready / "schema.yaml", "--records-at-most", "3000", "--direct")
    assert dpca("dataset", "ingest", path, "--name", "made", *words).status == 0
    assert "must be .csv or .parquet" in dpca(
        "derive", "sample", "people-moment", "--rows", 3, "--output", ready / "rows.txt"
    ).complaint(1)
    assert not (ready / "rows.txt").exists()


def test_a_subspace_gives_the_same_models_as_a_moment_and_rounds_say_how_they_weigh(ready: Path, dpca: Command) -> None:
    words = ("subspace", "fit", "people", "--components", "2", "--center", "private", *TERMS)
    assert dpca(*words, "--rounds", 1, "--publish", "one").status == 0
    assert dpca(*words, "--rounds", 3, "--publish", "three").status == 0
    registry = Registry.open()
    exact = np.corrcoef(np.column_stack([people()[0], np.eye(3)[people()[1]], people()[2]]).T)
    for name in ("one", "three"):
        found = moment_of(name, registry).correlation()
        assert np.abs(found.values - exact).max() < 6 * found.errors.max() + 0.02
    assert facts(dpca, "derive", "ridge", "one", "--target", "income")["r_squared"][0] > 0.7
    weighted = facts(dpca, "derive", "correlation", "three")
    assert AS_WEIGHTED in registry.load(weighted["artifact"]).manifest["warnings"]


def test_what_a_release_cannot_support_is_refused_in_a_line(ready: Path, dpca: Command) -> None:
    plain = ("--publish", "plain", "--center", "none")
    assert dpca("moment", "fit", "people", *plain, *TERMS).status == 0
    assert "center=private" in dpca("derive", "correlation", "plain").complaint(1)
    small = ("subspace", "fit", "people", "--components", "2", "--keep-matrix", "0", "--publish", "small", *TERMS)
    assert dpca(*small, "--rounds", 1).status == 0
    assert "--keep-matrix" in dpca("derive", "correlation", "small").complaint(1)
    noisy = ("--epsilon", "0.01", "--delta", "1e-6", "--clip-norm", "1.8", "--direct", "--yes", "--publish", "noisy")
    assert dpca("moment", "fit", "people", *noisy).status == 0
    assert "a release with epsilon" in dpca("derive", "correlation", "noisy").complaint(1)
    assert "no column" in dpca("derive", "ridge", "people-moment", "--target", "wealth").complaint(1)
    assert dpca("derive", "ridge", "people-moment", "--target", "age", "--classes", "1").status == 2
    assert sorted(Registry.open().names()) == ["noisy", "people-moment", "plain", "small"]


def test_a_dry_run_states_the_noise_and_charges_nothing(ready: Path, dpca: Command) -> None:
    found = json.loads(dpca("moment", "fit", "people", "--publish", "next", *TERMS[:6], "--dry-run", "--json").out)
    assert found["noise_edge_expected"] > found["noise_std_expected"] > 0
    assert len(list(Workspace.read_only().ledger.history("people"))) == 1


def test_command_method_and_page_have_the_same_numbers(ready: Path, dpca: Command) -> None:
    shown = facts(dpca, "derive", "ridge", "people-moment", "--target", "income")
    model = Registry.open().load("people-moment", PrivateMoment).ridge("income")
    assert shown["rows"] == model.rows()
    loadings = version_facts(Workspace.read_only(), "people-moment.ridge", 1)["parts"][0]["loadings"]
    assert [(each["loading"], each["error"]) for each in loadings] == [
        (each["coefficient"], each["error"]) for each in shown["rows"]
    ]


def test_derived_versions_have_pages_with_a_chart_in_each_theme(ready: Path, dpca: Command) -> None:
    facts(dpca, "derive", "correlation", "people-moment")
    facts(dpca, "derive", "ridge", "people-moment", "--target", "income")
    facts(dpca, "derive", "pca", "people-moment", "--components", "2")
    site = Site(live=False)
    for model in ("correlation", "ridge", "pca"):
        reference = f"people-moment.{model}@1"
        page = site.answer(f"versions/{reference}.html")
        assert page.status == 200
        for theme in ("light", "dark"):
            assert f"{reference}/derived-{theme}.svg".encode() in page.content
            chart = site.answer(f"charts/versions/{reference}/derived-{theme}.svg")
            assert (chart.status, chart.content[:5]) == (200, b"<?xml")
    assert b"income" in page.content
    page = site.answer("versions/people-moment@1.html")
    assert page.status == 200
    assert b"Standard error of the noise" in page.content
    assert site.answer("charts/versions/people-moment@1/derived-light.svg").status == 404
