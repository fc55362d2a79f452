"""Lemmas of the smooth sensitivity paper, checked on small inputs; the command takes a minute."""

import json
import math

import numpy as np
import pytest

from dpca_tasks.accounting.smooth_sensitivity import local_sensitivity
from papers import smooth_lemmas
from papers.lib.claims import Claim
from tests.papers.conftest import Papers


def test_a_search_finds_the_rotation_that_the_bound_allows() -> None:
    bound = float(local_sensitivity(3.0, relation="add_remove", n_components=1, n_features=5))
    assert smooth_lemmas.turned_most(3.0) == pytest.approx(bound, rel=1e-4)


def test_two_perpendicular_directions_are_far_separate_in_l1() -> None:
    assert smooth_lemmas.largest_l1(2) == pytest.approx(2.0)
    assert smooth_lemmas.largest_l1(200) == pytest.approx(20.0)


def test_the_printed_bound_has_no_cap_below_one_record() -> None:
    assert smooth_lemmas.printed_bound(5.0, smoothness=0.1) == pytest.approx(
        max(*(math.exp(-0.1 * k) * math.sqrt(2) / (5 - k) for k in range(5)), math.exp(-0.5) * math.sqrt(2))
    )
    assert smooth_lemmas.printed_bound(4.001, smoothness=0.1) > 900


@pytest.mark.parametrize(
    "part",
    [smooth_lemmas.sensitivity, smooth_lemmas.smoothness, smooth_lemmas.eigengap],
    ids=lambda part: part.__name__,
)
def test_checks_hold_and_make_claims(part) -> None:
    claims: list[Claim] = []
    checks = list(part(claims, []))
    assert checks
    assert claims
    assert [check["name"] for check in checks if not check["holds"]] == []


def test_wrong_bounds_fail_their_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smooth_lemmas, "local_sensitivity", lambda gap, **_: np.array(1.0 / gap))
    monkeypatch.setattr(smooth_lemmas, "smooth_bound", lambda gap, **_: 1.0 / math.sqrt(1.0 + gap))
    assert any(not check["holds"] for check in smooth_lemmas.sensitivity([], []))
    assert any(not check["holds"] for check in smooth_lemmas.smoothness([], []))
    assert any(not check["holds"] for check in smooth_lemmas.records([], []))


def test_more_records_are_enough_for_a_smaller_eigengap() -> None:
    assert smooth_lemmas.enough_records(0.59, 2, seed=1) < 64
    assert smooth_lemmas.enough_records(0.1, 2, seed=1) > 2.5 * smooth_lemmas.enough_records(0.2, 2, seed=1)


def test_the_example_has_no_accuracy_at_any_size() -> None:
    assert smooth_lemmas._smooth_error(10_001, 10_000, seed=(1,)) > 0.9
    assert smooth_lemmas._smooth_error(50_000, 30_000, seed=(1,)) < 0.01
    assert smooth_lemmas._global_error(np.random.default_rng(1)) > 0.9


def test_the_command_prints_claims(papers: Papers, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("example", "gap_of_a_sample", "records", "tails", "risk"):
        monkeypatch.setattr(smooth_lemmas, name, lambda *_: iter(()))
    ending = papers("smooth-lemmas", "--json")
    found = json.loads(ending.out)
    assert ending.status == 0, found
    verdicts = {each["item"]: each["verdict"] for each in found["claims"]}
    assert verdicts["Theorem 5, l2"] == verdicts["Lemma 11"] == "holds"
    assert verdicts["Theorem 5, l1"] == verdicts["Corollary 12, the bound as printed"] == "does not hold"
    assert found["seeds"] == [1, 2, 3, 4, 5]
