"""Measured noise of every mechanism, coordinate by coordinate, against the noise of the charged event.

A mechanism is run once, and its requests are recorded. Each request is then released 400 times through the gate, under
keys of a fixed seed. Every coordinate's distance from the exact answer is mapped to a standard normal by the
distribution of the charged event, which is implemented here independently. Sums of squares are compared with chi-square
bounds in two ways. Each single coordinate is tested, which reveals a coordinate without noise. All independent
coordinates are also tested together: with twelve of them, a scale that is off by a tenth fails. Over all seeds, exact
noise fails any of these tests with probability at most 1e-6, by Bonferroni.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy import special, stats

from dpca_tasks.accounting import events
from dpca_tasks.accounting.events import Relation
from dpca_tasks.accounting.factorisation import choose_weights
from dpca_tasks.audit.attacks import rebuilt_products
from dpca_tasks.audit.trials import TARGET
from dpca_tasks.mechanisms.base import Problem
from dpca_tasks.mechanisms.sites import METHODS, TENSOR_METHODS
from dpca_tasks.mechanisms.sites.joint_plan import LocalParties
from dpca_tasks.mechanisms.streams.stream_ticks import plan_stream, release_tick, tick_query
from dpca_tasks.mechanisms.tensors.tensor_releases import TensorProblem
from dpca_tasks.noise.distributions import Gaussian, add_noise
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.privacy import request
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.privacy.noised_directions import ProposedGap, SmoothNoise
from dpca_tasks.queries.locally_noised import LocallyNoised
from dpca_tasks.queries.operator_product import DIRECTION_BITS
from dpca_tasks.queries.poisson_sampled import PoissonSampled, SampledPasses, sampled
from dpca_tasks.queries.rounded_product import MomentProduct, on_direction_grid
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.sums.exact_sum import exact_sum
from flows.families.base import every_family, family_named
from tests.mechanism_table import FORMS

RUNS, FALSE_ALARMS, SITES = 400, 1e-6, 3
RELATION: Relation = "replace_one"
WIDENED = ("subspace", "completion", "tensor")
"""Families whose audited mechanisms accept more than two features: more coordinates reveal a smaller error."""


class Step(NamedTuple):
    """One request of a mechanism: curator method, query, noise distribution, charged event, and rows."""

    method: str
    query: Any
    law: Any
    event: events.Event
    source: Any


class Measured(NamedTuple):
    """Measured noise mapped to standard normals, one column per coordinate.

    ``together`` is the sum of squares of ``freedom`` independent values.
    """

    normals: np.ndarray
    together: float
    freedom: float


class Recorder(Curator):
    """A curator that records each request together with its charged event."""

    def __init__(self, source, event, relation):
        super().__init__(source, InMemoryReservation(event=event, relation=relation, key=bytes(32)))
        self.source, self.event, self.requested, self.done = source, event, [], 0


def recorded(method: str) -> Callable[..., Any]:
    def call(self, query, law):
        count = query.steps if method == "sequential" else 1
        self.requested.append(Step(method, query, law, events.step_at(self.event, self.done), self.source))
        self.done += count
        return getattr(Curator, method)(self, query, law)

    return call


for _kind in ("release", "release_parts", "release_tiles", "release_operator", "sequential", "perturb"):
    setattr(Recorder, _kind, recorded(_kind))


def keys(label: str, runs: int = RUNS) -> Iterator[bytes]:
    for run in range(runs):
        yield subkey(bytes(32), label=label, info=run.to_bytes(4, "little")).secret


def family_steps(family: Any, name: str) -> list[Step]:
    """Run the audited mechanism of a family once, and return its requests."""
    problem = family.audit.problem("zero_out")
    if family.name in WIDENED:
        problem = dataclasses.replace(problem, n_features=6)
    mechanism = FORMS[name].audited if name in FORMS else family.audit.build(name)
    plan = mechanism.plan(problem, TARGET)
    rows = family.audit.neighbours(mechanism.name, problem)[0].left
    curator = Recorder(rows, plan.event, problem.relation)
    mechanism.run(curator, plan)
    assert curator.done == events.count_steps(plan.event), "a way out of the curator is not recorded"
    return curator.requested


def tick_steps(strategy: Any) -> list[Step]:
    """Release three ticks of a stream with a strategy, and return all requests."""
    weights = choose_weights(strategy, ticks=3)
    problem = Problem(n_features=6, clip_norm=2.0, relation=RELATION)
    plan = plan_stream(problem, TARGET, weights=weights, ticks=3, n_components=2)
    source = ArrayBlocks(np.ones((4, 6)), first_seen=[1, 1, 1, 1])
    requested = []
    for tick in (1, 2, 3):
        curator = Recorder(source, plan.event, RELATION)
        arrivals = tuple(range(1, tick + 1))
        release_tick(curator, plan, tick_query(plan, weights=weights, horizon=3, tick=tick, arrivals=arrivals))
        requested += curator.requested
    return requested


def run_steps() -> list[Step]:
    """Return the request of a run of sampled steps, which outputs four intermediate states.

    The states are those before and after the first and the fifth step.
    """
    terms: dict[str, Any] = {"n_features": 6, "clip_norm": 2.0, "relation": RELATION, "bits": 12}
    product = MomentProduct(directions=on_direction_grid(np.eye(6)[:, :2]), **terms)
    noise = Gaussian(noise_multiplier=3.0)
    passes = SampledPasses(query=sampled(product, rate=0.5), steps=5, factor=0.1, snapshots=(0, 1, 4, 5))
    return [Step("sequential", passes, noise, events.poisson_sampled(noise.event, 0.5), ArrayBlocks(np.zeros((2, 6))))]


FAMILY_CASES = {f"{family.name}-{name}": (family, name) for family in every_family() for name in family.audit.names}
FAMILY_CASES |= {f"subspace-{name}": (family_named("subspace"), name) for name in FORMS}
del FAMILY_CASES[
    "subspace-exponential"
]  # the exponential mechanism draws directions, which tests/dpca_tasks/noise/test_discrete_gaussian.py compares
SITE_CASES = METHODS | TENSOR_METHODS
TESTS = len(FAMILY_CASES) + 2 * len(SITE_CASES) + 3


def weights_of(kind: str, order: int) -> np.ndarray:
    """Return the std of each packed coordinate for noise with equal variance in every direction.

    The std is 1 / sqrt(number of entries of the full tensor that the coordinate represents).
    """
    if kind == "symmetric":
        return np.array([1.0 if i == j else math.sqrt(1 / 2) for i in range(order) for j in range(i, order)])
    if kind == "cube":
        orders = {1: 1.0, 2: math.sqrt(1 / 3), 3: math.sqrt(1 / 6)}
        span = range(order)
        return np.array([orders[len({i, j, k})] for i in span for j in span for k in span if i <= j <= k])
    return np.ones(order)


def packed(answer: np.ndarray, kind: str) -> Any:
    span = range(len(answer))
    if kind == "symmetric":
        return answer[np.triu_indices(len(answer))]
    if kind == "cube":
        return np.array([answer[i, j, k] for i in span for j in span for k in span if i <= j <= k])
    if kind == "stack":
        rows, columns = np.triu_indices(answer.shape[-1])
        return answer[:, rows, columns].ravel()
    return answer.ravel()


def from_tails(tails: np.ndarray) -> Any:
    """Map two-sided tail probabilities to the magnitudes of standard normals with the same probabilities."""
    return -special.ndtri(tails / 2)


def wishart_tails(values: np.ndarray, shape: float, scale: float) -> Any:
    """Return tail probabilities of the difference of two Gamma variates, by summing its density on a fine grid."""
    grid = np.linspace(0.0, 200.0, 400_001)[1:]
    order = shape - 0.5
    density = grid**order * special.kv(order, grid) / (math.sqrt(math.pi) * special.gamma(shape) * 2**order)
    tails = np.append(2 * (grid[1] - grid[0]) * np.cumsum(density[::-1])[::-1], 0.0)
    return np.interp(np.abs(values) / scale, np.append(0.0, grid), np.clip(tails / tails[0], 1e-300, 1.0))


def independent(normals: np.ndarray) -> Measured:
    return Measured(normals, float((normals**2).sum()), normals.size)


def additive(step: Step, residuals: np.ndarray) -> Measured:
    """Map the additive noise of a sum, in data units, to standard normals by the charged event's distribution."""
    query, law, event = step.query, step.law, dict(step.event)
    event = event.get("event", event)
    sensitivity = query.sensitivity(law.norm) * query.unit
    if isinstance(query, LocallyNoised):
        sensitivity *= math.sqrt(step.source.n_records)  # local noise: each record has separate noise
    isotropic = residuals / (sensitivity * weights_of(query.layout.kind, query.layout.order))
    size = residuals.shape[1]
    match law.name, event["name"]:
        case "Gaussian" | "Symmetric" | "Cube", "gaussian":
            return independent(isotropic / event["noise_multiplier"])
        case "UpperTriangle", "gaussian":
            return independent(residuals / (sensitivity * event["noise_multiplier"]))
        case "Laplace" | "SymmetricLaplace", "laplace":
            scaled = np.abs(residuals) / (sensitivity * event["noise_multiplier"])
            return Measured(from_tails(np.exp(-scaled)), float(2 * scaled.sum()), 2 * residuals.size)
        case "SymmetricRadial" | "CubeRadial", "approximate":
            lengths = np.linalg.norm(isotropic, axis=1, keepdims=True) * event["epsilon"]
            shares = (isotropic * event["epsilon"] / lengths) ** 2
            tails = stats.beta.sf(shares, 0.5, (size - 1) / 2) if size > 1 else np.exp(-lengths)
            return Measured(from_tails(tails), float(2 * lengths.sum()), 2 * size * len(residuals))
        case "WishartDifference", "approximate":
            c, freedom, order = sensitivity / (2 * event["epsilon"]), query.layout.order + 1, query.layout.order
            is_diagonal = weights_of("symmetric", order) == 1.0
            normals = np.empty_like(residuals)
            normals[:, is_diagonal] = from_tails(wishart_tails(residuals[:, is_diagonal], freedom / 2, 2 * c))
            normals[:, ~is_diagonal] = from_tails(wishart_tails(residuals[:, ~is_diagonal], freedom, c))
            # columns of the Wishart factor A are independent, so diagonal entries are independent, too
            diagonal = normals[:, is_diagonal]
            return Measured(normals, float((diagonal**2).sum()), diagonal.size)
    pytest.fail(f"no law is written here for {law.name} under {event}")


