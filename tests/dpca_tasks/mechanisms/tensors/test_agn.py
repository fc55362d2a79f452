"""AGN, AVN and the reference without privacy, which release tensor components.

AGN is tested for cost, accuracy, resumption after any step, and the inputs of its second query. AVN is pure epsilon-DP,
and the epsilons of its parts add up. The reference without privacy must be exact and require an acknowledgment.
"""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy.special import log_ndtr, ndtr

from dpca_tasks.accounting import events
from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.mechanisms.base import NO_GUARANTEE, PrivacyTarget
from dpca_tasks.mechanisms.tensors.agn import Agn
from dpca_tasks.mechanisms.tensors.avn import Avn
from dpca_tasks.mechanisms.tensors.non_private import NonPrivate
from dpca_tasks.mechanisms.tensors.tensor_releases import Eigenspace, TensorProblem, TensorReleases, moment_floor
from dpca_tasks.metrics import matched_errors, matched_weights
from dpca_tasks.noise.distributions import Cube, Symmetric
from dpca_tasks.privacy.curator import Curator, DisclosingCurator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.queries.words import PointTriples
from dpca_tasks.records.blocks import ArrayBlocks

RECORDS = 4000
TOPICS = np.array([[0.6, 0.4, 0.0, 0.0, 0.0], [0.0, 0.0, 0.3, 0.3, 0.4]])
MEANS = np.array([[0.8, 0.6, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]])
WEIGHTS = np.array([0.7, 0.3])
VARIANCE = 0.05


def documents(*, words=6, seed=1):
    """Return word counts of documents, one topic per document."""
    rng = np.random.default_rng(seed)
    topics = rng.choice(2, RECORDS, p=WEIGHTS)
    return np.stack([rng.multinomial(words, TOPICS[topic]) for topic in topics]).astype(np.float64)


def points(*, seed=2):
    """Return points of a two-component mixture around `MEANS`, with normal noise."""
    rng = np.random.default_rng(seed)
    parts = rng.choice(2, RECORDS, p=WEIGHTS)
    return MEANS[parts] + np.sqrt(VARIANCE) * rng.standard_normal((RECORDS, MEANS.shape[1]))


def topics_problem(**changes):
    facts = {"n_features": 5, "model": "topics", "words_at_most": 6, "relation": "replace_one"}
    return TensorProblem(**{**facts, "records_at_most": RECORDS, **changes})


def mixture_problem(**changes):
    facts = {"n_features": 4, "model": "mixture", "clip_norm": 1.5, "relation": "replace_one"}
    return TensorProblem(**{**facts, "records_at_most": RECORDS, **changes})


def target(epsilon, delta=1e-5):
    return PrivacyTarget(epsilon=epsilon, delta=delta)


def run(mechanism, rows, problem, requested, *, reservation=None, block_records=512, kind=Curator, **acknowledged):
    """Run a tensor mechanism on rows under one fixed noise key; return the result."""
    plan = mechanism.plan(problem, requested)
    kept = reservation or InMemoryReservation(event=plan.event, key=bytes(32), relation=problem.relation)
    return mechanism.run(kind(ArrayBlocks(rows, block_records=block_records), kept, **acknowledged), plan)


MODELS = {
    "topics": (documents, topics_problem, TOPICS),
    "mixture": (points, mixture_problem, MEANS),
}
AGN = Agn(components=2)


@pytest.mark.parametrize("split", [0.5, 0.2])
@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_both_releases_add_up_to_the_target(epsilon, split):
    plan = Agn(components=2, split=split).plan(topics_problem(), target(epsilon))
    squares = [step["noise_multiplier"] ** -2 for step in events.steps(plan.event)]
    mu = math.sqrt(sum(squares))
    delta = ndtr(-epsilon / mu + mu / 2) - math.exp(epsilon + log_ndtr(-epsilon / mu - mu / 2))
    assert 0.999e-5 < delta <= 1e-5 * (1 + 1e-12)  # tolerance for rounding of floats
    assert squares[0] / sum(squares) == pytest.approx(split)


