"""The reproduction of capePCA on a small model; the command runs it at the size of the paper, for minutes."""

import json
from pathlib import Path

import numpy as np
import pytest

from dpca_tasks.mechanisms.base import PrivacyTarget
from papers import cape_pca
from papers.cape_pca import AT_LEAST, EPSILONS, STORED, equal_weights_ratio
from papers.lib.public_data import centred_mnist
from papers.lib.sites import ARMS, Model, Sites, Truth, components_of
from tests.papers.conftest import Papers

SMALL = Model(n_features=12, n_components=3)


def energy(arm: str, sites: Sites, target: PrivacyTarget) -> float:
    truth = Truth(data="model", moment=np.diag(SMALL.variances), n_components=3)
    return truth.energy(components_of(arm, sites, target, n_components=3, seed=1)) / truth.best


def test_the_rows_have_norm_one_and_the_papers_variances() -> None:
    rows, variances = SMALL.draw(50, seed=3), Model().variances
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, rtol=1e-12)
    assert variances[:50].sum() == pytest.approx(275.0)
    assert (variances[50:] <= 0.5).all()


def test_sites_are_cut_in_order_and_their_sums_add_up() -> None:
    rows = SMALL.draw(100, seed=0)
    sites = Sites(rows, [10, 30, 20])
    assert [source.n_records for source in sites.sources] == [10, 30, 20]
    np.testing.assert_allclose(sites.sums.sum(axis=0), (rows[:60].T @ rows[:60])[np.triu_indices(12)], rtol=1e-12)


def test_every_arm_finds_the_directions_where_there_is_hardly_any_noise_and_local_none_where_there_is_much() -> None:
    sites = Sites(SMALL.draw(2_000, seed=0), [100] * 20)
    clear, dim = (PrivacyTarget(epsilon=epsilon, delta=0.01, allow_large_delta=True) for epsilon in (1e3, 0.1))
    assert min(energy(arm, sites, clear) for arm in ARMS) > 0.99
    assert energy("local", sites, dim) < energy("cape", sites, dim) - 0.1


def test_weights_by_size_gain_nothing_and_equal_weights_lose() -> None:
    sizes = [10, 30, 60]
    assert equal_weights_ratio(sizes, [0.1, 0.3, 0.6], size=50_000) == pytest.approx(3.0, rel=0.05)
    assert equal_weights_ratio(sizes, [1 / 3] * 3, size=50_000) == pytest.approx(12.7, rel=0.05)


def test_images_are_centred_by_those_that_are_public(tmp_path: Path) -> None:
    folder = tmp_path / "mnist"
    folder.mkdir()
    for name, level in (("train", 200), ("t10k", 50)):
        (folder / f"{name}-images-idx3-ubyte").write_bytes(bytes(16) + bytes([level]) * (784 * 3))
    np.testing.assert_allclose(centred_mnist(tmp_path, n_rows=2), np.full((2, 784), 150 / 255))


def test_the_command_prints_at_least_ten_checks_and_draws_every_sweep(
    papers: Papers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A small model is far from the paper's energies, so their checks fail: all others hold."""
    monkeypatch.setattr(cape_pca, "Model", lambda: SMALL)
    monkeypatch.setattr(cape_pca, "RECORDS", (40, 60))
    monkeypatch.setattr(cape_pca, "SITES", (5, 10))
    monkeypatch.setattr(cape_pca, "DELTAS", (1e-3, 1e-2))
    monkeypatch.setattr(cape_pca, "_AT_ONE_SITE", 60)
    monkeypatch.setattr(cape_pca, "UNEQUAL", (30,) * 8 + (120, 120))
    monkeypatch.setattr(
        cape_pca, "STORED", {"epsilon": STORED["epsilon"], "records": {40.0: 0.0}, "delta": {1e-3: 0.0}}
    )
    ending = papers(*("cape-pca", "--runs", "1", "--json"), "--data", tmp_path, "--out", tmp_path / "out")
    assert ending.out, ending.err
    found = json.loads(ending.out)
    held = {check["name"]: check["holds"] for check in found["checks"]}
    assert ending.status == 1
    assert len(held) == len(found["checks"]) >= 10
    assert all(held[name] for name in held if not name.startswith(("cape:", "cape with", "best", "energy"))), held
    assert found["left_out"][0].startswith("MNIST")
    assert found["charged"].startswith("nothing")
    assert {row["arm"] for row in found["tables"]["sweeps"]} == set(ARMS)
    assert {Path(file).name for file in found["files"]} == {
        f"sweeps{end}" for end in (".csv", ".md", "-model.svg", "-model.png")
    }


def test_expected_energies_stand_at_every_epsilon() -> None:
    assert {len(floors) for floors in AT_LEAST.values()} == {len(EPSILONS)}
    assert tuple(STORED["epsilon"]) == EPSILONS
