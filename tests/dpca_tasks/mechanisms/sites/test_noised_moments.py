"""Baselines over separately noised moments: what they make of them without noise to speak of, and what is refused."""

import dataclasses

import numpy as np
import pytest

from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.sites.joint_plan import LocalParties
from dpca_tasks.mechanisms.sites.noised_moments import Conv, DpDis, Local
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.records.sources import ArrayBlocks

PROBLEM = Problem(n_features=8, clip_norm=1.0, relation="replace_one", records_at_most=400)
CLEAR = PrivacyTarget(epsilon=3e4, delta=1e-6)


def sites(*, seed=0):
    rng = np.random.default_rng(seed)
    parts = [rng.standard_normal((400, 8)) * np.geomspace(1, 0.05, 8) * scale for scale in (0.2, 0.1, 0.3)]
    return [part / np.maximum(1, np.linalg.norm(part, axis=1, keepdims=True)) for part in parts]


def run(mechanism, parts, target=CLEAR):
    plan = mechanism.plan([PROBLEM] * len(parts), [target] * len(parts), session="")
    curators = [
        Curator(ArrayBlocks(part), InMemoryReservation(event=plan.event, relation="replace_one", key=bytes([at]) * 32))
        for at, (part, plan) in enumerate(zip(parts, plan.sites, strict=False))
    ]
    return mechanism.run(LocalParties(curators=curators), plan)


@pytest.mark.parametrize(("kind", "of"), [(Conv, slice(None)), (DpDis, slice(None)), (Local, slice(1))])
def test_with_hardly_any_noise_each_finds_the_directions_of_its_rows(kind, of):
    parts = sites()
    rows = np.vstack(parts[of])
    leading = np.linalg.eigh(rows.T @ rows)[1][:, -3:]
    found = run(kind(n_components=3), parts).components
    np.testing.assert_allclose(found @ found.T, np.eye(3), atol=1e-12)
    assert 3 - np.sum((found @ leading) ** 2) < 1e-3


def test_every_site_is_charged_for_one_release_and_local_for_the_first_alone():
    targets = [dataclasses.replace(CLEAR, epsilon=epsilon) for epsilon in (0.5, 1.0, 2.0)]
    plans = Conv(n_components=2).plan([PROBLEM] * 3, targets, session="").sites
    assert [plan.noise_multiplier for plan in plans] == sorted((plan.noise_multiplier for plan in plans), reverse=True)
    assert [plan.event for plan in Local(n_components=2).plan([PROBLEM] * 3, targets, session="").sites] == [
        plans[0].event
    ]


@pytest.mark.parametrize(
    ("problems", "said"),
    [
        ([PROBLEM], "1 site is too few"),
        ([PROBLEM, dataclasses.replace(PROBLEM, n_features=9)], "8, 9 columns"),
        ([PROBLEM, dataclasses.replace(PROBLEM, relation="zero_out")], "replace_one, zero_out as"),
        ([PROBLEM, dataclasses.replace(PROBLEM, center="private")], "center=private"),
    ],
)
@pytest.mark.parametrize("kind", [Conv, DpDis, Local], ids=lambda kind: kind.name)
def test_sites_that_do_not_fit_are_refused(kind, problems, said):
    with pytest.raises(InvalidInput, match=said):
        kind(n_components=2).plan(problems, [CLEAR] * len(problems), session="")