def measure_parts(step: Step, answers: list[dict[str, np.ndarray]]) -> Measured:
    exact, columns = step.query.split(exact_sum(step.source, step.query)), []
    for name, part in step.query.parts.items():
        std = step.event["noise_multiplier"] * part.bound / math.sqrt(part.share) * part.unit
        one = weights_of("symmetric" if part.layout.kind == "stack" else part.layout.kind, part.layout.order)
        noised = np.array([packed(answer[name], part.layout.kind) for answer in answers])
        residuals = noised - exact[name] * (part.unit / part.steps_per_unit)
        columns.append(residuals / (std * np.tile(one, part.layout.count)))
    return independent(np.hstack(columns))


def measure_directions(step: Step, answers: list[np.ndarray]) -> Measured:
    """Measure the noise of one released direction, and map it to standard normals.

    The direction is released with a random sign. The sign is visible in the answer, because the noise is far smaller.
    """
    solver, law = step.query, step.law
    pairs = solver.solve(step.source, subkey(bytes(32), label="start", info=b""))
    found, columns, stds = np.array(answers), [], np.empty((len(answers), 1))
    if isinstance(law, ProposedGap):
        bounds, found = found[:, :1], found[:, 1:]
        assert (bounds > law.threshold(solver)).all()
        stds[:] = [[law.noise_std(float(bound), solver)] for bound in bounds[:, 0]]
        scaled = np.abs(bounds - (pairs.gap - law.margin(solver))) / law.gap_scale(solver)
        columns.append(from_tails(np.exp(-scaled)))
    else:
        assert isinstance(law, SmoothNoise)
        assert law.shape == "gaussian"
        stds[:] = law.scale(solver, pairs)
    along = found @ pairs.directions
    residuals = found - np.sign(along) * pairs.directions.T
    return independent(np.hstack([*columns, residuals / stds]))