@pytest.mark.parametrize("model", MODELS)
def test_components_and_weights_are_found_under_the_noise_of_one_key(model):
    rows, problem, truth = MODELS[model]
    found = run(AGN, rows(), problem(), target(4.0))
    assert matched_errors(found.components, truth).max() < 0.1
    np.testing.assert_allclose(matched_weights(found.components, found.weights, truth), WEIGHTS, atol=0.1)
    assert found.weights.tolist() == sorted(found.weights, reverse=True)
    assert found.model == model
    if model == "topics":
        assert found.noise_variance is None
        assert (found.components >= 0).all()
        np.testing.assert_allclose(found.components.sum(axis=1), 1.0)
    else:
        assert found.noise_variance == pytest.approx(VARIANCE, rel=0.1)


def test_a_declared_variance_is_used_unchanged():
    found = run(AGN, points(), mixture_problem(noise_variance=0.05), target(4.0))
    assert found.noise_variance == pytest.approx(0.05, rel=1e-9)


@pytest.mark.parametrize("model", MODELS)
def test_blocks_do_not_change_a_bit_and_either_step_is_resumed_without_new_noise(model):
    rows, problem, _ = MODELS[model]
    plan = AGN.plan(problem(), target(2.0))
    first = InMemoryReservation(event=plan.event, key=bytes(32), relation="replace_one")
    whole = run(AGN, rows(), problem(), target(2.0), reservation=first)
    assert sorted(first.steps) == [0, 1]
    for kept in ((), (0,), (0, 1)):
        steps = {step: first.steps[step] for step in kept}
        resumed = InMemoryReservation(event=plan.event, key=bytes(32), relation="replace_one", steps=steps)
        again = run(AGN, rows(), problem(), target(2.0), reservation=resumed, block_records=97)
        for name in ("components", "weights", "eigenvalues"):
            np.testing.assert_array_equal(getattr(again, name), getattr(whole, name))
        assert (again.noise_variance, again.outcome) == (whole.noise_variance, whole.outcome)


class Answering:
    """A curator without rows that returns fixed answers and records its queries."""

    def __init__(self, *answers):
        self.answers, self.requested = list(answers), []

    def release(self, query, distribution):
        self.requested.append((query, distribution))
        return self.answers[len(self.requested) - 1]

    def with_stored_inputs(self, query):
        return query


@pytest.mark.parametrize("model", MODELS)
def test_the_second_query_is_made_of_the_first_answer_and_public_facts_alone(model):
    _, problem, truth = MODELS[model]
    plan = AGN.plan(problem(), target(2.0))
    matrix = 4000 * ((truth.T * WEIGHTS) @ truth + 0.05 * np.eye(truth.shape[1]))
    curator: Any = Answering(matrix, np.ones((2, 2, 2)))
    AGN.run(curator, plan)
    (first, on_moment), (second, on_core) = curator.requested
    assert (type(on_moment), type(on_core)) == (Symmetric, Cube)
    assert [noise.event for noise in (on_moment, on_core)] == list(events.steps(plan.event))
    leading = np.linalg.eigh(matrix)[1][:, -2:]
    columns = second.directions / 2.0**24
    np.testing.assert_allclose(columns @ columns.T, leading @ leading.T, atol=1e-6)
    assert first.bits == plan.bits
    if model == "mixture":
        assert second.noise_variance == pytest.approx(0.05)
        means = (1.5 / 1.3) ** 2 - 4 * 0.05
        assert second.radius == pytest.approx(min(1.4 * math.sqrt(means + 2 * 0.05), 1.5))


def test_directions_lose_no_more_than_half_a_step_of_their_grid():
    releases = TensorReleases(problem=topics_problem(), components=2)
    matrix = 4000 * (TOPICS.T * WEIGHTS) @ TOPICS
    (columns,) = [releases.space(matrix, std=0.0).directions]
    np.testing.assert_allclose(columns.T @ columns, np.eye(2), atol=5 * 2.0**-24)
    assert (columns * 2.0**24 == np.rint(columns * 2.0**24)).all()


