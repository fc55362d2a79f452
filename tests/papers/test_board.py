"""Board of methods: cells of runs, skipped runs, the true guarantee of each method, and the page."""

import math
import sys
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from scipy import sparse

from dpca_tasks.accounting import events
from dpca_tasks.accounting.epsilon_bracket import epsilon_bracket
from dpca_tasks.mechanisms.subspace import MECHANISMS
from papers import board
from papers.board import CONTESTANTS, true_epsilon
from papers.lib import covariances
from papers.lib.children import Answer, Child, Failed, OutOfTime
from papers.lib.public_data import DataSet
from tests.papers.conftest import Papers

ROWS = sparse.csr_array(np.repeat(np.eye(6), [3000, 2000, *[50] * 4], axis=0))
REQUESTED = {
    "analyze_gauss",
    "analyze_gauss, refined",
    "OpenDP",
    "wishart",
    "CoinPress 2020",
    "Dong et al. 2022, SeparateCov",
}


class Nearby:
    """Stub of the child process: the functions run in this process, and OpenDP never finishes."""

    def __init__(self, _command: Any) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def call(self, *, seconds: float, method: str, **request: Any) -> Answer:
        if method == "opendp":
            raise OutOfTime(f"{seconds} s")
        if request.get("paper") == "separate":
            raise Failed("ValueError: no | such thing")
        made = {"mechanism": board.run_ours, "paper": board.run_paper}[method](request)
        return Answer(directions=made, seconds=2.0)


@pytest.fixture
def nearby(monkeypatch: pytest.MonkeyPatch) -> None:
    one = DataSet(name="made", words="along the axes", n_components=2, load=lambda: ROWS)
    two = DataSet(name="other", words="nowhere", n_components=2, load=lambda: ROWS, missing="other is not there")
    monkeypatch.setattr(board, "Child", Nearby)
    monkeypatch.setattr(board, "data_sets", lambda _data: [one, two])
    monkeypatch.setattr(board, "CONTESTANTS", [each for each in CONTESTANTS if each.name in REQUESTED])


@pytest.mark.usefixtures("nearby")
def test_a_board_states_every_cell_and_writes_a_page(tmp_path: Path) -> None:
    page = tmp_path / "board.md"
    made = board.reproduce(peers=Path("python"), epsilon=[4.0, 1.0], runs=3, limit=5.0, page=page)
    cells = {(cell["method"], cell["epsilon"]): cell for cell in made["cells"]}
    assert {method for method, _ in cells} == REQUESTED
    assert cells["analyze_gauss", 1.0]["runs"] == 2  # only two runs, because a third one would exceed the time limit
    assert cells["analyze_gauss", 4.0]["captured"] > 0.99
    assert cells["analyze_gauss, refined", 4.0]["captured"] > 0.99
    assert [cells["OpenDP", epsilon]["ending"] for epsilon in (1.0, 4.0)] == ["does not finish", "not tried"]
    assert cells["Dong et al. 2022, SeparateCov", 1.0]["ending"] == "refused"
    assert cells["wishart", 1.0]["delta"] == 0.0
    assert made["left_out"] == ["other: other is not there"]
    assert [check["holds"] for check in made["checks"]] == [True, True]
    text = page.read_text(encoding="utf-8")
    for part in (
        "## made",
        "| does not finish | ≥ ",
        "| not tried | ≥ ",
        "no \\| such thing",
        "- other: other is not there",
    ):
        assert part in text


@pytest.mark.usefixtures("nearby")
def test_stored_cells_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "cells.jsonl"
    first = board.reproduce(peers=Path("python"), epsilon=[1.0], runs=1, cells=kept)
    monkeypatch.setattr(Nearby, "call", None)
    again = board.reproduce(peers=Path("python"), epsilon=[1.0], runs=1, cells=kept)
    assert again == first


@pytest.mark.usefixtures("nearby")
def test_libraries_without_an_interpreter_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = board.reproduce(epsilon=[1.0], runs=1)
    assert "OpenDP" not in {cell["method"] for cell in made["cells"]}
    assert "--peers" in made["left_out"][0]


def test_the_true_epsilon_of_each_method_is_bounded_from_the_known_side() -> None:
    for each in CONTESTANTS:
        bound, true = true_epsilon(each, epsilon=1.0, n_components=10, n_features=123, n_records=32_561)
        assert bound == ("at least" if each.group == "library" else "at most")
        assert true > 1.5 if each.group == "library" else true <= 1.0


