"""AVN: pure noise whose parts add up to epsilon, and what is found under it."""

from fractions import Fraction

import numpy as np
import pytest

from dpca_tasks.accounting import events
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.tensors.avn import Avn
from dpca_tasks.mechanisms.tensors.tensor_moments import moment_floor
from dpca_tasks.metrics import matched_errors
from dpca_tasks.privacy.gate import InMemoryReservation
from tests.dpca_tasks.mechanisms.tensors.made import (
    MEANS,
    TOPICS,
    documents,
    mixture_problem,
    points,
    run,
    target,
    topics_problem,
)

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


def test_the_floor_is_that_of_noise_longer_by_the_root_of_its_coordinates():
    found = run(AVN, documents(), topics_problem(), target(5.0, 0.0))
    scale = 2**0.5 / 2.5
    assert found.outcome["floor"] == pytest.approx(moment_floor(5, noise_std=scale * 16**0.5), rel=1e-6)


@pytest.mark.parametrize("wrong", [{"split": 0.0}, {"components": 5}, {"point_factor": 0.0}])
def test_settings_out_of_their_domain_are_refused(wrong):
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        Avn(**{"components": 2, **wrong}).plan(topics_problem(), target(1.0, 0.0))
