"""Every stated epsilon against the loss distribution of the complete event, by dp-accounting alone, in closed forms."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from dp_accounting.pld import privacy_loss_distribution

from dpca_tasks.accounting import events
from dpca_tasks.accounting.epsilon_bracket import stated_epsilon
from dpca_tasks.errors import DpcaError
from dpca_tasks.mechanisms.base import Mechanism, Plan, PrivacyTarget, Problem, Terms
from dpca_tasks.mechanisms.completion import MECHANISMS as COMPLETION
from dpca_tasks.mechanisms.completion.ratings import RatingsProblem
from dpca_tasks.mechanisms.prior_releases import QuantileClip, main_mechanism
from dpca_tasks.mechanisms.subspace import MECHANISMS as SUBSPACE
from dpca_tasks.mechanisms.subspace.dp_spca import DpSpca
from dpca_tasks.mechanisms.subspace.mod_sulq import ModSulq
from dpca_tasks.mechanisms.tensors import MECHANISMS as TENSORS
from dpca_tasks.mechanisms.tensors.tensor_releases import TensorProblem
from tests.mechanism_table import RELATIONS

PLD = privacy_loss_distribution
SAMPLED = ("dp_spca", "dp_vrpca")
VARIANTS: dict[str, tuple[dict[str, Any], ...]] = {
    "dp_spca": ({"form": "one_row"}, {"steps": 3, "rate": 0.5}),
    "dp_vrpca": ({"epochs": 1, "inner_steps": 2, "rate": 0.5},),
    "dps_pca": ({"message_clip": 1.0, "iterations": 3}, {"form": "one_round"}),
    "smooth_sensitivity": ({}, {"noise": "cauchy"}, {"noise": "spherical_t"}),
    "exponential": ({}, {"sampler": "gibbs", "allow_uncertified": True}),
    "dpals": ({}, {"private_centre": True, "start": "analyze_gauss"}),
    "dpfw": ({}, {"offsets": False}),
}
TARGETS = tuple(
    PrivacyTarget(epsilon=epsilon, delta=delta, allow_large_delta=True)
    for epsilon, delta in ((0.1, 1e-3), (0.8, 1e-6), (3.0, 1e-5), (0.5, 0.0))
)


def settings_of(name: str, kind: type[Any]) -> Iterator[dict[str, Any]]:
    offered = ("tight", "paper") if "calibration" in kind.__dataclass_fields__ else (None,)
    for variant, calibration in itertools.product(VARIANTS.get(name, ({},)), offered):
        yield {**variant, **({} if calibration is None else {"calibration": calibration})}


def subspaces(names: tuple[str, ...]) -> Iterator[tuple[Mechanism[Any], Terms]]:
    for name in names:
        for settings, relation, center in itertools.product(
            settings_of(name, SUBSPACE[name]), RELATIONS, ("none", "private")
        ):
            made = SUBSPACE[name](n_components=1, **settings)
            asked = Problem(n_features=6, clip_norm=1.0, relation=relation, records_at_most=1000, center=center)
            yield made, asked
            yield QuantileClip(mechanism=made, quantile=0.9), asked


def others() -> Iterator[tuple[Mechanism[Any], Terms]]:
    for relation in RELATIONS:
        few: dict[str, Any] = {"records_at_most": 1000, "relation": relation, "n_features": 20}
        for name, kind in COMPLETION.items():
            for settings in settings_of(name, kind):
                yield kind(rank=2, **settings), RatingsProblem(low=1.0, high=5.0, ratings_per_user=10, **few)
        for name, kind in TENSORS.items():
            for settings in settings_of(name, kind):
                yield kind(components=2, **settings), TensorProblem(model="topics", words_at_most=10, **few)
                yield kind(components=2, **settings), TensorProblem(model="mixture", clip_norm=1.0, **few)


def plans(pairs: Iterator[tuple[Mechanism[Any], Terms]], *targets: PrivacyTarget) -> list[Plan]:
    found = []
    for (mechanism, problem), target in itertools.product(pairs, targets):
        try:
            found.append(mechanism.plan(problem, target))
        except DpcaError:  # a setting, target or relation that this mechanism refuses
            continue
    return found


type Kind = tuple[Any, ...]
type Kinds = tuple[tuple[Kind, int], ...]


def kind_of(step: events.Event) -> Kind:
    match step:
        case {"name": "poisson_sampled", "rate": rate, "event": {"noise_multiplier": multiplier}}:
            return ("sampled", multiplier, rate)
        case {"name": "approximate", "epsilon": epsilon, "delta": delta}:
            return ("approximate", epsilon, delta)
        case _:
            return (step["name"], step["noise_multiplier"])


@cache
def losses(kinds: Kinds, *, pessimistic: bool) -> Any:
    """Return the loss distribution of additive noise, both directions of samples in one."""
    grid = {"value_discretization_interval": 2e-4}
    ways: dict[str, Any] = {**grid, "pessimistic_estimate": pessimistic, "use_connect_dots": pessimistic}
    found = PLD.identity(**grid, pessimistic_estimate=pessimistic)
    for (name, multiplier, *rate), count in kinds:
        made = PLD.from_laplace_mechanism if name == "laplace" else PLD.from_gaussian_mechanism
        step = made(multiplier, sampling_prob=rate[0] if rate else 1.0, **ways)
        found = found.compose(step.self_compose(count))
    return found


def delta_at(kinds: Kinds, epsilon: float, *, pessimistic: bool) -> float:
    """Return the delta of an event, whose parts known as (epsilon, delta) are two losses and a failure each."""
    known = [kind for kind, count in kinds for _ in range(count) if kind[0] == "approximate"]
    noise = losses(tuple(each for each in kinds if each[0][0] != "approximate"), pessimistic=pessimistic)
    total = 0.0
    for signs in itertools.product((1, -1), repeat=len(known)):
        moved = [sign * loss for sign, (_, loss, _) in zip(signs, known, strict=True)]
        weight = math.prod(1 / (1 + math.exp(-loss)) for loss in moved)
        total += weight * max(noise.get_delta_for_epsilon(epsilon - sum(moved)), 0.0)
    kept = math.prod(1 - failure for _, _, failure in known)
    return float(1 - kept + kept * total)


def least(holds: Callable[[float], bool]) -> float:
    if holds(0.0):
        return 0.0
    low, high = 0.0, 16.0
    for _ in range(40):
        low, high = (low, (low + high) / 2) if holds((low + high) / 2) else ((low + high) / 2, high)
    return high


def ends(plan: Plan) -> tuple[float, float]:
    """Return what the epsilon of a plan's event is at least and at most.

    A replaced record of a sample goes through the empty one, so what its epsilon is at least is that of the empty one.
    """
    counted: Counter[Kind] = Counter()
    for step, count in events.leaves(plan.event):
        counted[kind_of(step)] += count
    return ends_of(tuple(sorted(counted.items())), plan.target.delta, replaced=plan.problem.relation == "replace_one")


@cache
def ends_of(kinds: Kinds, delta: float, *, replaced: bool) -> tuple[float, float]:
    failures = sum(count * kind[2] for kind, count in kinds if kind[0] == "approximate")
    simple = sum(count * kind[1] for kind, count in kinds if kind[0] == "approximate")
    simple += sum(count / kind[1] for kind, count in kinds if kind[0] == "laplace")
    is_pure = all(kind[0] in ("approximate", "laplace") for kind, _ in kinds)
    if delta == 0:
        return simple, simple
    lower = least(lambda epsilon: delta_at(kinds, epsilon, pessimistic=False) <= delta * (1 + 1e-9))
    if replaced and any(kind[0] == "sampled" for kind, _ in kinds):
        noise = losses(tuple(each for each in kinds if each[0][0] in ("gaussian", "sampled")), pessimistic=True)
        half = least(lambda epsilon: (1 + math.exp(epsilon)) * noise.get_delta_for_epsilon(epsilon) <= delta)
        return lower, 2 * half + simple
    if is_pure and failures >= delta * (1 - 1e-9):
        return lower, simple
    upper = least(lambda epsilon: delta_at(kinds, epsilon, pessimistic=True) <= delta)
    return lower, min(upper, simple) if is_pure else upper


def check(plan: Plan) -> None:
    lower, upper = ends(plan)
    stated = plan.epsilon_at_most
    assert lower * (1 - 1e-6) - 1e-9 <= stated <= upper * 1.02 + 4e-4, (plan.mechanism, plan.problem, plan.event)
    assert plan.certified == (not plan.uncertified and (not plan.printed or stated <= plan.target.epsilon))
    assert plan.real_epsilon == (stated if plan.printed else None)
    if not plan.printed:
        assert stated <= plan.target.epsilon * (1 + 1e-12)


def whole_subspaces() -> Iterator[tuple[Mechanism[Any], Terms]]:
    return subspaces(tuple(name for name in SUBSPACE if name not in SAMPLED))


each_target = pytest.mark.parametrize(
    "target", [TARGETS[0], *(pytest.param(target, marks=pytest.mark.audit_only) for target in TARGETS[1:])]
)


def test_what_printed_noise_of_whole_releases_states_is_what_its_event_costs() -> None:
    printed = (
        (mechanism, problem)
        for mechanism, problem in whole_subspaces()
        if getattr(main_mechanism(mechanism), "calibration", "tight") == "paper"
    )
    found = plans(printed, TARGETS[0])
    assert len(found) > 40
    for plan in found:
        check(plan)


@pytest.mark.audit_only
@pytest.mark.parametrize("target", TARGETS)
def test_what_a_plan_of_whole_releases_states_is_what_its_event_costs(target: PrivacyTarget) -> None:
    found = plans(whole_subspaces(), target)
    assert any(plan.printed for plan in found)
    assert not all(plan.printed for plan in found)
    for plan in found:
        check(plan)


@each_target
def test_what_a_plan_of_items_or_components_states_is_what_its_event_costs(target: PrivacyTarget) -> None:
    found = plans(others(), target)
    assert sum(plan.printed for plan in found) > (10 if target.delta else -1)
    for plan in found:
        check(plan)


@pytest.mark.audit_only
@pytest.mark.parametrize("name", SAMPLED)
def test_what_a_plan_of_samples_states_is_what_its_event_costs(name: str) -> None:
    for plan in plans(subspaces((name,)), *TARGETS):
        check(plan)


@pytest.mark.parametrize("relation", RELATIONS)
def test_printed_samples_behind_a_private_clip_norm_state_both(relation: Any) -> None:
    asked = Problem(n_features=6, clip_norm=1.0, relation=relation, records_at_most=1000)
    inner = DpSpca(n_components=1, form="one_row", calibration="paper")
    plan = QuantileClip(mechanism=inner, quantile=0.9).plan(asked, TARGETS[2])
    check(plan)
    assert any(f"{plan.real_epsilon:.4g}; calibration=tight keeps 3 with far less" in said for said in plan.warnings)


def test_the_histogram_of_a_private_clip_norm_is_part_of_what_printed_noise_costs() -> None:
    asked = Problem(n_features=2, clip_norm=1.0, relation="replace_one", records_at_most=100)
    plan = QuantileClip(mechanism=ModSulq(n_components=1, calibration="paper"), quantile=0.9).plan(asked, TARGETS[0])
    histogram, moment = plan.event["events"]
    alone = stated_epsilon(moment, delta=1e-3, relation="replace_one")
    both = stated_epsilon(plan.event, delta=1e-3, relation="replace_one")
    assert plan.real_epsilon == both
    assert both > max(alone, stated_epsilon(histogram, delta=1e-3, relation="replace_one"))


@pytest.mark.parametrize("relation", RELATIONS)
def test_an_answer_without_noise_has_no_epsilon(relation: Any) -> None:
    assert stated_epsilon(
        events.composed(events.gaussian(9.0), events.non_private()), delta=1e-3, relation=relation
    ) == (math.inf)
    assert stated_epsilon(events.gaussian(9.0), delta=0.0, relation=relation) == math.inf
    assert stated_epsilon(events.approximate(0.5, 0.0), delta=0.0, relation=relation) == 0.5
    assert stated_epsilon(events.approximate(0.5, 1e-6), delta=1e-7, relation=relation) == math.inf
