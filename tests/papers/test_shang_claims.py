"""Claims of Shang et al. on tiny data: each check holds, and fails if its claim is falsified."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import sparse

from papers import shang_claims
from papers.lib.ascents import ascend
from papers.shang_claims import SEEDS, Row, check_columns, check_lemma, check_rates
from tests.papers.conftest import Papers

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