def measure(step: Step) -> Measured:
    """Release a request under every key, and return the measured noise."""
    query, source, event = step.query, step.source, step.event
    if isinstance(query, PoissonSampled):  # with empty rows, every sample of the records has the same sum
        source = ArrayBlocks(np.zeros((2, query.n_features)))
    if step.method == "sequential":
        event = events.self_composed(event, query.steps)
    answers = []
    for key in keys(step.method):
        curator = Curator(source, InMemoryReservation(event=event, relation=query.relation, key=key))
        answers.append(getattr(curator, step.method)(query, step.law))
    if step.method == "release_tiles":
        answers = [answer.whole() for answer in answers]
    if step.method == "release_operator":
        answers = [answer.product(np.eye(answer.order, dtype=np.int64) << DIRECTION_BITS) for answer in answers]
    if step.method in ("release_parts", "release_tiles"):
        return measure_parts(step, answers)
    if step.method == "perturb":
        return measure_directions(step, answers)
    if step.method == "sequential":
        products = [[product for _, product in rebuilt_products(query, states)] for states in answers]
        assert {len(of_run) for of_run in products} == {2}
        each = additive(step._replace(query=query.query), np.concatenate(products))
        return each._replace(normals=each.normals.reshape(RUNS, -1))
    exact = exact_sum(source, query.plain) * (query.unit / query.steps_per_unit)
    kind = query.layout.kind
    return additive(step._replace(source=source), np.array([packed(answer, kind) for answer in answers]) - exact)


