"""The subspace family, used through the command ``dpca subspace``.

The forecast before spending is tested in a dry run, at a confirmation, and for a request that refuses noise. The gate
reads two published subspaces only: the verdict of one, and the directions of both. Post-processing of a published
release is free, or refused where its artifact does not allow it. The upper triangle of a released matrix is stored up
to a size, and read back bit for bit. The noise of a stream's estimate is compared with a single release. A family is
planned without an orchestrator and without a cluster library.

The columns of two tables are compared by number, names and schemas. Moments are also estimated for subspaces that were
released with a warm start.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from scipy.linalg import block_diag

from dpca.artifacts.subspace import PrivateSubspace
from dpca.registry.reader import Registry
from dpca_tasks.accounting.factorisation import choose_weights
from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.layouts import unpack_symmetric
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.released_moment import moment_query
from dpca_tasks.mechanisms.streams.stream_estimate import coefficients
from dpca_tasks.mechanisms.streams.stream_ticks import plan_stream
from dpca_tasks.refinement.public_map import PublicMap
from dpca_tasks.refinement.rounds import Answer, begun
from flows.families.base import FAMILIES, family_named, stored_request
from flows.families.columns import Columns, check_same_columns
from flows.families.restated_subspace import _extended_by_map, _extended_by_mean, packed, restate_subspace
from flows.families.streams import StreamTerms, factor
from flows.releases import stages
from flows.releases.arrival_ends import drift_from, judge
from flows.releases.stages import plan_on, release_directly
from flows.releases.verdicts import preview
from flows.reports.terminal import rounded_down
from flows.requests import SubspaceRequest
from storage.workspace import Workspace
from tests.flows.conftest import Command
from tests.flows.releases.test_stages import ENTRY, LEDGER, REQUEST

NOISY: dict[str, Any] = {**REQUEST, "epsilon": 0.1, "delta": 0.0, "mechanism": "laplace"}
WORDS = (
    *("subspace", "fit", "people", "--components", "2", "--epsilon", "0.1", "--delta", "0"),
    *("--mechanism", "laplace", "--clip-norm", "1.5", "--publish", "sub"),
)


@pytest.fixture
def few(rows_file: Path, dpca: Command) -> None:
    """Ingest sixty rows with the bound ``--records-at-most 60``, and open a budget."""
    words = ("--name", "people", "--features", 6, "--records-at-most", 60, "--direct")
    assert dpca("dataset", "ingest", rows_file, *words).status == 0
    assert dpca("budget", "open", "people", "--epsilon", "3", "--delta", "1e-4").status == 0


def releases() -> list[Any]:
    return list(Workspace.read_only().ledger.history("people"))


@pytest.mark.usefixtures("few")
def test_a_dry_run_forecasts_the_visible_components_and_the_epsilon_for_the_rest(dpca: Command) -> None:
    reported = json.loads(dpca(*WORDS, "--dry-run", "--json").out)
    assert reported["components_above_noise"] == 0
    assert reported["forecast"].startswith(
        "expect noise: with records_at_most=60 all components will be noise; component 2"
    )
    assert f"epsilon {reported['epsilon_needed']:.3g}" in reported["forecast"]
    better = [str(reported["epsilon_needed"] * 1.01) if word == "0.1" else word for word in WORDS]
    assert json.loads(dpca(*better, "--dry-run", "--json").out)["components_above_noise"] == 2
    declared = json.loads(dpca(*better, "--dry-run", "--json", "--spectrum", "0.9,0.02").out)
    assert declared["components_above_noise"] == 1
    assert declared["records_needed"] > 60


@pytest.mark.usefixtures("few")
def test_a_request_that_refuses_noise_is_not_charged_and_states_what_would_suffice(dpca: Command) -> None:
    complaint = dpca(*WORDS, "--on-noise", "refuse", "--direct", "--yes").err.splitlines()[-1]
    assert complaint.startswith("dpca: expect noise: with records_at_most=60")
    assert "on_noise=refuse" in complaint
    assert "nothing was charged" in complaint
    assert dpca(*WORDS, "--on-noise", "refuse", "--dry-run").status == 1
    assert releases() == []
    assert dpca(*WORDS, "--direct", "--yes").status == 0
    assert len(releases()) == 1
    assert dpca(*WORDS, "--on-noise", "refuse", "--direct", "--yes").status == 0  # already charged
    assert len(releases()) == 1


@pytest.mark.usefixtures("few")
def test_an_unattended_job_logs_a_forecast_of_noise_or_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(stages, "log_event", lambda event, **facts: logged.append((event, facts)))
    with pytest.raises(Refused, match="on_noise=refuse"):
        release_directly(SubspaceRequest(**NOISY, on_noise="refuse"))
    assert (logged, releases()) == ([], [])
    release_directly(SubspaceRequest(**NOISY))
    assert logged[0][0] == "expects_noise"
    assert logged[0][1]["forecast"].startswith("expect noise: ")
    assert len(releases()) == 1


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(("answer", "made"), [(False, 0), (True, 1)])
def test_a_terminal_requires_confirmation_of_a_forecast_of_noise(
    monkeypatch: pytest.MonkeyPatch, dpca: Command, *, answer: bool, made: int
) -> None:
    requested: list[str] = []

    def confirm(question: str, **_: Any) -> bool:
        requested.append(question)
        return answer

    monkeypatch.setattr(sys, "stdin", _Terminal())
    monkeypatch.setattr(sys, "stderr", _Terminal())
    monkeypatch.setattr(typer, "confirm", confirm)
    dpca(*WORDS, "--direct")
    assert len(requested) == 1
    assert requested[0].startswith("Expect noise: ")
    assert ". Despite this, spend epsilon 0.1 at delta 0 of budget 'people', with epsilon " in requested[0]
    assert len(releases()) == made


@pytest.mark.usefixtures("few")
def test_a_forecast_of_visible_components_needs_no_confirmation() -> None:
    seen = preview(SubspaceRequest(**{**NOISY, "epsilon": 2.9, "mechanism": "wishart"}))
    left = rounded_down(seen.remaining), rounded_down(seen.remaining_after)
    assert seen.question == (
        f"Spend epsilon 2.9 at delta 0 of budget 'people', with epsilon {left[0]} left before and {left[1]} after?"
    )
    assert 0.0 < seen.remaining_after < seen.remaining


@pytest.mark.parametrize("changes", [{"on_noise": "refuse"}, {"spectrum": "flat"}])
def test_forecasts_do_not_change_the_identity_of_a_release(changes: dict[str, str]) -> None:
    one, other = (plan_on(LEDGER, ENTRY, SubspaceRequest(**REQUEST | more)) for more in ({}, changes))
    assert (one.fingerprint, one.run_key, one.plan.event) == (other.fingerprint, other.run_key, other.plan.event)
    assert stored_request(other).items() >= changes.items()


class _Terminal:
    """A stream that looks like an interactive terminal."""

    isatty: Callable[[], bool] = staticmethod(lambda: True)
    write: Callable[[str], int] = staticmethod(len)
    flush: Callable[[], None] = staticmethod(lambda: None)


def subspace(*columns: int, above: int | None = 2, features: int = 6, **others: Any) -> PrivateSubspace:
    """Return a subspace whose components are the unit vectors of these columns."""
    outcome = {name: fact for name, fact in {"above_noise": above, **others}.items() if fact is not None}
    return PrivateSubspace(components=np.eye(features)[list(columns)], manifest={"outcome": outcome})


@pytest.mark.parametrize(
    ("candidate", "champion", "reason"),
    [
        (subspace(0, 1, above=0), None, "no component is above the noise"),
        (subspace(0, 1, failed=True), subspace(0, 1), "no component is above the noise"),
        (subspace(0, 1, above=None), None, "the release does not state which components"),
        (subspace(0, 1), subspace(0, 1, features=7), "the columns differ from those"),
        (subspace(2, 3), subspace(0, 1), "drift 1 is above 0.5"),
        (subspace(2, 1, 0, above=3), subspace(0, 3, 4, 5, above=4), "drift 0.75 is above 0.5"),
    ],
)
def test_a_version_of_noise_or_with_drift_is_withheld(
    candidate: PrivateSubspace, champion: PrivateSubspace | None, reason: str
) -> None:
    judged = judge(candidate, champion, drift_at_most=0.5)
    assert not judged.passes
    assert judged.reason.startswith(reason)


@pytest.mark.parametrize(
    ("candidate", "champion", "drift"),
    [
        (subspace(0, 1), None, None),
        (subspace(0, 1, above=1), subspace(2, 3, above=0), None),
        (subspace(0, 1), subspace(2, 3, above=None), None),
        (subspace(1, 0), subspace(0, 1), 0.0),
        (subspace(0, 5), subspace(0, 3), 0.5),
        (subspace(0, 5), subspace(0, 3, above=1), 0.0),
        (subspace(0, 1, 2, above=3), subspace(0, 1), 0.0),
    ],
)
def test_a_version_above_the_noise_and_close_to_the_champion_passes(
    candidate: PrivateSubspace, champion: PrivateSubspace | None, drift: float | None
) -> None:
    judged = judge(candidate, champion, drift_at_most=0.5)
    assert judged.passes
    assert judged.drift == pytest.approx(drift) if drift is not None else judged.drift is None


def test_random_directions_have_the_documented_mean_drift() -> None:
    """Compare the mean drift of 400 random subspaces with 1 - k/d; 0.03 is five standard deviations.

    The draws come from seed 0.
    """
    draws = np.random.default_rng(0)
    champion, found = subspace(0, 1), []
    for _ in range(400):
        components = np.linalg.qr(draws.normal(size=(6, 2)))[0].T
        candidate = PrivateSubspace(components=components, manifest={"outcome": {"above_noise": 2}})
        found.append(drift_from(candidate, champion) or 0.0)
    assert np.mean(found) == pytest.approx(1 - 2 / 6, abs=0.03)


def test_drift_does_not_depend_on_signs_and_order() -> None:
    turned = PrivateSubspace(components=-np.eye(6)[[1, 0]], manifest={"outcome": {"above_noise": 2}})
    assert drift_from(turned, subspace(0, 1)) == 0.0


def test_directions_within_the_noise_do_not_count_toward_the_champion() -> None:
    """Directions within the noise must not count when drift from a champion is measured.

    By chance, random directions overlap with any others: completely, with as many directions as columns.
    """
    candidate = subspace(0, 1, 2, 3, 4, 5, above=1)
    assert drift_from(candidate, subspace(0, 1, 2, above=3)) == pytest.approx(2 / 3)
    assert not judge(candidate, subspace(0, 1, 2, above=3), drift_at_most=0.5).passes


WIDE = 24
FIT = (
    *("subspace", "fit", "wide", "--components", "2", "--epsilon", "1", "--delta", "1e-6", "--clip-norm", "3"),
    *("--direct", "--yes", "--json"),
)


def spent() -> float:
    return Workspace.open().ledger.statement("wide").spent


@pytest.fixture
def wide(tmp_path: Path, dpca: Command) -> None:
    """Ingest 600 rows of 24 columns, two of which have most of the variance, and open a budget."""
    source = np.random.default_rng(4).normal(size=(600, WIDE)) * np.r_[2.0, 1.0, np.full(WIDE - 2, 0.05)]
    np.save(tmp_path / "wide.npy", source)
    assert dpca("dataset", "ingest", tmp_path / "wide.npy", "--name", "wide", "--direct").status == 0
    assert dpca("budget", "open", "wide", "--epsilon", "3", "--delta", "1e-6").status == 0


@pytest.mark.usefixtures("wide")
def test_a_release_is_refined_and_assessed_and_can_be_refined_again_for_free(dpca: Command) -> None:
    ending = dpca(*FIT, "--publish", "sub")
    assert ending.status == 0, ending.err
    report = json.loads(ending.out)
    assert "components are above the noise" in report["verdict"]
    found, before = Registry.open().load("sub@1"), spent()
    assert found.answers is not None
    assert "3 rounds with 10 %, 30 % and 60 % of the budget" in found.outcome["in_rounds"]
    assert found.manifest["parameters"]["refine"] == "auto"
    assert report["share"] == pytest.approx(found.explained_variance_ratio.sum())

    for refine, name in (("none", "plain"), ("eb", "shrunk")):
        again = dpca(*FIT, "--publish", name, "--refine", refine)
        assert again.status == 0, again.err
        other = Registry.open().load(f"{name}@1")
        assert other.refined_by == refine
        assert other.manifest["release"] == found.manifest["release"]
    assert "under another name" in dpca(*FIT, "--publish", "sub", "--refine", "eb").complaint(1)
    report = json.loads(dpca("subspace", "refit", "sub", "--components", "3", "--publish", "three", "--json").out)
    assert Registry.open().load(report["artifact"]).n_components == 3
    assert spent() == before


@pytest.mark.usefixtures("wide")
def test_a_release_below_the_required_quality_is_charged_stored_and_published_later(dpca: Command) -> None:
    before = spent()
    reported = dpca(*FIT, "--publish", "sub", "--require-share", "1").complaint(1)
    assert "not published" in reported
    charged = spent()
    assert charged > before
    assert "sub" not in Registry.open().names()
    ending = dpca(*FIT, "--publish", "sub")
    assert ending.status == 0, ending.err
    assert json.loads(ending.out)["reused"] is True
    assert spent() == charged


@pytest.mark.usefixtures("wide")
def test_an_artifact_without_its_matrix_is_refined_by_eb_only_with_a_warning(dpca: Command) -> None:
    assert dpca(*FIT, "--rounds", "1", "--publish", "sub", "--keep-matrix", "0", "--refine", "eb").status == 0
    found = Registry.open().load("sub@1")
    assert found.matrix is None
    assert found.leading is not None
    words = ("subspace", "refit", "sub", "--components", "3", "--publish", "other")
    assert "does not contain" in dpca(*words, "--refine", "all").complaint(1)
    assert dpca(*words, "--refine", "eb").status == 0
    assert "without the matrix" in Registry.open().load("other@1").manifest["warnings"][-1]


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("center", ["none", "private"])
def test_a_release_in_rounds_is_refined_again_from_its_answers(dpca: Command, center: str) -> None:
    """Refine a published release in rounds again: the same answers must give the same components to the bit.

    Another number of components costs nothing.
    """
    assert dpca(*FIT, "--rounds", "3", "--center", center, "--publish", "sub").status == 0
    found, before = Registry.open().load("sub@1", PrivateSubspace), spent()
    again = restate_subspace(found, n_components=2, parent="x")
    np.testing.assert_array_equal(again.components, found.components)
    assert again.outcome == found.outcome
    assert again.answers is not None
    np.testing.assert_array_equal(again.answers, found.answers)
    three = restate_subspace(found, n_components=3, refine="eb", parent="x")
    assert three.n_components == 3
    shown = dpca("registry", "show", "sub")
    assert "3 rounds with 10 %, 30 % and 60 % of the budget" in " ".join(shown.out.split())
    assert spent() == before


@pytest.mark.usefixtures("wide")
def test_a_release_in_rounds_without_its_answers_gives_only_leading_directions(dpca: Command) -> None:
    assert dpca(*FIT, "--publish", "sub", "--keep-matrix", "0").status == 0
    found = Registry.open().load("sub@1", PrivateSubspace)
    assert found.answers is None
    assert found.leading is not None
    words = ("subspace", "refit", "sub", "--components", "3", "--publish", "other")
    assert "needs the answers of all rounds" in dpca(*words, "--refine", "eb").complaint(1)
    assert dpca(*words).status == 0
    made = Registry.open().load("other@1")
    assert made.n_components == 3
    assert made.refined_by == "none"


@pytest.mark.usefixtures("wide")
def test_rounds_of_another_mechanism_or_number_are_refused_before_they_are_charged(dpca: Command) -> None:
    before = spent()
    words = (*FIT, "--publish", "sub")
    assert "noisy_power has one round" in dpca(*words, "--mechanism", "noisy_power", "--rounds", "2").complaint(1)
    assert "must be less than or equal to 3" in dpca(*words, "--rounds", "4").complaint(1)
    assert spent() == before


@pytest.mark.usefixtures("wide")
def test_an_artifact_from_before_refinement_is_refined_by_eb_with_a_notice(dpca: Command) -> None:
    """Refine an artifact of an older version, without outcome, matrix or refinement: the plan states its noise."""
    assert dpca(*FIT, "--rounds", "1", "--publish", "sub", "--refine", "none").status == 0
    found = Registry.open().load("sub@1", PrivateSubspace)
    facts = {name: fact for name, fact in found.manifest.items() if name != "outcome"}
    facts["parameters"] = {name: fact for name, fact in facts["parameters"].items() if name != "refine"}
    arrays = {name: getattr(found, name) for name in ("components", "eigenvalues", "spectrum", "further")}
    old = PrivateSubspace(**arrays, manifest=facts)
    made = restate_subspace(old, n_components=3, refine="eb", parent="x")
    assert made.refined_by == "eb"
    assert made.n_components == 3
    assert made.outcome["noise_std"] == pytest.approx(found.outcome["noise_std"], rel=1e-9)
    assert made.outcome["above_noise"] == found.outcome["above_noise"]
    assert made.outcome["captured_low"] is None
    assert "refined from the 24 stored eigenpairs, without the matrix" in made.manifest["warnings"][-1]
    assert restate_subspace(old, n_components=2, parent="x").refined_by == "none"


@pytest.mark.usefixtures("wide")
def test_an_impossible_refinement_is_refused_before_a_charge(dpca: Command) -> None:
    before = spent()
    words = (*FIT, "--publish", "sub", "--mechanism", "noisy_power")
    assert "releases none" in dpca(*words, "--refine", "eb").complaint(1)
    assert spent() == before


def test_a_matrix_is_stored_bit_for_bit_unless_it_is_large():
    square = np.random.default_rng(1).normal(size=(7, 7))
    matrix = square + square.T
    kept = packed(matrix, keep_matrix=1.0)
    assert kept is not None
    np.testing.assert_array_equal(unpack_symmetric(kept, 7), matrix)
    assert packed(matrix, keep_matrix=8 * 28 / 1e6) is not None
    assert packed(matrix, keep_matrix=8 * 27 / 1e6) is None


D, K = 6, 2


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
@pytest.mark.parametrize("settings", [{"strategy": "window", "window": 7}, {"strategy": "sqrt", "ticks": 7}])
def test_the_factor_is_the_std_of_an_estimate_over_that_of_a_single_release(relation: Any, settings: Any) -> None:
    problem = Problem(n_features=D, clip_norm=1.0, relation=relation)
    weights, target = choose_weights(**settings), PrivacyTarget(epsilon=1.0, delta=1e-6)
    plan = plan_stream(problem, target, weights=weights, ticks=7, n_components=K)
    terms = StreamTerms(facts={"horizon": 7}, plan=plan, weights=weights)
    single = plan.noise_multiplier * moment_query(problem, bits=8).sensitivity("l2")
    answer = plan.noise_multiplier * terms.query(1, (0,)).sensitivity("l2")
    multipliers = coefficients(weights, kept=range(1, 8))
    assert factor(terms, multipliers) == pytest.approx(answer * np.linalg.norm(multipliers) / single, rel=1e-12)


PROGRAM = """
import json, sys
from flows.families.base import build_mechanism
from flows.families.subspace import SUBSPACE
from flows.requests import SubspaceRequest
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
for name in SUBSPACE.mechanisms:
    mechanism = build_mechanism(SUBSPACE, name, {}, n_components=2)