def test_the_command_lists_omitted_methods(papers: Papers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ending = papers("board", "--dataset", "mnist", "--data", "none", "--page", "board.md")
    assert ending.status == 0
    assert "left out: mnist: " in ending.err
    assert "- diffprivlib and OpenDP: " in Path("board.md").read_text(encoding="utf-8")


def test_every_mechanism_is_on_the_board():
    assert {each.request["mechanism"] for each in CONTESTANTS if each.group == "dpca"} == set(MECHANISMS)


STRONG = sparse.csr_array(np.repeat(np.eye(8), [4000, 2000, *[50] * 6], axis=0))
"""Two directions of many rows."""


@pytest.mark.parametrize(
    "directions",
    [
        covariances.amin_covariance(STRONG, n_components=2, epsilon=50.0),
        covariances.coinpress_covariance(STRONG, n_components=2, epsilon=50.0, delta=1e-6, largest=1.0),
        covariances.separate_covariance(STRONG, n_components=2, epsilon=50.0, delta=1e-6),
        covariances.adaptive_covariance(STRONG, n_components=2, epsilon=50.0, delta=1e-6),
    ],
    ids=["amin", "coinpress", "separate", "adaptive"],
)
def test_a_method_finds_strong_directions(directions: np.ndarray) -> None:
    np.testing.assert_allclose(directions @ directions.T, np.eye(2), atol=1e-6)
    assert np.square(directions[:, :2]).sum() == pytest.approx(2.0, abs=0.05)


def test_noise_has_the_std_that_its_zcdp_needs() -> None:
    """Compare the std of 20,100 noise values with what zCDP requires: 5 standard errors are 2.5 %.

    Replacing a row moves the covariance by sqrt 2 squared norms over n.
    """
    n, d, rho = 100, 200, 0.5
    empty = sparse.csr_array((n, d))
    least = math.sqrt(2) / math.sqrt(2 * rho) / n
    upper = np.triu_indices(d)
    noise = covariances._noisy(empty, rho=rho, cut=0.5, rng=np.random.default_rng(1))[upper]
    assert np.std(noise) == pytest.approx(least / 4, rel=0.025)
    found, _ = covariances._step(np.zeros((n, d)), rho=rho, rng=np.random.default_rng(2))
    tail = math.log(10)
    gamma = math.sqrt(d + 2 * math.sqrt(d * tail) + 2 * tail)
    assert np.std(found[upper]) == pytest.approx(gamma**2 * least, rel=0.025)


def test_rows_are_clipped_to_the_norm_of_the_noise() -> None:
    """Run with negligible noise: rows must be clipped to the norm to which the noise is scaled."""
    long = sparse.csr_array(np.repeat([[1.0, 0.0]], 10, axis=0))
    found = covariances._noisy(long, rho=1e12, cut=0.5, rng=np.random.default_rng(3))
    assert found[0, 0] == pytest.approx(0.25, rel=1e-3)
    far = np.repeat([[100.0, 0.0]], 10, axis=0)
    gamma = math.sqrt(2 + 2 * math.sqrt(2 * math.log(10)) + 2 * math.log(10))
    assert covariances._step(far, rho=1e12, rng=np.random.default_rng(4))[0][0, 0] == pytest.approx(gamma**2, rel=1e-3)


def test_adaptive_cov_spends_the_requested_budget() -> None:
    rho = covariances.adaptive_rho(epsilon=1.0, delta=1e-6)
    both = events.composed(events.gaussian(1 / math.sqrt(2 * 0.875 * rho)), events.approximate(math.sqrt(rho) / 2, 0.0))
    found = epsilon_bracket(both, delta=1e-6, within=0.01)
    assert 0.95 < found.lower <= found.upper <= 1.0


def test_amin_et_al_charge_twice_the_cost_of_a_vector() -> None:
    assert covariances.amin_epsilon(n_components=1, epsilon=1.0) == pytest.approx(0.75)
    assert covariances.amin_epsilon(n_components=9, epsilon=1.0) == pytest.approx(0.55)


METHODS = """
import sys
from papers.lib.children import rows_of
from papers.lib.children import serve

def endless(request):
    while True:
        pass

def exits(request):
    sys.exit(3)

serve({"rows": lambda request: rows_of(request["rows"]).toarray(), "wrong": lambda request: 1 / 0, "endless": endless,
       "exits": exits})
"""


def test_a_child_answers_refuses_is_stopped_and_restarts(tmp_path: Path) -> None:
    rows = str(tmp_path / "rows.npz")
    sparse.save_npz(rows, sparse.csr_array(np.eye(2, 3)))
    with Child([sys.executable, "-c", METHODS]) as child:
        with pytest.raises(Failed, match="ZeroDivisionError"):
            child.call(seconds=60, method="wrong", rows=rows)
        with pytest.raises(OutOfTime, match=r"0\.05 s"):
            child.call(seconds=0.05, method="endless", rows=rows)
        answer = child.call(seconds=60, method="rows", rows=rows)
        assert answer.directions.tolist() == np.eye(2, 3).tolist()
        assert answer.seconds >= 0
        with pytest.raises(Failed, match="status 3"):
            child.call(seconds=60, method="exits", rows=rows)