def check(found: list[Measured]) -> None:
    """Compare sums of squares with chi-square bounds, which exact noise violates with probability 1e-6 in total."""
    assert found, "nothing was measured"
    comparisons = sum(each.normals.shape[1] + 1 for each in found)
    alarm = FALSE_ALARMS / TESTS / comparisons / 2
    for each in found:
        for squares, freedom in [(column @ column, column.size) for column in each.normals.T] + [each[1:]]:
            low, high = stats.chi2.ppf(alarm, freedom), stats.chi2.isf(alarm, freedom)
            assert low <= squares <= high, f"variance {squares / freedom:.3f} of what was charged"


@pytest.mark.parametrize("case", FAMILY_CASES)
def test_the_measured_noise_of_every_mechanism_is_what_was_charged(case: str) -> None:
    steps = family_steps(*FAMILY_CASES[case])
    check([measure(step) for step in steps])


@pytest.mark.parametrize("strategy", ["sqrt", pytest.param("power", marks=pytest.mark.audit_only)])
def test_the_measured_noise_of_every_tick_is_what_the_stream_was_charged(strategy: str) -> None:
    check([measure(step) for step in tick_steps(strategy)])


def test_the_measured_noise_of_a_fused_run_is_what_was_charged() -> None:
    check([measure(step) for step in run_steps()])


class Watched(LocalParties):
    """In-process parties that record every opened total with its round."""

    @property
    def opened(self) -> Any:
        return self.__dict__.setdefault("kept", [])

    def open(self, query, *, roster, index):
        opened = super().open(query, roster=roster, index=index)
        self.opened.append((index, opened))
        return opened


