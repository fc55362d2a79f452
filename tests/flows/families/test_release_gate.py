"""The gate reads nothing but two published subspaces: the verdict of one, and the directions of both."""

from typing import Any

import numpy as np
import pytest

from flows.families.release_gate import drift_from, judge
from storage.artifacts.subspace import PrivateSubspace


def subspace(*columns: int, above: int | None = 2, features: int = 6, **others: Any) -> PrivateSubspace:
    """Return a subspace of unit vectors."""
    outcome = {name: fact for name, fact in {"above_noise": above, **others}.items() if fact is not None}
    return PrivateSubspace(components=np.eye(features)[list(columns)], manifest={"outcome": outcome})


@pytest.mark.parametrize(
    ("candidate", "champion", "reason"),
    [
        (subspace(0, 1, above=0), None, "no component stands above the noise"),
        (subspace(0, 1, failed=True), subspace(0, 1), "no component stands above the noise"),
        (subspace(0, 1, above=None), None, "nothing in the release tells"),
        (subspace(0, 1), subspace(0, 1, features=7), "the columns are not those"),
        (subspace(2, 3), subspace(0, 1), "drift 1 is above 0.5"),
        (subspace(2, 1, 0, above=3), subspace(0, 3, 4, 5, above=4), "drift 0.75 is above 0.5"),
    ],
)
def test_what_is_noise_or_has_turned_away_is_held(
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
def test_what_stands_above_the_noise_and_holds_the_champions_directions_passes(
    candidate: PrivateSubspace, champion: PrivateSubspace | None, drift: float | None
) -> None:
    judged = judge(candidate, champion, drift_at_most=0.5)
    assert judged.passes
    assert judged.drift == pytest.approx(drift) if drift is not None else judged.drift is None


def test_random_directions_lack_what_the_docstring_says() -> None:
    """The mean over 400 draws lies within 0.03 of 1 - k/d: five of its standard deviations, from seed 0."""
    draws = np.random.default_rng(0)
    champion, found = subspace(0, 1), []
    for _ in range(400):
        components = np.linalg.qr(draws.normal(size=(6, 2)))[0].T
        candidate = PrivateSubspace(components=components, manifest={"outcome": {"above_noise": 2}})
        found.append(drift_from(candidate, champion) or 0.0)
    assert np.mean(found) == pytest.approx(1 - 2 / 6, abs=0.03)


def test_signs_and_order_do_not_matter() -> None:
    turned = PrivateSubspace(components=-np.eye(6)[[1, 0]], manifest={"outcome": {"above_noise": 2}})
    assert drift_from(turned, subspace(0, 1)) == 0.0


def test_directions_within_the_noise_of_a_release_hold_nothing_of_the_champion() -> None:
    """By chance, noise directions hold a part of any others: all of them, where there are as many as columns."""
    candidate = subspace(0, 1, 2, 3, 4, 5, above=1)
    assert drift_from(candidate, subspace(0, 1, 2, above=3)) == pytest.approx(2 / 3)
    assert not judge(candidate, subspace(0, 1, 2, above=3), drift_at_most=0.5).passes
