"""The reproduction of streams: checks that cost little, arms on few nights, and attacks that see what is planted."""

import json

import numpy as np
import pytest

from dpca_tasks.accounting.power_series import divided
from flows.reproductions import continual
from flows.reproductions.continual_arms import Nights, captured
from flows.reproductions.continual_attack import ATTACKS, attack
from flows.reproductions.continual_forms import THREE, CorrelatedNoise, exact_multipliers, restated_worst
from flows.reproductions.second_moments import a9a_entries
from tests.flows.conftest import Command

CHEAP = (
    continual._check_strategies,
    continual._check_tree_and_buffers,
    continual._check_events,
    continual._check_worst_histories,
    continual._check_program,
    continual._check_correlated_noise,
)


@pytest.mark.parametrize("checks", CHEAP, ids=lambda checks: checks.__name__.removeprefix("_check_"))
def test_checks_hold(checks) -> None:
    found = list(checks())
    assert found
    assert [check["name"] for check in found if not check["holds"]] == []


def test_the_command_prints_the_checks(dpca: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continual, "_checks", lambda runs: list(continual._check_events()) * runs)
    ending = dpca("reproduce", "continual", "--direct", "--runs", "2", "--json")
    checks = json.loads(ending.out)["checks"]
    assert ending.status == 0, checks
    assert len(checks) == 2 * 3


def test_a_stream_captures_more_than_separate_releases() -> None:
    """Eight nights of a ninth of a9a: enough to stand above the noise."""
    nights = Nights(rows=a9a_entries()[::9], clip_norm=14.0**0.5, ticks=8, run=0)
    means, versions = captured(nights)
    assert means["stream"] > means["tree"] > means["independent releases"] - 0.05
    assert means["stream"] > means["independent releases"] + 0.05
    assert len(versions) == 8
    again = continual._check_retry(Nights(rows=a9a_entries()[::90], clip_norm=14.0**0.5, ticks=24, run=1))
    assert again["holds"]
    aligned = {check["name"]: check for check in continual._check_alignment(versions)}
    assert all(check["holds"] for check in aligned.values())


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_see_what_is_planted_and_no_more(name: str) -> None:
    """Within five standard errors: a false alarm in two million seeds."""
    each = ATTACKS[name]
    found, error = attack(each, trials=80)
    assert each.is_found == (name not in ("a canary that stays", "a canary that is edited, erased and back"))
    assert abs(found - each.expected) <= 5 * error


def test_buffers_are_those_of_their_weights() -> None:
    exact = exact_multipliers(THREE)
    noise = np.random.default_rng(0).standard_normal((50, 2, 3))
    prefix = divided(np.ones(50), THREE.weights(50))
    direct = np.einsum("ts,sij->tij", [[prefix[t - s] if t >= s else 0.0 for s in range(50)] for t in range(50)], noise)
    assert exact.prefix(noise) == pytest.approx(direct, abs=1e-12)


def test_noise_from_a_key_is_made_again_and_rounded_once() -> None:
    made = CorrelatedNoise(key=3, scale=1000.0, size=40, inverse=(1.0, 0.5, 0.375))
    assert np.array_equal(made.upto(3), made.upto(3))
    alone = [np.random.default_rng((3, at)).standard_normal(40) for at in (1, 2)]
    assert np.array_equal(made.upto(2), np.rint(0.5 * (1000.0 * alone[0]) + 1.0 * (1000.0 * alone[1])))


def test_a_record_with_one_version_moves_a_stream_by_its_column() -> None:
    assert restated_worst(12, versions=1) == pytest.approx(1.0)
