"""A roster that shrinks: every size that the attempts of a plan allow can draw its noise on the planned grid."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dpca_tasks.accounting.site_noise import usual_colluders
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem, Terms
from dpca_tasks.mechanisms.sites.cape_agn import CapeAgn
from dpca_tasks.mechanisms.sites.cape_pca import CapePca
from dpca_tasks.mechanisms.sites.dps_pca import DpsPcaOfSites
from dpca_tasks.mechanisms.sites.joint_plan import JointPlan, Seats
from dpca_tasks.mechanisms.tensors.tensor_releases import TensorProblem
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.sites.masks import NOISE_BOUND, check_room
from dpca_tasks.sites.roster import Member, Roster
from dpca_tasks.sites.shares import SHARES, share_bits

ROWS = Problem(n_features=6, clip_norm=1.0, relation="replace_one", records_at_most=1000)
TOPICS = TensorProblem(model="topics", words_at_most=10, records_at_most=1000, relation="replace_one", n_features=6)
MIXTURE = TensorProblem(model="mixture", clip_norm=1.0, records_at_most=1000, relation="add_remove", n_features=6)
KINDS: list[tuple[Any, Terms]] = [
    (CapePca(n_components=2), ROWS),
    (DpsPcaOfSites(n_components=2, rows_kept=4, iterations=2, burn_in=1), ROWS),
    (DpsPcaOfSites(n_components=2, rows_kept=4, iterations=8, burn_in=1, message_clip=1.0), ROWS),
    (CapeAgn(n_components=2), TOPICS),
    (CapeAgn(n_components=2), MIXTURE),
]
each_kind = pytest.mark.parametrize(("mechanism", "problem"), KINDS)
EPSILONS = (1e-6, 1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0)


def seated(
    mechanism: Any, problem: Terms, *, sites: int, attempts: int, epsilons: list[float], delta: float = 1e-6
) -> JointPlan | None:
    targets = [PrivacyTarget(epsilon=epsilon, delta=delta) for epsilon in epsilons]
    seats = Seats(names=tuple(f"{at:02}" for at in range(sites)), attempts=attempts)
    try:
        found: JointPlan = mechanism.plan([problem] * sites, targets, session="views", seats=seats)
    except InvalidInput:
        return None
    return found


def views(
    mechanism: Any, problem: Terms, *, sizes: tuple[int, ...], attempts: tuple[int, ...], epsilons: tuple[float, ...]
) -> Iterator[JointPlan]:
    for sites, tries, epsilon, delta in itertools.product(sizes, attempts, epsilons, (1e-10, 1e-6)):
        tolerated = itertools.product(sorted({0, usual_colluders(sites), sites - 1}), (0, 1))
        for colluders, dropouts in tolerated:
            if colluders + dropouts < sites:
                made = dataclasses.replace(mechanism, colluders=colluders, dropouts=dropouts)
                plan = seated(made, problem, sites=sites, attempts=tries, epsilons=[epsilon] * sites, delta=delta)
                if plan is not None:
                    yield plan


def admissible(full: Roster) -> list[Roster]:
    """Return a roster of every size that a round may go on with."""
    least = full.size if full.attempts == 1 else max(2, full.colluders + 1)
    return [full.without(*full.names[left:]) for left in range(least, full.size + 1)]


def scales(mechanism: Any, plan: JointPlan, roster: Roster) -> Iterator[tuple[Any, int, int]]:
    """Iterate over the shares of the rounds, their orders and parameters; what cannot be drawn is refused here."""
    for index in range(min(mechanism.rounds, 2)):
        query = mechanism.query(plan, index=index, public=mechanism.inputs(plan, index=index))
        check_room(roster, steps_per_unit=query.steps_per_unit)
        for name in (roster.names[0], roster.names[-1]):
            share = SHARES[query.layout.kind](roster=roster, site=name)
            yield share, query.layout.order, share.squared_scale(query.sensitivity("l2") * query.steps_per_unit)


@each_kind
def test_every_roster_that_the_attempts_allow_has_noise_on_the_planned_grid(mechanism: Any, problem: Terms) -> None:
    found = list(views(mechanism, problem, sizes=(3, 7), attempts=(1, 2), epsilons=(1e-6, 1e-3)))
    assert len(found) > 30
    for plan in found:
        assert plan.roster is not None
        for roster in admissible(plan.roster):
            assert list(scales(mechanism, plan, roster))


@pytest.mark.audit_only
@each_kind
def test_every_roster_of_many_sites_has_noise_on_the_planned_grid(mechanism: Any, problem: Terms) -> None:
    for plan in views(mechanism, problem, sizes=(2, 3, 4, 5, 7, 10, 16, 24), attempts=(1, 2, 3), epsilons=EPSILONS):
        assert plan.roster is not None
        for roster in admissible(plan.roster):
            assert list(scales(mechanism, plan, roster))


@each_kind
def test_every_subset_of_unlike_sites_has_noise_on_the_planned_grid(mechanism: Any, problem: Terms) -> None:
    plan = seated(mechanism, problem, sites=5, attempts=2, epsilons=[1e-5, 10.0, 1e-3, 0.5, 0.5])
    assert plan is not None
    assert plan.roster is not None
    for size in (2, 3, 4):
        for missing in itertools.combinations(plan.roster.names, 5 - size):
            roster = plan.roster.without(*missing)
            assert list(scales(mechanism, plan, roster))


@each_kind
def test_noise_is_drawn_at_the_coarsest_and_the_finest_plan_that_is_accepted(mechanism: Any, problem: Terms) -> None:
    found = [
        plan
        for epsilon in (*np.geomspace(1e-7, 1e-2, 26).tolist(), 50.0)
        if (plan := seated(mechanism, problem, sites=10, attempts=2, epsilons=[epsilon] * 10)) is not None
    ]
    for plan in (found[0], found[-1]):
        assert plan.roster is not None
        for roster in (plan.roster, plan.roster.smallest):
            for share, order, scale in scales(mechanism, plan, roster):
                key = subkey(bytes(32), label="noise", info=share.site.encode())
                drawn = share.draw(key, order, squared_scale=scale)
                assert 0 < np.abs(drawn).max() < NOISE_BOUND


def test_a_plan_is_refused_in_one_line_where_only_the_full_roster_has_a_grid() -> None:
    said: dict[int, set[str]] = {1: set(), 2: set()}
    for epsilon, attempts in itertools.product(np.geomspace(1e-7, 1e-4, 31), said):
        targets = [PrivacyTarget(epsilon=float(epsilon), delta=1e-12)] * 10
        seats = Seats(names=tuple("abcdefghij"), attempts=attempts)
        try:
            CapePca(n_components=2).plan([ROWS] * 10, targets, session="one", seats=seats)
        except InvalidInput as refused:
            said[attempts].add(str(refused))
    assert not any("among 4 sites" in line for line in said[1])
    (found,) = (line for line in said[2] if "among 4 sites, to which its attempts may shrink it" in line)
    assert "\n" not in found


def test_the_grid_of_the_core_is_checked_before_anything_is_charged() -> None:
    small = PrivacyTarget(epsilon=1e-7, delta=1e-14)
    with pytest.raises(InvalidInput, match="no grid of integers"):
        CapeAgn(n_components=2).plan([TOPICS] * 10, [small] * 10, session="core")


def test_the_smallest_roster_is_of_the_sites_that_need_most_noise() -> None:
    members = tuple(
        Member(name=name, records=10, noise_multiplier=multiplier, weight=weight)
        for name, multiplier, weight in (("a", 1.0, 1), ("b", 9.0, 1), ("c", 4.0, 3), ("d", 2.0, 1))
    )
    roster = Roster(session="s", members=members, colluders=1, attempts=2)
    assert roster.smallest.names == ("b", "c")
    assert dataclasses.replace(roster, attempts=1).smallest.names == roster.names
    assert dataclasses.replace(roster, colluders=0).smallest.honest == 2
    assert dataclasses.replace(roster, colluders=0, dropouts=3).smallest.honest == 1
    assert dataclasses.replace(roster, colluders=3).smallest.names == roster.names
    finer = share_bits(dataclasses.replace(roster, attempts=1), sensitivity=1e4, degree=1)
    assert share_bits(roster, sensitivity=1e4, degree=1) <= finer
