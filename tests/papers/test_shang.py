"""Reproduction of Shang et al. on tiny data: protocol, tables, files and artifacts; a full run takes minutes.

Each check of a claim holds on tiny data, and fails if its claim is falsified.
"""

import csv
import dataclasses
import json
import math
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from dpca_tasks.accounting.published import FORMULAS, Settings
from dpca_tasks.errors import Refused
from dpca_tasks.mechanisms.subspace import MECHANISMS
from papers import shang, shang_claims
from papers.lib.ascents import ascend
from papers.lib.public_data import LabelledRows, a9a, made_text
from papers.lib.subspaces import (
    ANALYZE_GAUSS,
    ARMS,
    COMPARED,
    GAUSSIAN,
    MOD_SULQ,
    REFINED,
    Arm,
    Reference,
    Rows,
    Split,
    formula_epsilon,
    less_lost,
    random_subspace,
)
from papers.shang import MAJORITY, RANDOM
from papers.shang_claims import SEEDS, Row, check_columns, check_lemma, check_rates
from tests.docs.reader import DOCS, shell_blocks
from tests.papers.conftest import Papers

REFUSING = Arm(mechanism="dp_spca", calibration="paper", settings={"form": "one_row"})


@pytest.fixture(scope="module")
def text() -> LabelledRows:
    return made_text(60, n_records=400)


