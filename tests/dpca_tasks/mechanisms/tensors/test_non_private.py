"""The reference without privacy: exact, and only with an acknowledgement."""

import numpy as np
import pytest

from dpca_tasks.errors import Refused
from dpca_tasks.mechanisms.base import NO_GUARANTEE
from dpca_tasks.mechanisms.tensors.non_private import NonPrivate
from dpca_tasks.metrics import matched_errors, matched_weights
from dpca_tasks.privacy.curator import DisclosingCurator
from tests.dpca_tasks.mechanisms.tensors.made import (
    MEANS,
    TOPICS,
    VARIANCE,
    WEIGHTS,
    documents,
    mixture_problem,
    points,
    run,
    target,
    topics_problem,
)

REFERENCE = NonPrivate(components=2)


@pytest.mark.parametrize(
    ("rows", "problem", "truth"), [(documents(), topics_problem(), TOPICS), (points(), mixture_problem(), MEANS)]
)
def test_it_finds_what_the_rows_hold(rows, problem, truth):
    found = run(REFERENCE, rows, problem, NO_GUARANTEE, kind=DisclosingCurator, i_know_this_is_not_private=True)
    assert matched_errors(found.components, truth).max() < 0.05
    np.testing.assert_allclose(matched_weights(found.components, found.weights, truth), WEIGHTS, atol=0.05)
    assert found.outcome["floor"] == 0.0
    if problem.model == "mixture":
        assert found.noise_variance == pytest.approx(VARIANCE, rel=0.05)


def test_it_needs_an_acknowledgement():
    with pytest.raises(Refused, match="insist with --i-know-this-is-not-private"):
        REFERENCE.plan(topics_problem(), target(1.0))
    with pytest.raises(Refused, match="needs a DisclosingCurator"):
        run(REFERENCE, documents(), topics_problem(), NO_GUARANTEE)
