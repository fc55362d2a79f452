"""The reproduction of streams: checks that cost little, and arms on few nights."""

import json

import numpy as np
import pytest

from dpca_tasks.accounting.power_series import divided
from papers import continual
from papers.continual import THREE, Nights, captured, exact_multipliers
from papers.lib.public_data import a9a_entries
from tests.papers.conftest import Papers

CHEAP = (
    continual._check_strategies,
    continual._check_tree_and_buffers,
    continual._check_events,
)


@pytest.mark.parametrize("checks", CHEAP, ids=lambda checks: checks.__name__.removeprefix("_check_"))
def test_checks_hold(checks) -> None:
    found = list(checks())
    assert found
    assert [check["name"] for check in found if not check["holds"]] == []


def test_the_command_prints_the_checks(papers: Papers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continual, "_checks", lambda runs: list(continual._check_events()) * runs)
    ending = papers("continual", "--runs", "2", "--json")
    checks = json.loads(ending.out)["checks"]
    assert ending.status == 0, checks
    assert len(checks) == 2 * 3


def test_a_stream_captures_more_than_separate_releases() -> None:
    """Eight nights of a ninth of a9a: enough to stand above the noise."""
    nights = Nights(rows=a9a_entries()[0][::9], clip_norm=14.0**0.5, ticks=8, run=0)
    means = captured(nights)
    assert means["stream"] > means["tree"] > means["independent releases"] - 0.05
    assert means["stream"] > means["independent releases"] + 0.05


def test_buffers_are_those_of_their_weights() -> None:
    exact = exact_multipliers(THREE)
    noise = np.random.default_rng(0).standard_normal((50, 2, 3))
    prefix = divided(np.ones(50), THREE.weights(50))
    direct = np.einsum("ts,sij->tij", [[prefix[t - s] if t >= s else 0.0 for s in range(50)] for t in range(50)], noise)
    assert exact.prefix(noise) == pytest.approx(direct, abs=1e-12)