@pytest.fixture
def tiny(text: LabelledRows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Restrict the reproduction to a few methods and to a text data set of 400 records."""
    monkeypatch.setattr(shang, "ARMS", (*COMPARED, REFUSING))
    monkeypatch.setattr(shang, "_loaders", lambda *_: ({"text": lambda: text}, ["MNIST: not here"]))


def test_a_split_reserves_half_and_trains_on_a_tenth_of_all(text: LabelledRows) -> None:
    split = Split.of(text, seed=(0,))
    assert (split.reserved.shape[0], split.train.shape[0], split.test.shape[0]) == (200, 40, 160)
    again, other = Split.of(text, seed=(0,)), Split.of(text, seed=(1,))
    assert (split.reserved != again.reserved).nnz == 0
    assert (split.reserved != other.reserved).nnz > 0


def test_accuracy_is_that_of_standardised_scores() -> None:
    """Accuracy must not depend on the scale of a direction: one of two directions separates the classes.

    The scales of the two directions differ widely.
    """
    rng = np.random.default_rng(0)
    labels = np.where(rng.random(400) < 0.5, -1.0, 1.0)
    rows = sparse.csr_array(np.stack([1e-6 * labels, rng.standard_normal(400)], axis=1))
    split = Split.of(LabelledRows(name="two", rows=rows, labels=labels, n_components=1), seed=(0,))
    assert split.accuracy(np.array([[1.0, 0.0]])) == 100.0
    assert 35.0 < split.accuracy(np.array([[0.0, 1.0]])) < 65.0
    assert 40.0 <= split.majority() <= 60.0


def test_the_best_directions_measure_as_the_best(text: LabelledRows) -> None:
    reference = Reference.of(text.rows, n_components=3)
    measured = reference.measured(reference.best)
    assert measured == pytest.approx({"distance": 0.0, "captured": 1.0, "beyond": 1.0}, abs=1e-9)
    guess = reference.measured(random_subspace(60, 3, seed=(0,)))
    assert guess["distance"] > 2.0
    assert guess["captured"] < 0.5
    only_first = np.vstack([reference.best[:1], random_subspace(60, 2, seed=(1,))])
    assert reference.measured(np.linalg.qr(only_first.T)[0].T)["beyond"] < 0.6


def test_wide_rows_are_decomposed_without_a_matrix(text: LabelledRows, monkeypatch: pytest.MonkeyPatch) -> None:
    formed = Reference.of(text.rows, n_components=3)
    monkeypatch.setattr("papers.lib.subspaces.FORMED", 10)
    unformed = Reference.of(text.rows, n_components=3)
    np.testing.assert_allclose(unformed.values, formed.values, rtol=1e-8)
    assert unformed.measured(formed.best)["distance"] == pytest.approx(0.0, abs=1e-8)


def test_a_smaller_loss_is_reported_by_a_paired_test() -> None:
    rng = np.random.default_rng(0)
    of_split = 10 * rng.standard_normal(8)  # removed by pairing
    less = of_split + 0.1 * rng.standard_normal(8)
    assert less_lost(less.tolist(), (of_split + 1.0).tolist()) < 1e-4
    assert less_lost((of_split + 1.0).tolist(), less.tolist()) > 0.99


def test_printed_bounds_are_computed_with_true_epsilons_and_noise() -> None:
    values = [0.3, 0.07, 0.05, 0.01, *([0.001] * 100)]
    found = {row["algorithm"]: row for row in shang.bounds(500, 104, 3, values)}
    assert list(found) == ["analyze_gauss", "wishart", "local_gaussian", "dp_spca", "dp_vrpca"]
    assert found["analyze_gauss"]["true epsilon"] == pytest.approx(0.0369, abs=1e-4)
    assert found["dp_spca"]["printed bound, constants 1"] == pytest.approx((3 * 104 / 0.1) ** 0.5 / 500)
    assert found["dp_spca"]["noise of the formula"] == pytest.approx(1.3075 * (32_561 / 500) ** 0.5, rel=1e-4)
    assert found["wishart"]["true epsilon"] == np.inf


def test_shapes_are_compared_with_the_printed_ones(text: LabelledRows) -> None:
    assert not list(shang.check_shapes(text))
    checks = list(shang.check_shapes(a9a()))
    assert len(checks) == 3
    assert all(check["holds"] for check in checks)


@pytest.mark.audit_only
@pytest.mark.usefixtures("tiny")
def test_the_command_writes_tables_and_figures(papers: Papers, tmp_path: Path) -> None:
    out = tmp_path / "made" / "here"
    ending = papers(
        *("shang", "--dataset", "text", "--splits", "2", "--draws", "2", "--out", out),
        *("--data", tmp_path, "--json"),
    )
    found = json.loads(ending.out)
    assert ending.status in (0, 1)
    assert found["left_out"] == ["MNIST: not here"]
    assert found["charged"].startswith("nothing")
    assert [check["name"].split(":")[0] for check in found["checks"]] == ["made text"] * 2
    names = {Path(path).name for path in found["files"]}
    assert names == {path.name for path in out.iterdir()}
    assert {f"table3-made-text-delta-{delta}.{kind}" for delta in ("0.001", "1e-05") for kind in ("svg", "png")} < names
    assert (out / "figure1.svg").read_text().startswith("<?xml")
    with (out / "table3.csv").open() as file:
        rows = list(csv.DictReader(file))
    by_arm = {(row["arm"], row["delta"]): row for row in rows}
    assert {MAJORITY, RANDOM, REFUSING.name} | {arm.name for arm in COMPARED} == {arm for arm, _ in by_arm}
    assert float(by_arm[ANALYZE_GAUSS.name, "1e-05"]["error"]) > 0
    assert "calibration=paper" in by_arm[REFUSING.name, "0.001"]["refused"]
    assert float(by_arm["analyze_gauss paper", "0.001"]["true epsilon"]) == pytest.approx(0.0369, abs=1e-4)
    assert "Charged: nothing" in (out / "table3.md").read_text()


@pytest.mark.audit_only
@pytest.mark.usefixtures("tiny")
def test_the_commands_of_the_page_shang_md_run(papers: Papers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each command of the page shang.md with two splits and one draw, on a tiny text data set."""
    monkeypatch.chdir(tmp_path)
    (block,) = shell_blocks(DOCS / "explanation" / "shang.md")
    fetch, *lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert fetch == ["make", "data"]
    smaller = ("--splits", "2", "--draws", "1", "--data", tmp_path)
    for python, m, papers_, *words in lines:
        assert (python, m, papers_) == ("python", "-m", "papers")
        names = ["text" if last == "--dataset" else word for last, word in zip([None, *words], words, strict=False)]
        assert papers(*names, *smaller).status in (0, 1)
    assert (tmp_path / "shang" / "table3.csv").is_file()


def test_a_missing_data_set_is_refused(papers: Papers, tmp_path: Path) -> None:
    ending = papers("shang", "--dataset", "MNIST", "--data", tmp_path)
    assert (ending.status, ending.out) == (1, "")
    assert ending.err.strip() == "papers: dataset=MNIST is not available; use one of a9a, text, images."


def test_omitted_parts_state_how_to_add_them(tmp_path: Path) -> None:
    found, left_out = shang._loaders(tmp_path, None, None, 100, 100)
    assert list(found) == ["a9a", "text", "images"]
    assert [each.split()[0].rstrip(":") for each in left_out] == ["MNIST", "CIFAR-10", "real-sim"]
    assert list(shang._loaders(tmp_path, Path("x"), Path("y"), 100, 100)[0]) == ["a9a", "CIFAR-10", "real-sim", "text"]


@pytest.fixture(scope="module")
def rows() -> Rows:
    """Return rows of norm 1 along three of eight axes, with frequencies of 5, 3 and 1."""
    axes = np.repeat([0, 1, 2], [500, 300, 100])
    return Rows.of(sparse.csr_array(np.eye(8)[np.random.default_rng(0).permutation(axes)]))


def test_every_mechanism_has_an_arm_and_names_are_unique() -> None:
    assert {arm.mechanism for arm in ARMS} == set(MECHANISMS)
    assert len({arm.name for arm in ARMS}) == len(ARMS)


def test_mechanisms_that_the_product_refuses_exist_only_with_printed_noise(rows: Rows) -> None:
    for arm in ARMS:
        if arm.calibration == "printed":
            product = dataclasses.replace(arm, calibration="paper")
            with pytest.raises(Refused):
                product.true_epsilon(rows, n_components=2, epsilon=0.1, delta=1e-3)


@pytest.mark.parametrize("arm", [ANALYZE_GAUSS, REFINED, GAUSSIAN, MOD_SULQ], ids=lambda arm: arm.name)
def test_a_seed_determines_the_result_of_a_method(arm: Arm, rows: Rows) -> None:
    first, again, other = (arm.run(rows, n_components=2, epsilon=0.9, delta=1e-4, seed=(seed,)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-6
    np.testing.assert_allclose(first @ first.T, np.eye(2), atol=1e-9)


def test_tight_noise_has_the_requested_epsilon_and_printed_noise_its_true_one(rows: Rows) -> None:
    wishart = Arm(mechanism="wishart", calibration="printed")
    tight, gaussian, none = (
        arm.true_epsilon(rows, n_components=2, epsilon=0.1, delta=1e-3) for arm in (ANALYZE_GAUSS, GAUSSIAN, wishart)
    )
    assert tight == 0.1
    assert gaussian == pytest.approx(0.0369, abs=1e-4)
    assert none == np.inf


def test_losses_too_large_for_the_accountant_have_no_stated_epsilon() -> None:
    requested = Settings(epsilon=1.0, delta=1e-3, n_records=30_000, steps=30_000)
    assert FORMULAS["dp_vrpca"].noise(requested) < 0.02
    assert formula_epsilon("dp_vrpca", requested) == np.inf


def test_a_calibration_that_a_mechanism_lacks_is_refused(rows: Rows) -> None:
    with pytest.raises(Refused, match="laplace has no calibration=paper"):
        Arm(mechanism="laplace", calibration="paper").true_epsilon(rows, n_components=2, epsilon=1.0, delta=1e-4)


@pytest.mark.parametrize("mechanism", ["wishart", "noisy_power"])
def test_printed_algorithms_find_strong_directions(mechanism: str, rows: Rows) -> None:
    """Run printed algorithms at epsilon 400 on 900 rows: both strong directions must be found.

    The printed noise is far below the eigenvalues 500 and 300.
    """
    found = Arm(mechanism=mechanism, calibration="printed").run(
        rows, n_components=2, epsilon=400.0, delta=1e-3, seed=(0,)
    )
    assert np.linalg.norm(found[:, :2]) ** 2 == pytest.approx(2.0, abs=0.1)


@pytest.mark.audit_only
@pytest.mark.parametrize("reduced", [False, True])
def test_printed_steps_capture_more_variance_but_only_slightly(reduced: bool, rows: Rows) -> None:  # noqa: FBT001
    """Run printed steps without noise: the captured variance must grow, but only a little.

    Each step adds ``x x^T`` divided by 2n or n, so the growth is at most e^(share of the variance), and twice that for
    the first direction.
    """
    gains = []
    for seed in range(5):
        start = np.linalg.qr(np.random.default_rng(seed).standard_normal((8, 2)))[0]
        rng = np.random.default_rng(seed)
        found, _ = ascend(rows.matrix, 2, noise_std=0.0, rng=rng, reduced=reduced)
        before, after = (np.linalg.norm(rows.matrix @ columns) ** 2 for columns in (start, found.T))
        gains.append(after / before)
    assert all(1.0 < gain < np.exp(2 * 500 / 900) + 0.1 for gain in gains)


def test_printed_noise_enters_the_steps(rows: Rows) -> None:
    still, _ = ascend(rows.matrix, 2, noise_std=0.0, rng=np.random.default_rng(0))
    shaken, _ = ascend(rows.matrix, 2, noise_std=50.0, rng=np.random.default_rng(0))
    assert np.linalg.norm(still @ shaken.T) ** 2 < 1.9


AXES = sparse.csr_array(np.eye(6)[np.repeat([0, 1, 2], [500, 300, 100])])


def test_lemma_2_holds_for_aligned_bases_alone() -> None:
    checks = list(check_lemma())
    assert len(checks) == 4
    assert all(check["holds"] for check in checks)
    assert checks[0]["got"] > 0.3, "some pairs are far from each other"


def test_a_criterion_that_is_not_squared_fails_lemma_2(monkeypatch: pytest.MonkeyPatch) -> None:
    def rooted(one: np.ndarray, other: np.ndarray) -> tuple[float, float]:
        return float(np.linalg.norm(one - other)), float(np.linalg.norm(one @ one.T - other @ other.T))

    monkeypatch.setattr(shang_claims, "_criteria", rooted)
    assert not next(check for check in check_lemma() if "small angles" in check["name"])["holds"]


def errors(power: float) -> Callable[[dict[str, float], int], float]:
    """Return a function of errors that fall as a power of n, up to a tenth that depends on the seed."""
    return lambda facts, seed: facts["n"] ** power * (1.0 + 0.1 * math.sin(seed * facts["n"]))


@pytest.mark.parametrize(("power", "verdict"), [(-2.2, "holds"), (-1.0, "does not hold")])
def test_a_slope_decides_about_a_rate(power: float, verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shang_claims, "ARMS", {key: errors(power) for key in shang_claims.ARMS})
    tables: dict[str, list[Row]] = {"rates": [], "slopes": []}
    checks = list(check_rates(tables, SEEDS))
    row = next(row for row in tables["slopes"] if (row["theorem"], row["quantity"]) == ("Theorem 4", "n"))
    assert row["claimed"] == pytest.approx(-1.8, abs=0.05), "a square, with a logarithm"
    assert row["slope"] == pytest.approx(power, abs=0.1)
    assert row["verdict"] == verdict
    assert [check["holds"] for check in checks if "Theorem 4" in check["name"]] == [power > -2.0, power <= -2.0]


@pytest.mark.audit_only
def test_releases_of_scaled_columns_are_noise() -> None:
    table: list[Row] = []
    assert all(check["holds"] for check in check_columns(table, SEEDS[:1]))
    assert [row["captured"] < 0.35 for row in table] == [False, True, True]


def test_the_steps_are_those_of_the_printed_formulas() -> None:
    """Compare one step of Algorithm 1 on one row with the printed formula.

    The orthonormalization is by the inverse square root.
    """
    start = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 2)))[0]
    rows = sparse.csr_array(np.eye(6)[[3]])
    found, _ = ascend(rows, 2, noise_std=0.0, rng=np.random.default_rng(0), start=start, steps=1, step_size=0.25)
    raw = start.copy()
    raw[3] += 0.25 * 2.0 * start[3]
    values, turn = np.linalg.eigh(raw.T @ raw)
    np.testing.assert_allclose(found.T, raw @ (turn / np.sqrt(values)) @ turn.T, atol=1e-10)


def test_more_epochs_reduce_the_error_and_each_restarts_the_movement() -> None:
    quiet = {"noise_std": 0.0, "reduced": True}
    (one, moved), (many, _) = (
        ascend(AXES, 2, rng=np.random.default_rng(0), epochs=epochs, **quiet)  # type: ignore[arg-type]
        for epochs in (1, 20)
    )
    captured = [float(np.linalg.norm(AXES @ each.T) ** 2) / 800.0 for each in (one, many)]
    assert captured[0] < captured[1]
    assert captured[1] == pytest.approx(1.0, abs=0.01)
    assert 0.0 < moved < 1.0


@pytest.mark.audit_only
def test_a_quick_run_is_not_judged(papers: Papers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shang_claims, "ARMS", {key: errors(-1.0) for key in shang_claims.ARMS})
    monkeypatch.setattr(shang_claims, "check_sweep", lambda *_, **__: iter(()))
    ending = papers("shang-claims", "--quick")
    assert ending.status == 0
    assert "not judged" in ending.out