def measure_round(plan: Any, sources: list[Any], index: int, opened: Any, runs: int) -> Measured:
    """Open a round of a joint release under every key, and return the measured noise of the total.

    Each of N sites adds a share of the noise. The shares of the H honest sites alone must hide a record as the charged
    event does. So the total has N / H times the noise variance of that event.
    """
    query, roster, residuals = opened.query, opened.roster, []
    exact = sum(exact_sum(source, query) for source in sources)
    for key in keys(f"round {index}", runs):
        kept = [
            InMemoryReservation(event=site.event, relation=RELATION, key=subkey(key, label=str(at), info=b"").secret)
            for at, site in enumerate(plan.sites)
        ]
        curators = [Curator(source, each) for source, each in zip(sources, kept, strict=True)]
        again = LocalParties(curators=curators, roster=plan.roster).open(query, roster=roster, index=index)
        residuals.append(again.total - exact)
    multiplier = events.step_at(plan.sites[0].event, index)["noise_multiplier"]
    std = multiplier * query.sensitivity("l2") * query.steps_per_unit * math.sqrt(SITES / roster.honest)
    return independent(np.array(residuals) / (std * weights_of(query.layout.kind, query.layout.order)))


@pytest.mark.parametrize("runs", [RUNS // 4, pytest.param(RUNS, marks=pytest.mark.audit_only)])
@pytest.mark.parametrize("name", SITE_CASES)
def test_the_measured_noise_over_sites_is_what_each_was_charged(name: str, runs: int) -> None:
    problem: Any = Problem(n_features=6, clip_norm=1.0, relation=RELATION, records_at_most=400)
    mechanism, rows = SITE_CASES[name], 0.3 * np.eye(6)[:4]
    if name in TENSOR_METHODS:
        problem = TensorProblem(n_features=6, model="topics", words_at_most=6, relation=RELATION, records_at_most=400)
        rows = np.repeat(3 * np.eye(6)[:2], 100, axis=0)
    made = mechanism(n_components=2, **({"iterations": 2} if name == "dps_pca" else {}))
    plan = made.plan([problem] * SITES, [TARGET] * SITES, session="noise")
    sources = [ArrayBlocks(rows)] * len(plan.sites)
    curators = [Recorder(source, site.event, RELATION) for source, site in zip(sources, plan.sites, strict=True)]
    parties = Watched(curators=curators, roster=plan.roster)
    made.run(parties, plan)
    found = [measure_round(plan, sources, index, opened, runs) for index, opened in parties.opened]
    check([*found, *map(measure, curators[0].requested)])


def scaled_down(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("scale_in_steps", "part_scales_in_steps"):
        honest = getattr(request, name)

        def scaled(*requested: Any, honest: Any = honest) -> tuple[float, ...]:
            return tuple(0.9 * scale for scale in honest(*requested))

        monkeypatch.setattr(f"dpca_tasks.privacy.curator.{name}", scaled)


def one_coordinate_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def add(answer: Any, *requested: Any, **others: Any) -> None:
        kept = answer[-1]
        add_noise(answer, *requested, **others)
        answer[-1] = kept

    monkeypatch.setattr("dpca_tasks.privacy.curator.add_noise", add)


@pytest.mark.parametrize("plant", [scaled_down, one_coordinate_without])
@pytest.mark.parametrize("case", ["subspace-analyze_gauss", "subspace-laplace", "completion-dpals", "tensor-agn"])
def test_noise_ten_percent_too_small_and_a_coordinate_without_noise_are_detected(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], case: str
) -> None:
    steps = family_steps(*FAMILY_CASES[case])
    plant(monkeypatch)
    with pytest.raises(AssertionError, match="of what was charged"):
        check([measure(step) for step in steps])
