"""CAPE noise variances, floating-point messages, and joint tensor components of several sites with their baselines.

CAPE's variances are compared with explicit conditioning of all messages. Floating-point messages must have masks that
cancel and that hide each single message. Joint components are tested for accuracy in both rounds, opened noise,
charges, refusals and resumption. Baselines over separately noised moments are tested with negligible noise.
"""

import dataclasses
from typing import Any

import numpy as np
import pytest

from dpca_tasks.accounting import events
from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.sites.cape_agn import CapeAgn, counted
from dpca_tasks.mechanisms.sites.joint_plan import Cape, LocalParties, Membership, least_scale, masked_messages, mu_of
from dpca_tasks.mechanisms.sites.noised_moments import Conv, ConvAgn, DpDis, Local, LocalAgn
from dpca_tasks.mechanisms.tensors.tensor_releases import TensorProblem
from dpca_tasks.noise.distributions import cube_weights, symmetric_weights
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.records.blocks import ArrayBlocks


def conditioned_mu(noise):
    """Return mu of a unit shift of site 0's message, given the masks of colluding and silent sites."""
    count, known = noise.sites - noise.silent, noise.colluders
    masks = noise.mask_variance * (np.eye(noise.sites) - 1 / noise.sites)
    honest, seen = np.arange(count - known), np.arange(count - known, noise.sites)
    given = masks[np.ix_(honest, honest)]
    if seen.size:
        cross = masks[np.ix_(honest, seen)]
        given = given - cross @ np.linalg.pinv(masks[np.ix_(seen, seen)]) @ cross.T
    return np.sqrt(np.linalg.inv(given + noise.share_variance * np.eye(len(honest)))[0, 0])


@pytest.mark.parametrize(("sites", "colluders", "dropouts"), [(2, 0, 0), (5, 1, 0), (10, 3, 2), (7, 0, 3), (4, 3, 0)])
@pytest.mark.parametrize("ratio", [1.0, 30.0, 1e6])
def test_gaussian_masks_give_exactly_what_is_requested(sites, colluders, dropouts, ratio):
    cape = Cape(sites=sites, colluders=colluders, dropouts=dropouts, masks="gaussian", mask_ratio=ratio)
    noise = cape.noise(scale=2.0)
    assert noise.view_mu() == pytest.approx(0.5, rel=1e-12)
    assert noise.view_mu() == pytest.approx(conditioned_mu(noise), rel=1e-6)


def test_the_total_has_pooled_noise_without_colluders_and_more_with_each():
    stds = [Cape(sites=10, colluders=colluders).noise(scale=3.0).total_std for colluders in range(4)]
    np.testing.assert_allclose(stds, [3.0 * np.sqrt(10 / honest) for honest in (10, 9, 8, 7)], rtol=1e-12)
    assert Cape(sites=10).tolerated == 3


@pytest.mark.parametrize(("colluders", "epsilon"), [(0, 1.39), (3, 1.55)])
def test_the_true_epsilon_of_the_printed_variances_exceeds_the_claim(colluders, epsilon):
    cape = Cape(sites=10, colluders=colluders, masks="gaussian", calibration="paper")
    noise = cape.noise(scale=1 / mu_of(epsilon=1.0, delta=1e-5))
    assert noise.view_epsilon(1e-5) == pytest.approx(epsilon, abs=0.01)
    assert noise.share_variance + noise.mask_variance * (1 - 1 / 10) == pytest.approx(
        mu_of(epsilon=1, delta=1e-5) ** -2
    )


def test_the_strictest_site_gets_its_mu_and_every_other_site_less():
    weights, mus = [1.0, 0.5, 0.1], [0.4, 0.3, 0.2]
    noise = Cape(sites=3, colluders=1).noise(scale=least_scale(weights=weights, sensitivities=[1.4] * 3, mus=mus))
    reached = [noise.view_mu(distance=1.4 * weight) / mu for weight, mu in zip(weights, mus, strict=True)]
    assert max(reached) == reached[0] == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"sites": 1}, "sites=1 must be at least 2"),
        ({"sites": 4, "colluders": 3, "dropouts": 1}, "colluders=3 and dropouts=1"),
        ({"sites": 4, "colluders": -1}, "colluders=-1"),
        ({"sites": 4, "calibration": "paper"}, "masks=gaussian"),
        ({"sites": 4, "masks": "gaussian", "mask_ratio": 1e13}, "mask_ratio=1"),
    ],
)
def test_impossible_settings_are_refused(settings, text):
    with pytest.raises(InvalidInput, match=text):
        Cape(**settings)