@pytest.mark.parametrize("kept", [1, 2, 3])
@pytest.mark.parametrize("variance", [0.0, 0.05, 1.5**2 / 4])
def test_scores_are_bounded_as_the_query_of_points_demands(kept, variance):
    releases = TensorReleases(problem=mixture_problem(), components=3)
    space = Eigenspace(
        values=np.arange(3.0, 3.0 - kept, -1.0),
        directions=np.eye(4)[:, :kept],
        requested=3,
        floor=0.0,
        noise_variance=variance,
    )
    query = releases.core_query(space, bits=20)
    assert isinstance(query, PointTriples)
    assert query.radius <= 1.5 * (1 + 1e-9)
    assert query.sensitivity("l2") <= 2.0 * (1 + 1e-12)


def test_components_that_noise_hides_are_reported():
    found = run(Agn(components=4), documents(), topics_problem(), target(0.3))
    assert found.outcome["requested"] == 4
    assert found.outcome["above"] < 4
    assert len(found.components) == found.outcome["found"] <= max(found.outcome["above"], 1)
    multiplier = Agn(components=4).plan(topics_problem(), target(0.3)).noise_multiplier
    assert found.outcome["floor"] == pytest.approx(moment_floor(5, noise_std=multiplier * math.sqrt(2)))


@pytest.mark.parametrize(
    ("problem", "epsilon", "text"),
    [
        (topics_problem(), 0.5, ()),
        (topics_problem(), 4.0, ("epsilon / 2 = 2 breaks the theorem",)),
        (mixture_problem(), 0.5, ("which replace_one breaks",)),
        (mixture_problem(relation="zero_out"), 0.5, ()),
        (mixture_problem(), 4.0, ("epsilon / 2 = 2 breaks the theorem", "which replace_one breaks")),
    ],
)
def test_printed_noise_states_its_true_epsilon_and_the_broken_condition(problem, epsilon, text):
    plan = Agn(components=2, calibration="paper").plan(problem, target(epsilon, 1e-5))
    assert [warning for warning in plan.warnings if "calibration=paper" in warning] == list(plan.warnings)
    assert len(plan.warnings) == bool(text)
    for words in text:
        assert words in plan.warnings[0]
    assert plan.real_epsilon is not None
    assert plan.certified == (plan.real_epsilon <= epsilon)
    multipliers = [step["noise_multiplier"] for step in events.steps(plan.event)]
    printed = 2 * math.sqrt(2 * math.log(2.5e5)) / epsilon
    moved = math.sqrt(2) if problem == mixture_problem() else 1.0
    np.testing.assert_allclose(multipliers, [printed / moved, printed])


def test_printed_noise_decomposes_too():
    found = run(Agn(components=2, calibration="paper"), documents(), topics_problem(), target(8.0))
    assert matched_errors(found.components, TOPICS).max() < 0.1


def test_large_rounding_losses_of_long_documents_are_reported():
    assert AGN.plan(topics_problem(), target(1.0)).warnings == ()
    (warning,) = AGN.plan(topics_problem(words_at_most=5000), target(1.0)).warnings
    assert "of the word pairs of a document of 5000 words" in warning


def test_an_undeclared_number_of_records_is_reported_if_a_variance_needs_it():
    assert AGN.plan(mixture_problem(), target(1.0)).warnings == ()
    (warning,) = AGN.plan(mixture_problem(records_declared=False), target(1.0)).warnings
    assert "declare the number of records, or noise_variance" in warning
    assert AGN.plan(mixture_problem(records_declared=False, noise_variance=0.05), target(1.0)).warnings == ()


