"""Privacy unit and utility warnings: every output of a release states them.

The privacy unit is stated in one sentence everywhere, and no other unit is charged. Warnings on a release's utility
appear with the release: in dry run, output, JSON, manifest and statement.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpca.artifacts.files import read_artifact, write_artifact
from dpca.errors import Refused
from dpca.home import store
from dpca.registry.reader import Registry
from flows.estimators import InMemoryBudget, PrivatePCA
from flows.orchestration.prefect_artifacts import release_statement
from flows.releases.verdicts import judge_request
from flows.requests import SubspaceRequest
from flows.web.pages import Site
from storage.workspace import Workspace
from tests.flows.conftest import FEATURES, Command
from tests.flows.conftest import FIT as PEOPLE_FIT

DELTA = "1e-6"
BUDGETS: dict[str, tuple[str, ...]] = {
    "one row": (),
    "one patient (`patient_id`)": ("--unit", "patient_id"),
    "one patient (`patient_id`, at most 3 rows)": ("--unit", "patient_id", "--rows-per-unit", "3"),
}
OWN: dict[str, tuple[str, ...]] = {
    "one row": (),
    "one patient (`patient_id`)": ("--unit-column", "patient_id"),
    "one patient (`patient_id`, at most 3 rows)": (
        *("--units", "owners.npy", "--unit-name", "patient_id"),
        *("--max-rows-per-unit", "3"),
    ),
}
"""The options of the ingest for each budget."""
VERBS = {"add_remove": "is added or removed", "zero_out": "is emptied", "replace_one": "is replaced by another"}
FIT = (
    *("subspace", "fit", "visits", "--components", "2", "--epsilon", "0.5", "--delta", "1e-7"),
    *("--clip-norm", "2", "--publish", "sub", "--direct"),
)


@pytest.fixture
def ingest(dpca: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that ingests 40 rows of 8 patients.

    A column that is not declared as the id column is a feature.
    """
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(3)
    np.save("owners.npy", np.arange(40) // 5)

    def take(*words: str, name: str = "visits", population: str = "people") -> Any:
        column = words[words.index("--unit-column") + 1] if "--unit-column" in words else None
        head = [*("a", "b", "c"), *([column] if column else [])]
        lines = [
            ",".join([*map("{:.3f}".format, rng.uniform(size=3)), *([f"{row // 5}"] if column else [])])
            for row in range(40)
        ]
        Path("rows.csv").write_text("\n".join([",".join(head), *lines]) + "\n")
        features = ("--feature-names", "names.txt")
        Path("names.txt").write_text("a\nb\nc\n")
        requested = ("dataset", "ingest", "rows.csv", "--name", name, "--population", population, "--direct", *features)
        ended = dpca(*requested, *words)
        assert ended.status == 0, ended
        return ended

    return take


def opened(dpca: Command, *words: str) -> Any:
    return dpca("budget", "open", "people", "--epsilon", "4", "--delta", DELTA, *words)


def test_only_datasets_of_the_unit_of_a_budget_are_charged(dpca: Command, ingest: Any) -> None:
    budget = "one patient (`patient_id`, at most 3 rows)"
    assert opened(dpca, *BUDGETS[budget]).status == 0
    before = dpca("budget", "show", "people", "--json").out
    others = {
        "one row": (),
        "one patient (`patient_id`)": ("--unit-column", "patient_id"),
        "one visit (`visit_id`, at most 3 rows)": ("--unit-column", "visit_id", "--max-rows-per-unit", "3"),
        "one unit (`unit`, at most 3 rows)": ("--units", "owners.npy", "--max-rows-per-unit", "3"),
    }
    for number, (unit, words) in enumerate(others.items()):
        reported = ingest(*words, name=f"d{number}").err
        line = f"budget 'people' uses {budget} as the unit of privacy, and dataset 'd{number}' has {unit}; "
        assert f"warning: {line}" in reported
        for how in ("--dry-run", "--yes"):
            assert line in dpca(*(f"d{number}" if word == "visits" else word for word in FIT), how).complaint(1)
    assert "warning: budget" not in ingest(*OWN[budget]).err
    assert dpca(*FIT, "--dry-run").status == 0
    assert dpca("budget", "show", "people", "--json").out == before


@pytest.mark.parametrize(("budget", "relation"), [*zip(BUDGETS, VERBS, strict=True)], ids=str)
def test_every_place_states_the_guarantee_in_one_sentence(
    dpca: Command, ingest: Any, tmp_path: Path, budget: str, relation: str
) -> None:
    whole, message = (
        f"({text})-differential privacy when {budget} {VERBS[relation]}" for text in ("4, 1e-6", "0.5, 1e-7")
    )
    ingest(*OWN[budget])
    assert whole in opened(dpca, *BUDGETS[budget], "--relation", relation).out
    assert json.loads(dpca(*FIT, "--dry-run", "--json").out)["statement"] == message
    request = SubspaceRequest(
        dataset="visits", components=2, epsilon=0.5, delta=1e-7, clip_norm=2.0, publish="sub", run_key="another"
    )
    assert judge_request(request).text.endswith(f" such runs fit. The guarantee of a run: {message}.")
    released = dpca(*FIT, "--yes")
    assert released.status == 0, released
    assert f"released sub@1 with {message}; " in released.out
    shown = Registry.open().show("sub@1")
    assert (shown["statement"], shown["manifest"]["privacy"]["statement"]) == (message, message)
    assert shown["manifest"]["privacy"]["unit"] == ("row" if budget == "one row" else "patient_id")
    assert f"released by `analyze_gauss` with {message}.\n" in release_statement(shown, "2 components")
    assert json.loads(dpca("budget", "show", "people", "--json").out)["statement"] == whole
    assert dpca("budget", "export", "people", "--output", tmp_path / "trail.json").status == 0
    assert json.loads(dpca("audit", "verify", tmp_path / "trail.json", "--json").out)["statement"] == whole
    details = [json.loads(entry["detail"]) for entry in json.loads((tmp_path / "trail.json").read_text())["entries"]]
    assert [detail["statement"] for detail in details if "statement" in detail] == [whole]
    site = Site(live=False, curator=True)
    for page, sentence in (("versions/sub@1", message), ("budgets/people", whole)):
        assert json.loads(site.answer(f"{page}.json").content)["statement"] == sentence
        assert f"<dd>{sentence}</dd>" in site.answer(f"{page}.html").content.decode()
    assert json.loads(site.answer("index.json").content)["budgets"][0]["statement"] == whole
    assert f"<td>{whole}</td>" in site.answer("index.html").content.decode()
    assert f"<td>{budget}</td>" in site.answer("datasets.html").content.decode()


def test_a_name_with_markup_is_escaped_on_every_page(dpca: Command, ingest: Any) -> None:
    name = "<img src=x onerror=alert(1)>\"'_id"
    ingest("--units", "owners.npy", "--unit-name", name)
    assert opened(dpca, "--unit", name).status == 0
    assert dpca(*FIT, "--yes").status == 0
    site = Site(live=False, curator=True)
    for page in ("versions/sub@1", "budgets/people", "datasets"):
        text = site.answer(f"{page}.html").content.decode()
        assert "<img src=x" not in text
        assert "one unit (`&lt;img src=x onerror=alert(1)&gt;&#34;&#39;_id`)" in text


@pytest.mark.parametrize(
    "words",
    [
        ("--unit", ""),
        ("--unit", "a`b"),
        ("--unit", "a\nb"),
        ("--unit", "n" * 101),
        ("--unit", "row"),
        ("--rows-per-unit", "3"),
    ],
    ids=str,
)
def test_an_invalid_unit_opens_no_budget(dpca: Command, words: tuple[str, ...]) -> None:
    opened(dpca, *words).complaint(1)
    assert "no budget" in dpca("budget", "show", "people").complaint(1)


def test_a_unit_column_with_an_unprintable_name_needs_another_name(dpca: Command, ingest: Any) -> None:
    with pytest.raises(AssertionError, match="--unit-name"):
        ingest("--unit-column", "a`b")
    ingest("--unit-column", "a`b", "--unit-name", "patient_id")
    assert opened(dpca, *BUDGETS["one patient (`patient_id`)"]).status == 0
    assert dpca(*FIT, "--dry-run").status == 0


def test_a_doctor_names_a_dataset_that_its_budget_does_not_admit(dpca: Command, ingest: Any) -> None:
    ingest("--unit-column", "patient_id")
    warned = opened(dpca)
    assert "warning: budget 'people' uses one row as the unit of privacy, and dataset 'visits' has one" in warned.err
    found = json.loads(dpca("doctor", "--json").out)
    assert [row["found"] for row in found if row["check"] == "units"] == [
        "budget 'people' uses one row as the unit of privacy, and dataset 'visits' has one patient (`patient_id`)"
    ]


def test_the_terms_of_an_open_budget_keep_their_unit(dpca: Command) -> None:
    words = ("--unit", "patient_id", "--rows-per-unit", "3")
    assert opened(dpca, *words).status == 0
    assert opened(dpca, *words).status == 0
    for others in ((), words[:2], (*words[:3], "4"), ("--unit", "visit_id", *words[2:])):
        assert "for one patient (`patient_id`, at most 3 rows); its terms never change" in opened(
            dpca, *others
        ).complaint(1)


def test_an_estimator_of_rows_states_one_row_and_is_refused_by_a_budget_of_ids(dpca: Command) -> None:
    rows = np.random.default_rng(4).uniform(size=(30, 3))
    terms: dict[str, Any] = {"epsilon": 0.5, "delta": 1e-7, "clip_norm": 2.0}
    made = PrivatePCA(1, **terms, relation="zero_out", budget=InMemoryBudget(1.0, 1e-6, relation="zero_out")).fit(rows)
    message = "(0.5, 1e-7)-differential privacy when one row is emptied"
    assert made.artifact_.manifest["privacy"]["statement"] == message
    assert opened(dpca, "--unit", "patient_id").status == 0
    workspace = Workspace.open()
    with pytest.raises(Refused, match=r"as the unit of privacy, and dataset .* has one row; nothing was charged"):
        PrivatePCA(1, **terms, budget=workspace.budget("people")).fit(rows)
    assert (workspace.ledger.statement("people").spent, workspace.catalog.entries()) == (0.0, [])


NOISY = (
    *("subspace", "fit", "people", "--components", "2", "--epsilon", "0.1", "--delta", "0"),
    *("--mechanism", "laplace", "--clip-norm", "1.5", "--publish", "sub"),
)
BEFORE, AFTER = "all components will be noise", "none of the 2 released eigenvalues is above"


@pytest.fixture
def opened_of_warnings(rows_file: Path, dpca: Command) -> None:
    """Ingest sixty rows with the bound ``--records-at-most 60``, and open a budget."""
    words = ("--name", "people", "--features", FEATURES, "--records-at-most", 60, "--direct")
    assert dpca("dataset", "ingest", rows_file, *words).status == 0
    assert dpca("budget", "open", "people", "--epsilon", "3", "--delta", "1e-4").status == 0


@pytest.mark.usefixtures("opened_of_warnings")
def test_a_release_of_noise_warns_before_and_after(dpca: Command) -> None:
    promised = dpca(*NOISY, "--dry-run", "--json")
    (before,) = json.loads(promised.out)["warnings"]
    assert BEFORE in before
    assert promised.err.count(BEFORE) == 1
    assert BEFORE in dpca(*NOISY, "--dry-run").out

    ending = dpca(*NOISY, "--direct", "--yes", "--json")
    assert ending.status == 0, ending.err
    reported = json.loads(ending.out)["warnings"]
    assert reported[0] == before
    assert AFTER in reported[1]
    assert len(reported) == 2
    assert [ending.err.count(text) for text in (BEFORE, AFTER)] == [1, 1]
    shown = Registry.open().show("sub@1")
    assert shown["manifest"]["warnings"] == reported
    assert [
        release_statement(shown, "5 components of 400 features").count(f"**Warning:** {warning}")
        for warning in reported
    ] == [1, 1]

    again = json.loads(dpca(*NOISY, "--direct", "--yes", "--json").out)
    assert (again["reused"], again["warnings"]) == (True, reported)


@pytest.mark.usefixtures("ready")
def test_a_release_with_signal_has_no_warning_and_no_such_fact_in_its_manifest(dpca: Command) -> None:
    assert dpca(*PEOPLE_FIT, "--rounds", "1", "--direct", "--yes").status == 0
    shown = Registry.open().show("sub@1")
    assert "warnings" not in shown["manifest"]
    assert "Warning" not in release_statement(shown, "5 components of 400 features")


@pytest.mark.usefixtures("ready")
def test_warnings_outlive_a_refit_and_the_file(home: Path, dpca: Command) -> None:
    assert dpca(*PEOPLE_FIT, "--rounds", "1", "--direct", "--yes").status == 0
    found = Registry.open().load("sub@1")
    warned = dataclasses.replace(found, manifest={**found.manifest, "warnings": ["mostly noise"]})
    written = read_artifact(store(), write_artifact(warned, home=home, place=store()))
    assert written.refit(1, parent="0" * 64).manifest["warnings"] == ["mostly noise"]
