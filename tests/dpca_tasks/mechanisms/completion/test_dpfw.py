"""Private Frank-Wolfe: its price, exact and as printed, what it learns, and that it can be resumed anywhere."""

import math

import numpy as np
import pytest
from scipy.special import log_ndtr, ndtr

from dpca_tasks.accounting import events
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.completion.dpfw import Dpfw
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from storage.artifacts.embeddings import ItemEmbeddings
from tests.dpca_tasks.mechanisms.completion.test_dpals import MU, RANK, low_rank, problem, run, target

__all__ = ["low_rank"]


def plain(**changes):
    """Without offsets: the data of these tests have none."""
    return Dpfw(**{"rank": RANK, "offsets": False, "user_means": False, "spread": 1.0, **changes})


def unseen_error(result, whole, seen):
    """The error of predictions of ratings that were not given, at the users' side."""
    manifest = {"user_step": dict(result.user_step)}
    items = ItemEmbeddings(factors=result.factors, offsets=result.offsets, low=-10.0, high=10.0, manifest=manifest)
    found = [items.predict(np.flatnonzero(rated), row[rated])[~rated] for row, rated in zip(whole, seen, strict=True)]
    return float(np.sqrt(np.mean((np.concatenate(found) - whole[~seen]) ** 2)))


@pytest.mark.parametrize("epsilon", MU)
def test_every_round_is_charged(epsilon):
    plan = plain(rounds=5).plan(problem(n_features=1000, records_at_most=50_000), target(epsilon))
    mu = math.sqrt(sum(step["noise_multiplier"] ** -2 for step in events.steps(plan.event)))
    assert mu == pytest.approx(MU[epsilon], rel=1e-3)
    assert events.count_steps(plan.event) == 5
    with_totals = Dpfw(rank=2).plan(problem(), target(epsilon))
    assert events.count_steps(with_totals.event) == (9 if epsilon <= 5 else 17)
    assert sum(step["noise_multiplier"] ** -2 for step in events.steps(with_totals.event)) == pytest.approx(
        MU[epsilon] ** 2, rel=1e-3
    )


@pytest.mark.parametrize(("relation", "bound"), [("zero_out", 1.0), ("replace_one", math.sqrt(2.0))])
def test_the_printed_noise_is_charged_by_what_it_is(relation, bound):
    """Its std is ``sqrt(64 T ln(1 / delta)) / epsilon`` in squared norms of a row, in any relation."""
    mechanism, facts = plain(rounds=8, calibration="paper"), problem(relation=relation)
    plan = mechanism.plan(facts, target(1))
    (part,) = mechanism._query(facts, bits=1).parts.values()
    assert part.scale * plan.noise_multiplier == pytest.approx(math.sqrt(64 * 8 * math.log(1e5)), rel=1e-12)
    mu = bound * math.sqrt(8) / math.sqrt(64 * 8 * math.log(1e5))
    epsilon = plan.real_epsilon
    delta = ndtr(-epsilon / mu + mu / 2) - math.exp(epsilon + log_ndtr(-epsilon / mu - mu / 2))
    assert delta == pytest.approx(1e-5, rel=1e-3)
    assert epsilon < 0.25  # of the 1 that is claimed


@pytest.mark.parametrize(("epsilon", "most"), [(2, 0.75), (20, 0.4), (1e5, 0.3)])
def test_predictions_come_closer_to_ratings_that_were_not_given(low_rank, epsilon, most):
    """Their std is 1, and the noise is of one fixed key."""
    rows, whole, seen = low_rank
    result = run(plain(), rows, problem(), epsilon)
    assert result.factors.shape == (60, 8 if epsilon <= 5 else 16)
    assert unseen_error(result, whole[:300], seen[:300]) < most


@pytest.mark.parametrize("epsilon", [0.01, 1.0])
def test_a_direction_that_is_all_noise_has_a_finite_gain(low_rank, epsilon):
    """What a direction holds of a noisy moment may be negative; no gain is that of less than one clipped row."""
    result = run(plain(rounds=6), low_rank[0][:3], problem(records_at_most=300), epsilon)
    gains, row_norm = np.array(result.user_step["gains"]), result.user_step["row_norm"]
    most = plain()._nuclear_norm(problem(records_at_most=300)) / row_norm
    assert np.isfinite(gains).all()
    assert np.isfinite(result.factors).all()
    assert (gains > 0).all()
    assert (gains <= most * (1 + 1e-12)).all()


@pytest.mark.parametrize(
    "moment", [-np.eye(60), np.zeros((60, 60)), 1e-12 * np.eye(60)], ids=["less", "none", "little"]
)
def test_a_moment_of_less_than_one_row_counts_as_one_row(monkeypatch, low_rank, moment):
    monkeypatch.setattr(Curator, "release_parts", lambda *_: {"moment": moment})
    facts = problem(records_at_most=300)
    result = run(plain(rounds=2), low_rank[0][:3], facts, 1)
    most = plain()._nuclear_norm(facts) / result.user_step["row_norm"]
    assert result.user_step["gains"] == [pytest.approx(most, rel=1e-12)] * 2


def test_blocks_do_not_change_a_bit_and_a_resumed_release_is_the_same(low_rank):
    rows, facts, mechanism = low_rank[0][:200], problem(records_at_most=200), Dpfw(rank=RANK, rounds=3)
    plan = mechanism.plan(facts, target(5))
    first = InMemoryReservation(event=plan.event, key=bytes(32))
    whole = run(mechanism, rows, facts, 5, reservation=first)
    assert len(first.steps) == 4
    resumed = InMemoryReservation(event=plan.event, key=bytes(32), steps={at: first.steps[at] for at in range(2)})
    for other in (
        run(mechanism, rows, facts, 5, block_records=7),
        run(mechanism, rows, facts, 5, reservation=resumed, block_records=1),
    ):
        assert other.user_step == whole.user_step
        for name in ("factors", "offsets", "counts"):
            assert (getattr(other, name) == getattr(whole, name)).all()


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ({"rank": 0}, "below the 60 items"),
        ({"rounds": 0}, "rounds at least 1"),
        ({"row_norm": 0.0}, "row_norm"),
        ({"nuclear_norm": math.inf}, "nuclear_norm"),
        ({"spread": math.nan}, "spread"),
        ({"offsets": True, "totals_share": 1.0}, "totals_share"),
        ({"offsets": True, "calibration": "paper"}, "offsets=false"),
    ],
)
def test_settings_out_of_their_domain_are_refused(wrong, rule):
    with pytest.raises(InvalidInput, match=rule):
        plain(**wrong).plan(problem(), target(1))