@pytest.mark.parametrize(
    ("problem", "wrong", "rule"),
    [
        (topics_problem(), {"components": 5}, "below n_features=5"),
        (topics_problem(), {"components": 0}, "at least 1"),
        (topics_problem(words_at_most=None), {}, "state a public bound on the number of words"),
        (topics_problem(words_at_most=2), {}, "at least 3"),
        (topics_problem(clip_norm=1.0), {}, "are for model=mixture"),
        (topics_problem(model="graph"), {}, "must be topics or mixture"),
        (topics_problem(n_features=20_000), {}, "declare fewer columns"),
        (topics_problem(), {"split": 1.0}, "split=1.0"),
        (mixture_problem(clip_norm=None), {}, "state a public bound on the norm"),
        (mixture_problem(clip_norm=math.inf), {}, "positive and finite"),
        (mixture_problem(words_at_most=5), {}, "is for model=topics"),
        (mixture_problem(noise_variance=1.0), {}, "must be from 0 to 0.5625"),
        (mixture_problem(), {"score_factor": 0.5}, "1.3 and 1.4 are usual"),
    ],
)
def test_facts_and_settings_out_of_their_domain_are_refused(problem, wrong, rule):
    with pytest.raises(InvalidInput, match=rule):
        Agn(**{"components": 2, **wrong}).plan(problem, target(1.0))


AVN = Avn(components=2)


@pytest.mark.parametrize("split", [0.5, 0.3])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 7.3])
def test_both_parts_add_up_to_epsilon_and_never_to_more(epsilon, split):
    plan = Avn(components=2, split=split).plan(topics_problem(), target(epsilon, 0.0))
    parts = [Fraction(step["epsilon"]) for step in events.steps(plan.event)]
    assert {step["delta"] for step in events.steps(plan.event)} == {0.0}
    assert Fraction(epsilon) * Fraction(999_999, 1_000_000) < sum(parts) <= Fraction(epsilon)
    assert float(parts[0] / sum(parts)) == pytest.approx(split)


@pytest.mark.parametrize(
    ("rows", "problem", "truth"), [(documents(), topics_problem(), TOPICS), (points(), mixture_problem(), MEANS)]
)
def test_components_are_found_under_the_noise_of_one_key_and_resumed_without_new_noise(rows, problem, truth):
    plan = AVN.plan(problem, target(5.0, 0.0))
    first = InMemoryReservation(event=plan.event, key=bytes(32), relation="replace_one")
    whole = run(AVN, rows, problem, target(5.0, 0.0), reservation=first)
    assert matched_errors(whole.components, truth).max() < 0.15
    resumed = InMemoryReservation(event=plan.event, key=bytes(32), relation="replace_one", steps={0: first.steps[0]})
    again = run(AVN, rows, problem, target(5.0, 0.0), reservation=resumed, block_records=97)
    np.testing.assert_array_equal(again.components, whole.components)


def test_the_noise_floor_grows_with_the_root_of_the_number_of_coordinates():
    found = run(AVN, documents(), topics_problem(), target(5.0, 0.0))
    scale = 2**0.5 / 2.5
    assert found.outcome["floor"] == pytest.approx(moment_floor(5, noise_std=scale * 16**0.5), rel=1e-6)


@pytest.mark.parametrize("wrong", [{"split": 0.0}, {"components": 5}, {"point_factor": 0.0}])
def test_settings_out_of_their_domain_are_refused(wrong):
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        Avn(**{"components": 2, **wrong}).plan(topics_problem(), target(1.0, 0.0))


REFERENCE = NonPrivate(components=2)


@pytest.mark.parametrize(
    ("rows", "problem", "truth"), [(documents(), topics_problem(), TOPICS), (points(), mixture_problem(), MEANS)]
)
def test_the_reference_finds_the_components_of_the_rows(rows, problem, truth):
    found = run(REFERENCE, rows, problem, NO_GUARANTEE, kind=DisclosingCurator, i_know_this_is_not_private=True)
    assert matched_errors(found.components, truth).max() < 0.05
    np.testing.assert_allclose(matched_weights(found.components, found.weights, truth), WEIGHTS, atol=0.05)
    assert found.outcome["floor"] == 0.0
    if problem.model == "mixture":
        assert found.noise_variance == pytest.approx(VARIANCE, rel=0.05)


def test_the_reference_needs_an_acknowledgment():
    with pytest.raises(Refused, match="insist with --i-know-this-is-not-private"):
        REFERENCE.plan(topics_problem(), target(1.0))
    with pytest.raises(Refused, match="use a DisclosingCurator"):
        run(REFERENCE, documents(), topics_problem(), NO_GUARANTEE)