plan = build_mechanism(SUBSPACE, "analyze_gauss", {}, n_components=2).plan(
    Problem(n_features=5, clip_norm=1.0), PrivacyTarget(epsilon=1.0, delta=1e-6)
)
loaded = {name.partition(".")[0] for name in sys.modules}
print(json.dumps([plan.mechanism, sorted(loaded & {"prefect", "dask", "distributed"})]))
"""


def test_a_mechanism_is_built_and_planned_without_prefect_and_dask() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == ["analyze_gauss", []]


ALONE = """
import json, sys
from flows.families.base import family_named
family_named("subspace")
ours = ("flows.families.", "dpca_tasks.mechanisms.")
print(json.dumps([name for name in sys.modules if name.startswith(ours)]))
"""


def test_a_family_does_not_import_another_family() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout)
    others = ("completion", "tensor", "evaluat", "stream", "sites")
    assert "flows.families.subspace" in loaded
    assert not [name for name in loaded if any(other in name for other in others)]


@pytest.mark.parametrize("name", FAMILIES)
def test_each_family_has_the_name_of_its_row(name: str) -> None:
    family = family_named(name)
    assert family.name == family.request.family == name


def test_the_moment_of_a_warm_start_around_a_mean_is_that_of_its_rows():
    """Without noise and clipping, the answer to mapped rows gives the moment of the rows with their constants."""
    rng = np.random.default_rng(8)
    rows, constant = rng.standard_normal((50, 4)), 0.25
    public = PublicMap.on_grid(np.linalg.qr(rng.standard_normal((4, 2)))[0], np.array([0.25, 0.5]))
    shift = np.array([0.5, -0.25, 0.0, 1.0])
    images = np.column_stack([public.forward((rows - shift).T).T, np.full(50, constant)])
    answer = Answer(released=images.T @ images, noise_std=1.0, map=public, constant=constant)
    estimate = begun(answer, centred=True)
    assert estimate.mean is not None
    residual = (rows - shift).mean(axis=0)
    estimate = replace(estimate, mean=residual)  # not limited to norm 1
    moment, weights = _extended_by_map(estimate, answer, residual + shift, np.eye(4))
    extended = np.column_stack([rows, np.full(50, constant)])
    np.testing.assert_allclose(moment, extended.T @ extended, atol=1e-9)
    np.testing.assert_allclose(weights[:4, :4], public.inverse_around(np.eye(4)) + np.outer(shift, shift) / constant**2)


def test_the_moment_around_a_private_mean_is_that_of_rows_with_their_constant():
    """The rows around the mean and a separate row of constants give the rows with their constants by a linear map."""
    rng = np.random.default_rng(3)
    matrix, weights = np.cov(rng.standard_normal((4, 50))), np.diag([1.0, 2.0, 3.0, 4.0])
    mean, constant = np.array([0.5, -0.25, 0.0, 1.0]), 0.25
    first = Answer(
        released=np.eye(5), noise_std=0.6, map=PublicMap.on_grid(np.empty((4, 0)), np.empty(0)), constant=constant
    )
    estimate = replace(begun(first, centred=True), matrix=matrix, n_records=40.0, noise_std=0.2)
    function = np.eye(5)
    function[:4, 4] = mean / constant
    moment, shape = _extended_by_mean(estimate, first, mean, weights)
    np.testing.assert_allclose(moment, function @ block_diag(matrix, 40.0 * constant**2) @ function.T, atol=1e-12)
    np.testing.assert_allclose(shape, function @ block_diag(weights, (0.6 / 0.2) ** 2) @ function.T, atol=1e-12)


ONE = Columns(table="one", n_features=2, names=("a", "b"))


def encoder(low: float) -> dict[str, object]:
    """Return the stored form of a schema with one numeric column."""
    return {"missing_texts": [], "columns": [{"name": "a", "kind": "numeric", "range": [low, 1.0]}]}


@pytest.mark.parametrize("named", [False, True])
def test_equal_columns_are_accepted(*, named: bool) -> None:
    for other in (ONE, replace(ONE, table="other", names=["a", "b"])):
        check_same_columns(ONE, other, rule="use it", named=named)
    check_same_columns(replace(ONE, encoder=encoder(0.0)), replace(ONE, encoder=encoder(0.0)), rule="use it")


@pytest.mark.parametrize(
    ("other", "refused"),
    [
        (replace(ONE, table="other", n_features=3), "one has 2 columns, but other has 3; use it."),
        (replace(ONE, table="other", names=("b", "a")), "other names, or another order, than those of other; use it."),
        (replace(ONE, table="other", encoder=encoder(0.0)), "another schema than those of other; use it."),
    ],
)
def test_a_difference_is_named_in_one_line(other: Columns, refused: str) -> None:
    for named in (False, True):
        with pytest.raises(InvalidInput) as found:
            check_same_columns(ONE, other, rule="use it", named=named)
        assert str(found.value).endswith(refused)


def test_missing_names_are_a_difference_only_if_names_are_required() -> None:
    unnamed = replace(ONE, names=None)
    for pair in ((ONE, unnamed), (unnamed, ONE)):
        check_same_columns(*pair, rule="use it")
        with pytest.raises(InvalidInput, match="other names"):
            check_same_columns(*pair, rule="use it", named=True)
    check_same_columns(unnamed, unnamed, rule="use it", named=True)


def test_schemas_with_other_ranges_differ() -> None:
    with pytest.raises(InvalidInput, match="another schema"):
        check_same_columns(replace(ONE, encoder=encoder(0.0)), replace(ONE, encoder=encoder(0.5)), rule="use it")