def test_the_sum_of_messages_is_that_of_the_sites_with_the_stated_noise_and_weights():
    """Compare the variance of the opened noise with the stated one, for sites with weights 1 and 0.5.

    The variance of 50,000 draws has a relative std of 0.0063; a false alarm of 6 stds has a probability of 2e-9.
    """
    size, noise = 100_000, Cape(sites=10, masks="gaussian").noise(scale=2.0)
    sums, weights = np.arange(10.0)[:, None] * np.ones(size), np.repeat([1.0, 0.5], size // 2)
    messages = masked_messages(sums, noise, weights, key=bytes(32))
    rest = (messages.sum(axis=0) - 45.0) / weights
    for half in np.split(rest, 2):
        assert abs(np.var(half) / noise.total_std**2 - 1) < 6 * np.sqrt(2 / half.size)
    assert np.std(messages[0] / weights) > 100 * noise.total_std, "one message alone says nothing"


D, K, SITES, RECORDS = 12, 3, 4, 1500
TOPICS = TensorProblem(n_features=D, model="topics", words_at_most=9, relation="replace_one", records_at_most=RECORDS)
MIXTURE = TensorProblem(n_features=D, model="mixture", clip_norm=2.5, relation="replace_one", records_at_most=RECORDS)
CLEAR, USUAL = PrivacyTarget(epsilon=3e3, delta=1e-6), PrivacyTarget(epsilon=1.0, delta=1e-6)
WEIGHTS = np.array([0.5, 0.3, 0.2])
MEANS = np.kron(np.eye(K), np.full(D // K, (D / K) ** -0.5))
"""Orthonormal means; as topics, each has the words of one block."""
KINDS: list[Any] = [CapeAgn(n_components=K), ConvAgn(n_components=K), LocalAgn(n_components=K)]
MODELS = [pytest.param(TOPICS, id="topics"), pytest.param(MIXTURE, id="mixture")]
every_model = pytest.mark.parametrize("problem", MODELS)


def rows_of(problem, *, seed=0):
    rng = np.random.default_rng(seed)
    which = rng.choice(K, SITES * RECORDS, p=WEIGHTS)
    if problem.model == "topics":
        return rng.multinomial(rng.integers(3, 12, which.size), MEANS[which] / (D / K) ** 0.5).astype(float)
    return MEANS[which] + np.sqrt(0.05) * rng.standard_normal((which.size, D))


def reservations(plan):
    return [
        InMemoryReservation(event=site.event, relation="replace_one", key=bytes([at + 1]) * 32)
        for at, site in enumerate(plan.sites)
    ]


class Watched(LocalParties):
    """In-process parties that record every opened total."""

    @property
    def opened(self):
        return self.__dict__.setdefault("kept", [])

    def open(self, query, *, roster, index):
        opened = super().open(query, roster=roster, index=index)
        self.opened.append(opened)
        return opened


def parties_of(plan, rows, kept=None):
    parts = np.split(rows, SITES)[: len(plan.sites)]
    curators = [Curator(ArrayBlocks(part), each) for part, each in zip(parts, kept or reservations(plan), strict=True)]
    return Watched(curators=curators, roster=plan.roster)


def found(mechanism, problem, target=CLEAR, *, kept=None, plan=None):
    plan = plan or mechanism.plan([problem] * SITES, [target] * SITES, session="clear")
    return mechanism.run(parties_of(plan, rows_of(problem), kept), plan)


@every_model
@pytest.mark.parametrize("mechanism", KINDS, ids=lambda kind: kind.name)
def test_with_little_noise_the_sites_find_the_components_of_all_rows(mechanism, problem):
    result = found(mechanism, problem)
    truth = MEANS / (D / K) ** 0.5 if problem.model == "topics" else MEANS
    np.testing.assert_allclose(result.components, truth, atol=0.09 if mechanism.name == "local_agn" else 0.05)
    np.testing.assert_allclose(result.weights, WEIGHTS, atol=0.05)
    if problem.model == "mixture":
        assert result.noise_variance == pytest.approx(0.05, rel=0.05)


@every_model
def test_each_site_is_charged_half_its_budget_in_each_round(problem):
    targets = [dataclasses.replace(USUAL, epsilon=epsilon) for epsilon in (2.0, 0.5, 1.0, 1.0)]
    for mechanism in KINDS:
        plan = mechanism.plan([problem] * SITES, targets, session="unlike")
        for target, site in zip(targets, plan.sites, strict=False):
            multiplier = gaussian_noise_multiplier(epsilon=target.epsilon, delta=target.delta, releases=2)
            assert [events.step_at(site.event, at) for at in range(2)] == [events.gaussian(multiplier)] * 2
            assert events.count_steps(site.event) == 2
        multipliers = [site.noise_multiplier for site in plan.sites]
        scale = {"cape_agn": max(multipliers) * np.sqrt(4 / 3), "local_agn": multipliers[0]}
        assert plan.total.noise_multiplier == pytest.approx(scale.get(mechanism.name, np.hypot.reduce(multipliers)))


@pytest.mark.parametrize(("colluders", "weights"), [(0, (1, 1, 1, 1)), (1, (1, 1, 1, 1)), (0, (2, 1, 1, 1))])
def test_the_opened_noise_of_both_rounds_is_pooled_but_for_colluders(colluders, weights):
    """Open totals of empty rows: the noise variance is that of pooled data, times N / H with H honest sites of N.

    The noise is scaled to equal variance in all coordinates; a false alarm of 5 stds has a probability of 6e-7.
    """
    mechanism = CapeAgn(n_components=8, colluders=colluders)
    problem = dataclasses.replace(TOPICS, n_features=60)
    membership = Membership(names=("a", "b", "c", "d"), weights=weights)
    plan = mechanism.plan([problem] * SITES, [USUAL] * SITES, session="empty", membership=membership)
    parties = parties_of(plan, np.zeros((SITES, 60)))
    mechanism.run(parties, plan)
    pooled = max(weights) * gaussian_noise_multiplier(epsilon=1.0, delta=1e-6, releases=2)
    for opened, weigh in zip(parties.opened, (symmetric_weights, cube_weights), strict=True):
        query = opened.query
        std = pooled * query.sensitivity("l2") * query.steps_per_unit
        noise = opened.total / weigh(query.layout.order, start=0, stop=query.layout.size) / std
        expected = SITES / (SITES - colluders)
        assert np.mean(noise**2) == pytest.approx(expected, rel=5 * np.sqrt(2 / noise.size) + 0.01)


@every_model
def test_the_query_of_the_second_round_depends_on_the_first_total_alone(problem):
    mechanism = CapeAgn(n_components=K)
    plan = mechanism.plan([problem] * SITES, [USUAL] * SITES, session="alone")
    parties = parties_of(plan, rows_of(problem))
    mechanism.run(parties, plan)
    for index, opened in enumerate(parties.opened):
        own = mechanism.query(plan, index=index, public=opened.query.public_inputs())
        assert own.digest() == opened.query.digest()
    assert len(parties.opened) == 2


@every_model
@pytest.mark.parametrize("mechanism", KINDS, ids=lambda kind: kind.name)
def test_a_restarted_release_gives_the_same_components(mechanism, problem):
    plan = mechanism.plan([problem] * SITES, [USUAL] * SITES, session="again")
    kept = reservations(plan)
    first = found(mechanism, problem, plan=plan, kept=kept)
    again = found(mechanism, problem, plan=plan, kept=kept)
    np.testing.assert_array_equal(again.components, first.components)
    assert sorted(kept[0].steps) == [0, 1]


@every_model
def test_a_second_round_that_loses_a_site_keeps_the_first_directions(problem):
    """Lose a site in the second round, which uses the directions of the full first round.

    Components of topics do not depend on scale; components of mixtures are divided by the record count of each total.
    """
    mechanism = CapeAgn(n_components=K, dropouts=1)
    plan = mechanism.plan(
        [problem] * SITES, [CLEAR] * SITES, session="lost", membership=Membership(names=tuple("abcd"), attempts=2)
    )
    whole = parties_of(plan, rows_of(problem))

    class Lost(Watched):
        def open(self, query, *, roster, index):
            smaller = roster.without("d") if index else roster
            return super().open(query, roster=smaller, index=index)

    parties = Lost(curators=whole.curators, roster=plan.roster)
    result = mechanism.run(parties, plan)
    assert [counted(opened.roster) for opened in parties.opened] == [4 * RECORDS, 3 * RECORDS]
    truth = MEANS / (D / K) ** 0.5 if problem.model == "topics" else MEANS
    np.testing.assert_allclose(result.components, truth, atol=0.06)


@every_model
def test_a_stored_second_round_keeps_its_directions_if_the_first_round_loses_a_site(problem):
    """Lose a site in the first round of a resumed run, whose second round is already stored.

    The resumed run draws fresh noise in the first round and resends the stored second round, which has other
    directions.
    """
    mechanism = CapeAgn(n_components=K, dropouts=1)
    membership = Membership(names=tuple("abcd"), attempts=2)
    plan = mechanism.plan([problem] * SITES, [CLEAR] * SITES, session="since", membership=membership)
    kept, rows = reservations(plan), rows_of(problem)
    mechanism.run(parties_of(plan, rows, kept), plan)

    class Lost(Watched):
        def open(self, query, *, roster, index):
            return super().open(query, roster=roster if index else roster.without("d"), index=index)

    parties = Lost(curators=parties_of(plan, rows, kept).curators, roster=plan.roster)
    result = mechanism.run(parties, plan)
    assert parties.opened[1].roster.size == SITES - 1
    truth = MEANS / (D / K) ** 0.5 if problem.model == "topics" else MEANS
    np.testing.assert_allclose(result.components, truth, atol=0.06)
    np.testing.assert_allclose(result.weights, WEIGHTS, atol=0.05)


@pytest.mark.parametrize("mechanism", KINDS, ids=lambda kind: kind.name)
def test_impossible_requests_are_refused(mechanism):
    with pytest.raises(InvalidInput, match="needs at least 2 sites"):
        mechanism.plan([TOPICS], [USUAL], session="")
    with pytest.raises(InvalidInput, match="components=12"):
        dataclasses.replace(mechanism, n_components=D).plan([TOPICS] * SITES, [USUAL] * SITES, session="")
    unlike = [TOPICS, dataclasses.replace(TOPICS, words_at_most=7)]
    with pytest.raises(InvalidInput, match="as words_at_most"):
        mechanism.plan(unlike, [USUAL] * 2, session="")
    with pytest.raises(InvalidInput, match="words_at_most=None"):
        mechanism.plan([dataclasses.replace(TOPICS, words_at_most=None)] * 2, [USUAL] * 2, session="")


@every_model
def test_unplanned_rounds_and_public_arrays_are_refused(problem):
    mechanism = CapeAgn(n_components=K)
    plan = mechanism.plan([problem] * SITES, [USUAL] * SITES, session="alone")
    largest = dict(mechanism.inputs(plan, index=1))
    assert mechanism.query(plan, index=1, public=largest).layout.order == K
    fine = dict(CapeAgn(n_components=2).inputs(plan, index=1))
    assert mechanism.query(plan, index=1, public=fine).layout.order == 2
    wrong = np.eye(D, K + 1, dtype=np.int64) << 24
    for index, public in (
        (2, fine),
        (0, fine),
        (1, {}),
        (1, fine | {"directions": wrong}),
        (1, fine | {"directions": wrong[:, :0]}),
        (1, fine | {"directions": np.zeros(D, np.int64)}),
        (1, fine | {"other": np.zeros(1)}),
        (1, fine | {"directions": fine["directions"].astype(np.float64)}),
    ):
        with pytest.raises(InvalidInput, match="is not one of the 2 planned"):
            mechanism.query(plan, index=index, public=public)
    least = np.full((D, 2), np.iinfo(np.int64).min)
    for directions in (0 * fine["directions"], 2 * fine["directions"], fine["directions"] + 2**12, least):
        with pytest.raises(InvalidInput, match="differ from orthonormal columns by"):
            mechanism.query(plan, index=1, public=fine | {"directions": directions})


@pytest.mark.parametrize("declared", [None, 0.02])
def test_a_variance_or_bound_that_contradicts_the_known_facts_is_refused(declared):
    problem = dataclasses.replace(MIXTURE, noise_variance=declared)
    mechanism = CapeAgn(n_components=K)
    plan = mechanism.plan([problem] * SITES, [USUAL] * SITES, session="alone")
    fine = dict(mechanism.inputs(plan, index=1))
    assert mechanism.query(plan, index=1, public=fine).layout.order == K
    most = MIXTURE.unit / D
    for variance in (np.nan, np.inf, -0.01, 1.01 * most, *([] if declared is None else [0.0, 0.021])):
        with pytest.raises(InvalidInput, match=r"noise_variance=.* must be"):
            mechanism.query(plan, index=1, public=fine | {"noise_variance": np.array([variance])})
    for norm in (np.nan, 0.0, 1.001 * fine["score_norm"].item(), 1e9):
        with pytest.raises(InvalidInput, match=r"score_norm=.* must be .* which follows"):
            mechanism.query(plan, index=1, public=fine | {"score_norm": np.array([norm])})


PROBLEM = Problem(n_features=8, clip_norm=1.0, relation="replace_one", records_at_most=400)
NOISED_MOMENTS_CLEAR = PrivacyTarget(epsilon=3e4, delta=1e-6)


def sites(*, seed=0):
    rng = np.random.default_rng(seed)
    parts = [rng.standard_normal((400, 8)) * np.geomspace(1, 0.05, 8) * scale for scale in (0.2, 0.1, 0.3)]
    return [part / np.maximum(1, np.linalg.norm(part, axis=1, keepdims=True)) for part in parts]


def run(mechanism, parts, target=NOISED_MOMENTS_CLEAR):
    plan = mechanism.plan([PROBLEM] * len(parts), [target] * len(parts), session="")
    curators = [
        Curator(ArrayBlocks(part), InMemoryReservation(event=plan.event, relation="replace_one", key=bytes([at]) * 32))
        for at, (part, plan) in enumerate(zip(parts, plan.sites, strict=False))
    ]
    return mechanism.run(LocalParties(curators=curators), plan)


@pytest.mark.parametrize(("kind", "of"), [(Conv, slice(None)), (DpDis, slice(None)), (Local, slice(1))])
def test_with_little_noise_each_baseline_finds_the_directions_of_its_rows(kind, of):
    parts = sites()
    rows = np.vstack(parts[of])
    leading = np.linalg.eigh(rows.T @ rows)[1][:, -3:]
    found = run(kind(n_components=3), parts).components
    np.testing.assert_allclose(found @ found.T, np.eye(3), atol=1e-12)
    assert 3 - np.sum((found @ leading) ** 2) < 1e-3


def test_every_site_is_charged_for_one_release_and_local_for_the_first_alone():
    targets = [dataclasses.replace(NOISED_MOMENTS_CLEAR, epsilon=epsilon) for epsilon in (0.5, 1.0, 2.0)]
    plans = Conv(n_components=2).plan([PROBLEM] * 3, targets, session="").sites
    assert [plan.noise_multiplier for plan in plans] == sorted((plan.noise_multiplier for plan in plans), reverse=True)
    assert [plan.event for plan in Local(n_components=2).plan([PROBLEM] * 3, targets, session="").sites] == [
        plans[0].event
    ]


@pytest.mark.parametrize(
    ("problems", "text"),
    [
        ([PROBLEM], "needs at least 2 sites"),
        ([PROBLEM, dataclasses.replace(PROBLEM, n_features=9)], "8, 9 columns"),
        ([PROBLEM, dataclasses.replace(PROBLEM, relation="zero_out")], "replace_one, zero_out as"),
        ([PROBLEM, dataclasses.replace(PROBLEM, center="private")], "center=private"),
    ],
)
@pytest.mark.parametrize("kind", [Conv, DpDis, Local], ids=lambda kind: kind.name)
def test_incompatible_sites_are_refused(kind, problems, text):
    with pytest.raises(InvalidInput, match=text):
        kind(n_components=2).plan(problems, [NOISED_MOMENTS_CLEAR] * len(problems), session="")
