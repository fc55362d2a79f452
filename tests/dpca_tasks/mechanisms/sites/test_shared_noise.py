"""Joint mechanisms whose sites share noise under masks: accuracy, opened noise, resumption and refusals.

When sites are lost, the noise of every roster size that the planned attempts allow must be drawable on the planned
grid.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dpca_tasks.accounting import events
from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.accounting.closed_brackets import usual_colluders
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem, Terms
from dpca_tasks.mechanisms.sites.cape_agn import CapeAgn
from dpca_tasks.mechanisms.sites.cape_pca import CapePca
from dpca_tasks.mechanisms.sites.dps_pca import DpsPcaOfSites
from dpca_tasks.mechanisms.sites.joint_plan import JointPlan, LocalParties, Membership
from dpca_tasks.mechanisms.tensors.tensor_releases import TensorProblem
from dpca_tasks.mechanisms.warm_start import Start
from dpca_tasks.metrics import subspace_distance
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.refinement.public_map import PublicMap
from dpca_tasks.sites.roster import NOISE_BOUND, Member, Roster, check_room
from dpca_tasks.sites.rounds import SHARES, share_bits

D, RECORDS = 30, 400
PROBLEM = Problem(n_features=D, clip_norm=1.0, relation="replace_one", records_at_most=RECORDS)
CLEAR, USUAL = PrivacyTarget(epsilon=3e3, delta=1e-6), PrivacyTarget(epsilon=1.0, delta=1e-6)
START = Start(
    matrix=np.diag(np.r_[900.0, 500.0, 200.0, np.ones(D - 3)]),
    noise_std=2.0,
    n_records=1600.0,
    map=PublicMap.identity(D),
)
KINDS: dict[str, Any] = {
    "cape_pca": CapePca(n_components=3, rounds=1),
    "cape_pca in rounds": CapePca(n_components=3, rounds=3),
    "cape_pca with a warm start": CapePca(n_components=3, warm=True, start=lambda: START),
    "dps_pca": DpsPcaOfSites(n_components=3, rows_kept=12),
}
each_of_kinds = pytest.mark.parametrize("mechanism", KINDS.values(), ids=KINDS)
STATED = {"artifact": "earlier@1", "digest": "0" * 64, "mean_square": START.mean_square}


def unit_rows():
    rows = np.random.default_rng(5).standard_normal((4 * RECORDS, D)) * np.r_[3.0, 2.5, 2.0, np.full(D - 3, 0.2)]
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def reservations(plan):
    return [
        InMemoryReservation(event=site.event, relation="replace_one", key=bytes([at + 1]) * 32)
        for at, site in enumerate(plan.sites)
    ]


def run(mechanism, plan, rows, kept):
    parts = np.split(rows, len(kept))
    curators = [Curator(ArrayBlocks(part), each) for part, each in zip(parts, kept, strict=True)]
    return mechanism.run(LocalParties(curators=curators, roster=plan.roster), with_start(plan))


def with_start(plan):
    return dataclasses.replace(plan, total=dataclasses.replace(plan.total, start=STATED))


@each_of_kinds
def test_with_little_noise_the_sites_find_the_directions_of_all_rows(mechanism):
    rows = unit_rows()
    plan = mechanism.plan([PROBLEM] * 4, [CLEAR] * 4, session="clear")
    found = run(mechanism, plan, rows, reservations(plan)).components
    np.testing.assert_allclose(found @ found.T, np.eye(3), atol=1e-12)
    assert subspace_distance(found, np.linalg.eigh(rows.T @ rows)[1][:, -3:].T) < 0.05


@each_of_kinds
def test_each_site_is_charged_the_joint_event_and_the_strictest_site_determines_the_noise(mechanism):
    targets = [dataclasses.replace(USUAL, epsilon=epsilon) for epsilon in (2.0, 0.5, 1.0, 1.0)]
    plan = mechanism.plan([PROBLEM] * 4, targets, session="unlike")
    for target, site in zip(targets, plan.sites, strict=True):
        whole = gaussian_noise_multiplier(epsilon=target.epsilon, delta=target.delta) ** -2
        charged = [step["noise_multiplier"] ** -2 for step in events.steps(site.event)]
        assert len(charged) == mechanism.count_rounds(plan)
        assert whole * (1 - 1e-9) < sum(charged) < whole * (1 + 1e-12)
        assert site.epsilon_at_most <= target.epsilon
    strictest = max(site.noise_multiplier for site in plan.sites)
    assert plan.total.noise_multiplier == pytest.approx(strictest * np.sqrt(4 / 3), rel=1e-12)


@pytest.mark.parametrize(("colluders", "dropouts"), [(0, 0), (1, 0), (1, 1)])
def test_the_opened_noise_is_pooled_but_for_colluders_and_dropouts(colluders, dropouts):
    """Open the total of empty rows: its noise is that of pooled data, increased for colluders and dropouts.

    The variance of 32,000 numbers has a relative std of 0.008; a false alarm of 5 stds has a probability of 6e-7.
    """
    mechanism = CapePca(n_components=3, colluders=colluders, dropouts=dropouts, rounds=1)
    problem = dataclasses.replace(PROBLEM, n_features=250)
    plan = mechanism.plan([problem] * 4, [USUAL] * 4, session="empty")
    released = run(mechanism, plan, np.zeros((8, 250)), reservations(plan)).released
    pooled = 2 * gaussian_noise_multiplier(epsilon=1.0, delta=1e-6) ** 2
    entries = np.concatenate([np.sqrt(2) * released[np.triu_indices(250, 1)], np.diag(released)])
    assert np.var(entries) / pooled == pytest.approx(4 / (4 - colluders - dropouts), rel=5 * np.sqrt(2 / entries.size))


@pytest.mark.parametrize("lost", [(), ("0002",)])
@pytest.mark.parametrize("terms", [{"rounds": 3}, {"warm": True, "start": lambda: START}])
def test_the_opened_noise_of_a_map_is_pooled_in_units_of_the_mapped_records(terms, lost):
    """Open rounds of empty rows: the noise of each has the stated std, whatever its map, and with a site lost too.

    The variance of 1,225 numbers has a relative std of 0.04; a false alarm of 5 stds has a probability of 6e-7.
    """
    problem = dataclasses.replace(PROBLEM, n_features=50)
    start = dataclasses.replace(START, matrix=np.diag(np.r_[900.0, np.ones(49)]), map=PublicMap.identity(50))
    given = {**terms, "start": lambda: start} if "start" in terms else terms
    mechanism = CapePca(n_components=3, colluders=1, **given)
    membership = Membership(names=tuple(f"{at:04d}" for at in range(4)), attempts=2)
    plan = mechanism.plan([problem] * 4, [USUAL] * 4, session="empty", membership=membership)
    parties = Watched(plan, np.zeros((8, 50)), lost=lost)
    answers = mechanism.run(parties, with_start(plan)).rounds.answers
    multiplier = gaussian_noise_multiplier(epsilon=1.0, delta=1e-6, releases=2)
    honest = 2 if lost else 3
    for answer, share in zip(answers, [0.1, 0.3, 0.6] if mechanism.rounds == 3 else [1.0], strict=True):
        entries = answer.released[:50, :50][np.triu_indices(50, 1)]
        assert np.var(entries) / answer.noise_std**2 == pytest.approx(1.0, rel=5 * np.sqrt(2 / entries.size))
        unit = answer.clip_norm**2 + answer.constant**2
        pooled = unit * multiplier / np.sqrt(share) * np.sqrt((4 - len(lost)) / honest)
        assert answer.noise_std == pytest.approx(pooled, rel=1e-9)
    assert {len(query.roster.names) for query in parties.opened} == {4 - len(lost)}


@each_of_kinds
def test_a_restarted_release_opens_the_same_sums_under_new_masks(mechanism):
    rows, plan = unit_rows(), mechanism.plan([PROBLEM] * 4, [USUAL] * 4, session="again")
    kept = reservations(plan)
    first = run(mechanism, plan, rows, kept).components
    np.testing.assert_array_equal(run(mechanism, plan, rows, kept).components, first)
    fresh = [dataclasses.replace(each, key=bytes([99, at]) * 16, steps={}) for at, each in enumerate(kept)]
    assert subspace_distance(run(mechanism, plan, rows, fresh).components, first) > 1e-3, "another key, other noise"


@each_of_kinds
def test_rosters_without_honest_sites_and_impossible_rounds_are_refused(mechanism):
    with pytest.raises(InvalidInput, match="colluders=3 and dropouts=1"):
        dataclasses.replace(mechanism, colluders=3, dropouts=1).plan([PROBLEM] * 4, [USUAL] * 4, session="")
    with pytest.raises(InvalidInput, match="needs at least 2 sites"):
        mechanism.plan([PROBLEM], [USUAL], session="")
    if isinstance(mechanism, DpsPcaOfSites):
        with pytest.raises(InvalidInput, match="rows_kept=2"):
            dataclasses.replace(mechanism, rows_kept=2).plan([PROBLEM] * 4, [USUAL] * 4, session="")


class Watched:
    """In-process parties that record the queries and may have lost sites."""

    def __init__(self, plan, rows, *, lost=()):
        parts = zip(np.split(rows, 4), reservations(plan), strict=True)
        self.parties = LocalParties(
            curators=[Curator(ArrayBlocks(part), kept) for part, kept in parts], roster=plan.roster
        )
        self.requested, self.opened, self.lost = [], [], lost

    def open(self, query, *, roster, index):
        self.requested.append((index, query))
        self.opened.append(self.parties.open(query, roster=roster.without(*self.lost), index=index))
        return self.opened[-1]

    def noised_parts(self, part, plans):
        raise AssertionError("sites that share noise must not send separately noised parts")


@each_of_kinds
def test_a_site_derives_the_same_query_from_plan_and_public_arrays(mechanism):
    plan = mechanism.plan([PROBLEM] * 4, [USUAL] * 4, session="alone")
    parties = Watched(plan, unit_rows())
    mechanism.run(parties, with_start(plan))
    assert len(parties.requested) == mechanism.count_rounds(plan)
    for index, query in parties.requested:
        own = mechanism.query(plan, index=index, public=query.public_inputs())
        assert own.digest() == query.digest()


@each_of_kinds
def test_unplanned_rounds_and_public_arrays_are_refused(mechanism):
    plan = mechanism.plan([PROBLEM] * 4, [USUAL] * 4, session="alone")
    start = dict(mechanism.inputs(plan, index=0))
    mechanism.query(plan, index=0, public=start)
    wide = np.zeros((D, 65), np.int64)
    for index, public in (
        (99, start),
        (-1, start),
        (0, {"others": np.zeros(3)}),
        (0, {**start, "directions": np.zeros((2, 2))}),
        (0, {**start, "directions": wide}),
        (0, {**start, "directions": wide, "reductions": wide}),
        (0, {**start, "directions": np.zeros(3, np.int64)}),
        (0, {**start, "norm": np.ones(2)}),
    ):
        with pytest.raises(InvalidInput, match="is not one of the"):
            mechanism.query(plan, index=index, public=public)


@pytest.mark.parametrize("name", ["cape_pca in rounds", "cape_pca with a warm start"])
def test_a_site_refuses_maps_and_norms_for_which_products_are_not_exact(name):
    mechanism = KINDS[name]
    plan = mechanism.plan([PROBLEM] * 4, [USUAL] * 4, session="alone")
    start = dict(mechanism.inputs(plan, index=0))
    long, short = np.full((D, 2), 2**12, np.int64), np.zeros((D, 1), np.int64)
    for public in (
        {**start, "directions": long, "reductions": long},
        {**start, "directions": short, "reductions": long[:, :2]},
        {**start, "norm": np.array([2.5])},
        {**start, "norm": np.array([np.nan])},
    ):
        with pytest.raises(InvalidInput):
            mechanism.query(plan, index=0, public=public)


@each_of_kinds
def test_a_membership_names_and_weighs_the_sites_and_every_attempt_is_charged(mechanism):
    membership = Membership(names=("b", "a", "d", "c"), weights=(1, 3, 1, 1), attempts=2)
    plan = mechanism.plan([PROBLEM] * 4, [USUAL] * 4, session="membership", membership=membership)
    rounds = mechanism.count_rounds(plan)
    assert [(each.name, each.weight) for each in plan.roster.members] == [("b", 1), ("a", 3), ("d", 1), ("c", 1)]
    assert {events.count_steps(site.event) for site in plan.sites} == {2 * rounds}
    whole = gaussian_noise_multiplier(epsilon=USUAL.epsilon, delta=USUAL.delta) ** -2
    for site in plan.sites:
        charged = sum(step["noise_multiplier"] ** -2 for step in events.steps(site.event))
        assert whole * (1 - 1e-9) < charged < whole * (1 + 1e-12)
    multiplier = plan.sites[0].noise_multiplier
    assert plan.total.noise_multiplier == pytest.approx(3 * multiplier * np.sqrt(4 / 3), rel=1e-12)
    with pytest.raises(InvalidInput, match=r"4 sites need as many names \(got 2\)"):
        mechanism.plan([PROBLEM] * 4, [USUAL] * 4, session="", membership=Membership(names=("a", "b")))


def test_a_smaller_roster_states_the_noise_that_it_has():
    """Lose one of four sites, with one declared colluder: the stated noise must follow the smaller roster.

    The total then has 3 shares of noise, each large enough for 2 honest sites, instead of 4 shares for 3.
    """
    mechanism = CapePca(n_components=3, colluders=1)
    membership = Membership(names=tuple("abcd"), attempts=2)
    plan = mechanism.plan([PROBLEM] * 4, [USUAL] * 4, session="smaller", membership=membership)
    whole, smaller = (mechanism.run(Watched(plan, unit_rows(), lost=lost), plan).noise for lost in ((), ("c",)))
    assert whole is not None
    assert smaller is not None
    assert smaller["std"] / whole["std"] == pytest.approx(np.sqrt(3 / 2 * 3 / 4), rel=1e-12)


ROWS = Problem(n_features=6, clip_norm=1.0, relation="replace_one", records_at_most=1000)
TOPICS = TensorProblem(model="topics", words_at_most=10, records_at_most=1000, relation="replace_one", n_features=6)
MIXTURE = TensorProblem(model="mixture", clip_norm=1.0, records_at_most=1000, relation="add_remove", n_features=6)
SMALLER_ROSTERS_KINDS: list[tuple[Any, Terms]] = [
    (CapePca(n_components=2), ROWS),
    (CapePca(n_components=2, rounds=3), ROWS),
    (CapePca(n_components=2, warm=True), ROWS),
    (DpsPcaOfSites(n_components=2, rows_kept=4, iterations=2, burn_in=1), ROWS),
    (DpsPcaOfSites(n_components=2, rows_kept=4, iterations=8, burn_in=1, message_clip=1.0), ROWS),
    (CapeAgn(n_components=2), TOPICS),
    (CapeAgn(n_components=2), MIXTURE),
]
each_kind = pytest.mark.parametrize(("mechanism", "problem"), SMALLER_ROSTERS_KINDS)
EPSILONS = (1e-6, 1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0)


def seated(
    mechanism: Any, problem: Terms, *, sites: int, attempts: int, epsilons: list[float], delta: float = 1e-6
) -> JointPlan | None:
    targets = [PrivacyTarget(epsilon=epsilon, delta=delta) for epsilon in epsilons]
    membership = Membership(names=tuple(f"{at:02}" for at in range(sites)), attempts=attempts)
    try:
        found: JointPlan = mechanism.plan([problem] * sites, targets, session="views", membership=membership)
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
    """Return one roster of every size with which a round may continue after losing sites."""
    least = full.size if full.attempts == 1 else max(2, full.colluders + 1)
    return [full.without(*full.names[left:]) for left in range(least, full.size + 1)]


def scales(mechanism: Any, plan: JointPlan, roster: Roster) -> Iterator[tuple[Any, int, int]]:
    """Yield the noise shares of the first two rounds with their orders and squared scales.

    `check_room` refuses a roster whose noise cannot be drawn on the grid.
    """
    for index in range(min(mechanism.count_rounds(plan), 2)):
        query = mechanism.query(plan, index=index, public=mechanism.inputs(plan, index=index))
        assert plan.roster is not None
        missing = {*plan.roster.names} - {*roster.names}
        roster = plan.roster_of(index).without(*missing)
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
    text: dict[int, set[str]] = {1: set(), 2: set()}
    for epsilon, attempts in itertools.product(np.geomspace(1e-7, 1e-4, 31), text):
        targets = [PrivacyTarget(epsilon=float(epsilon), delta=1e-12)] * 10
        membership = Membership(names=tuple("abcdefghij"), attempts=attempts)
        try:
            CapePca(n_components=2).plan([ROWS] * 10, targets, session="one", membership=membership)
        except InvalidInput as refused:
            text[attempts].add(str(refused))
    assert not any("to 4 sites" in line for line in text[1])
    (found,) = (line for line in text[2] if "after its attempts reduce it to 4 sites" in line)
    assert "\n" not in found


def test_the_grid_of_the_third_moment_is_checked_before_any_charge() -> None:
    small = PrivacyTarget(epsilon=1e-7, delta=1e-14)
    with pytest.raises(InvalidInput, match="too large for integers"):
        CapeAgn(n_components=2).plan([TOPICS] * 10, [small] * 10, session="core")


def test_the_smallest_roster_has_the_sites_that_need_the_most_noise() -> None:
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
