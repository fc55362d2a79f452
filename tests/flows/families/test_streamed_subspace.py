"""How much noisier an estimate of a stream is than a single release."""

from typing import Any

import numpy as np
import pytest

from dpca_tasks.accounting.factorisation import choose_weights
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.released_moment import moment_query
from dpca_tasks.mechanisms.streams.stream_estimate import coefficients
from dpca_tasks.mechanisms.streams.stream_ticks import plan_stream
from flows.families.stream_terms import StreamTerms
from flows.families.streamed_subspace import factor

D, K = 6, 2


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
@pytest.mark.parametrize("settings", [{"strategy": "window", "window": 7}, {"strategy": "sqrt", "ticks": 7}])
def test_the_factor_is_the_std_of_an_estimate_over_that_of_a_single_release(relation: Any, settings: Any) -> None:
    problem = Problem(n_features=D, clip_norm=1.0, relation=relation)
    weights, target = choose_weights(**settings), PrivacyTarget(epsilon=1.0, delta=1e-6)
    plan = plan_stream(problem, target, weights=weights, ticks=7, n_components=K)
    terms = StreamTerms(facts={"horizon": 7}, plan=plan, weights=weights)
    single = plan.noise_multiplier * moment_query(problem, bits=8).sensitivity("l2")
    answer = plan.noise_multiplier * terms.query(1, (0,)).sensitivity("l2")
    multipliers = coefficients(weights, kept=range(1, 8))
    assert factor(terms, multipliers) == pytest.approx(answer * np.linalg.norm(multipliers) / single, rel=1e-12)
