"""Reproduce what continual release promises: sensitivities, factors, exact events, and what a9a's nights capture.

The published numbers are those of exact coefficients; streams use integers near them, and say so where it matters. a9a
is public and all keys come from seeds, so nothing is charged.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prefect import flow
from prefect.client.schemas.objects import State

from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.accounting.factorisation import Weights, choose_weights, tree_factors
from dpca_tasks.accounting.power_series import coefficients_of, divided, exact_zeta
from dpca_tasks.mechanisms.parts.align import align
from dpca_tasks.mechanisms.parts.drift import contrast_of, measure_drift
from dpca_tasks.mechanisms.parts.stream_estimate import coefficients, combined
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.queries.streamed_moment import StreamedMoment
from dpca_tasks.records.sources import ArrayBlocks
from dpca_tasks.sums.exact_sum import exact_sum
from dpca_tasks.threads import one_thread
from flows.orchestration import form_fields
from flows.reproductions.checks import Check, Report, at_least, at_most, near, report, reported_by_flow
from flows.reproductions.continual_arms import TARGET, Nights, captured, isotropic
from flows.reproductions.continual_attack import ATTACKS, attack
from flows.reproductions.continual_forms import THREE, CorrelatedNoise, exact_multipliers, restated_worst
from flows.reproductions.second_moments import a9a_entries

type Matrix = NDArray[np.float64]

RUNS = 3
YEAR = 365
SENSITIVITIES = {7: 1.674500, 30: 2.146268, 90: 2.497727, 365: 2.944054, 730: 3.164798, 3650: 3.677185}
NIGHTS = {32: (0.967, 0.004), 128: (0.952, 0.006)}
"""The mean part that a stream captures of a9a, by the number of nights, and its tolerance."""
BESIDE = {32: {"independent releases": 0.898, "tree": 0.947}, 128: {"independent releases": 0.810, "tree": 0.921}}
"""The same for separate releases of equal noise, and for the tree, within `APART`."""
APART = 0.01

_CLOSE, _EXACT, _CLIP = 1e-4, 1e-12, math.sqrt(14.0)
_DRIFTS, _FEATURES, _COMPONENTS = 1500, 20, 4


def check_continual(*, runs: int = RUNS) -> Report:
    """Check streams against the published numbers.

    Parameters
    ----------
    runs : int
        Random orders of a9a whose mean is compared.
    """
    return report(_checks(runs))


@flow(name="reproduce-continual", persist_result=False, log_prints=False, validate_parameters=True)
def reproduce_continual(runs: form_fields.Runs = RUNS) -> Report | State[Any]:
    """Check a stream's sensitivities, factors and events, and what it captures of a9a night by night."""
    return reported_by_flow(check_continual, runs=runs)


def _checks(runs: int) -> Iterator[Check]:
    yield from _check_strategies()
    yield from _check_tree_and_buffers()
    yield from _check_events()
    yield from _check_worst_histories()
    yield from _check_program()
    yield from _check_correlated_noise()
    yield from _check_nights(runs)
    yield from _check_attacks()
    yield _check_drift()


def _relative(name: str, expected: float, *, got: float, tolerance: float = _CLOSE) -> Check:
    return near(name, expected, tolerance * expected, got=got)


def _check_strategies() -> Iterator[Check]:
    for ticks, expected in SENSITIVITIES.items():
        series = coefficients_of("sqrt", ticks)
        yield _relative(f"sqrt: squared sensitivity of {ticks} ticks", expected, got=float(series @ series))
    power = coefficients_of("power", YEAR)
    zeta = exact_zeta(power, strategy="power", window=None, half_life=None)
    yield _relative("power: sensitivity of any number of ticks", 1.43878, got=zeta)
    last = zeta * float(np.linalg.norm(divided(np.ones(YEAR), power)))
    yield _relative(f"power: factor at tick {YEAR}", 3.5690, got=last)
    for window, expected in {7: 1.77832, 30: 2.36790, 90: 2.81314}.items():
        series = coefficients_of("window", 1500 * window, window=window)
        yield _relative(f"window of {window}: factor for ever", expected, got=float(series @ series))
    decay = coefficients_of("decay", 3000, half_life=30.0)
    yield _relative("decay of half-life 30: factor for ever", 1.8828, got=float(decay @ decay))
    year = choose_weights("sqrt", ticks=YEAR)
    yield near("integer weights: bits for a year", 6, 0, got=year.bits)
    yield _relative("integer weights: squared sensitivity of a year", 2.941162, got=float(year.zeta_squared(YEAR)))
    yield _relative("integer weights: largest factor of a year", 2.9507, got=float(year.factors(YEAR).max()))


def _check_tree_and_buffers() -> Iterator[Check]:
    tree = tree_factors(YEAR)
    for tick, expected in {1: 3.000, 255: 6.574, 256: 2.123, YEAR: 5.706}.items():
        yield _relative(f"tree: factor at tick {tick} of {YEAR}", expected, got=float(tree[tick - 1]), tolerance=2e-4)
    weights = THREE.weights(YEAR)
    prefix = divided(np.ones(YEAR), weights)
    worst = float(np.linalg.norm(weights) * np.linalg.norm(prefix))
    yield _relative("three buffers: largest factor of a year", 2.9454, got=worst)
    noise = np.random.default_rng(0).standard_normal((YEAR, 5))
    direct = np.stack([np.convolve(prefix, column)[:YEAR] for column in noise.T], axis=1)
    apart = np.abs(exact_multipliers(THREE).prefix(noise) - direct).max()
    yield at_most("three buffers: distance from the direct sums", 1e-11, got=float(apart))
    rounded = np.abs(np.array(exact_multipliers(THREE).multipliers) - THREE.multipliers).max()
    yield at_most("three buffers: distance from the published multipliers", 1e-6, got=float(rounded))


def _check_events() -> Iterator[Check]:
    multiplier = gaussian_noise_multiplier(epsilon=TARGET.epsilon, delta=TARGET.delta)
    squares = {ticks: float((coefficients_of("sqrt", ticks) ** 2).sum()) for ticks in (YEAR, 2 * YEAR)}
    noise = multiplier * math.sqrt(squares[YEAR])
    yield _relative("noise multiplier at epsilon 1, delta 1e-6", 4.224679, got=multiplier)
    yield _relative("noise std of a year, in squared clip norms", 7.248807, got=noise)
    extended = noise / math.sqrt(squares[2 * YEAR] - squares[YEAR])
    yield _relative("noise multiplier of a second year's event", 15.4284, got=extended)


def _check_worst_histories() -> Iterator[Check]:
    for strategy, terms in _STRATEGIES.items():
        weights = choose_weights(longest=64, ticks=64, **terms)
        wanted = weights.wanted(64, weights.answer)
        product = np.convolve(divided(wanted, weights.series), weights.series)[:64]
        yield at_most(f"{strategy}: error of b c = a", _EXACT, got=float(np.abs(product - wanted).max()))
    for versions, expected in {2: 2.1723, 3: 3.1108}.items():
        got = restated_worst(12, versions=versions)
        yield _relative(f"changes alone: worst of {versions} versions, over zeta squared", expected, got=got)
    for strategy, terms in _STRATEGIES.items():
        weights = choose_weights(longest=12, ticks=12, **terms)
        yield at_most(
            f"{strategy}: worst history of 12 ticks, over the stated sensitivity", 1.0, got=_worst(weights, 12)
        )


_STRATEGIES: dict[str, dict[str, Any]] = {
    "sqrt": {"strategy": "sqrt"},
    "power": {"strategy": "power"},
    "window": {"strategy": "window", "window": 4},
    "decay": {"strategy": "decay", "half_life": 4.0},
}


def _worst(weights: Weights, ticks: int) -> float:
    """Return the largest movement of all ticks when one history replaces another, over the stated one."""
    columns = np.array([[weights.weight(tick - at) for tick in range(ticks)] for at in range(ticks)], np.int64)
    crossed = np.maximum(-columns[:, None] * columns[None], 0).sum(axis=-1)
    own = (columns**2).sum(axis=-1)
    worst = int((own[:, None] + own[None] + 2 * crossed).max())
    return math.sqrt(worst / 4**weights.bits / weights.replaced_squared(ticks))


def _check_program() -> Iterator[Check]:
    rows = np.random.default_rng(1).normal(size=(600, 6))
    seen = np.repeat(np.arange(1, 13), 50)
    weights, arrivals = choose_weights("sqrt", ticks=12), tuple(range(1, 13))
    moment = SecondMoment(n_features=6, clip_norm=2.0, relation="add_remove", bits=9)
    sums: list[Matrix] = []
    unlike = 0
    for tick in range(1, 13):
        query = StreamedMoment.of_moment(moment, weights=weights, horizon=12, tick=tick, arrivals=arrivals[:tick])
        here = seen <= tick
        found = [
            exact_sum(ArrayBlocks(rows[here], first_seen=seen[here], block_records=size), query) for size in (7, 4096)
        ]
        unlike += int(np.any(found[0] != found[1]))
        sums.append(found[0] / query.steps_per_unit)
    yield near("integer sums that depend on the blocks", 0, 0, got=unlike)
    apart = 0.0
    for tick in range(1, 13):
        prefix = exact_sum(ArrayBlocks(rows[seen <= tick]), moment) / moment.steps_per_unit
        estimate = combined(sums[:tick], coefficients(weights, kept=range(1, tick + 1)))
        apart = max(apart, float(np.abs(estimate - prefix).max() / np.abs(prefix).max()))
    yield at_most("error of prefix sums without noise", _EXACT, got=apart)
    year, closed = choose_weights("sqrt", ticks=YEAR), 40
    for later, expected in {1: 0.500, 7: 0.784, 30: 0.904}.items():
        kept = [tick for tick in range(1, closed + later + 1) if tick != closed]
        share = coefficients(year, kept=kept) @ [year.weight(tick - closed) / 2**year.bits for tick in kept]
        yield near(f"share of a closed tick's arrivals, {later} later", expected, 0.005, got=float(share))


def _check_correlated_noise() -> Iterator[Check]:
    """Check the other form: answers of increments equal those of snapshots, and a second run those of the first."""
    ticks, size = 24, 210
    inverse = divided(np.ones(ticks), coefficients_of("sqrt", ticks))
    made, again = (CorrelatedNoise(key=5, scale=2.0**20, size=size, inverse=tuple(inverse)) for _ in range(2))
    tonight = np.random.default_rng(2).integers(-(2**18), 2**18, size=(ticks, size))
    running, before = np.zeros(size, np.int64), np.zeros(size, np.int64)
    unlike = other = 0
    for tick in range(1, ticks + 1):
        noise = made.upto(tick)
        running = running + tonight[tick - 1] + noise - before
        before = noise
        unlike += int(np.any(running != tonight[:tick].sum(axis=0) + noise))
        other += int(np.any(noise != again.upto(tick)))
    yield near("correlated noise: increments that are no snapshots", 0, 0, got=unlike)
    yield near("correlated noise: nights that a second run makes otherwise", 0, 0, got=other)


def _check_nights(runs: int) -> Iterator[Check]:
    rows = a9a_entries()
    for ticks, (expected, tolerance) in NIGHTS.items():
        nights = [Nights(rows=rows, clip_norm=_CLIP, ticks=ticks, run=run) for run in range(runs)]
        with one_thread():
            found = [captured(each) for each in nights]
        means = {name: float(np.mean([each[name] for each, _ in found])) for name in found[0][0]}
        stream = means["stream"]
        yield near(f"a9a in {ticks} nights: mean captured variance", expected, tolerance, got=stream)
        for name, published in BESIDE[ticks].items():
            yield near(f"a9a in {ticks} nights: mean captured variance of {name}", published, APART, got=means[name])
        above = stream - means["independent releases"]
        yield at_least(f"a9a in {ticks} nights: above independent releases by", 0.05, got=above)
        yield at_least(f"a9a in {ticks} nights: above the tree by", 0.01, got=stream - means["tree"])
        if ticks == min(NIGHTS):
            yield _check_retry(nights[0])
            yield from _check_alignment(found[0][1])


def _check_retry(nights: Nights) -> Check:
    """Ask for a tick again: of its reservation, and of one with the same key, in other blocks."""
    reservation = nights.reserved(20)
    first = nights.released(20, reservation=reservation)
    others = (nights.released(20, reservation=reservation), nights.released(20, block_records=300))
    return near("a9a: retried ticks with other bits", 0, 0, got=sum(not np.array_equal(first, each) for each in others))


def _check_alignment(versions: list[Matrix]) -> Iterator[Check]:
    jumps: dict[str, list[float]] = {"none": [], "signs": [], "procrustes": []}
    moved = 0.0
    methods: tuple[Callable[[Matrix, Matrix], Any], ...] = (
        lambda rows, before: align(rows, before, method="none"),
        lambda rows, before: align(rows, before, method="signs"),
        lambda rows, before: align(rows, before, method="procrustes"),
    )
    for name, method in zip(jumps, methods, strict=True):
        before = versions[0]
        for rows in versions[1:]:
            found = method(rows, before).components
            moved = max(moved, float(np.abs(found.T @ found - rows.T @ rows).max()))
            jumps[name].append(float(np.linalg.norm(found - before)))
            before = found
    means = {name: float(np.mean(values)) for name, values in jumps.items()}
    yield at_most("a9a: change of a projector by alignment", _EXACT, got=moved)
    yield at_most(
        "a9a: jump of aligned coordinates, over that of signs alone", 1.0, got=means["procrustes"] / means["signs"]
    )


def _check_attacks() -> Iterator[Check]:
    for name, each in ATTACKS.items():
        found, error = attack(each)
        if each.is_found:
            yield at_least(f"attack: {name} is found above the claim", 1.0 + 3.0 * error, got=found)
        else:
            yield at_most(f"attack: {name}, measured mu over the claim", 1.0, got=found, tolerance=3.0 * error)
            yield near(f"attack: {name}, measured mu over what it should show", each.expected, 3.0 * error, got=found)


def _check_drift() -> Check:
    """Check the mean of the statistic where nothing changed; all noise is drawn anew."""
    ticks, before, change = 24, 8, 16
    weights = choose_weights("sqrt", ticks=ticks)
    moment = 30.0 * np.diag(np.linspace(1.0, 0.0, _FEATURES))
    reach = np.array([[weights.weight(tick - at) for at in range(ticks)] for tick in range(ticks)]) / 2**weights.bits
    contrast = contrast_of(weights, kept=range(1, ticks + 1), before=before, change=change, counts=[30.0] * ticks)
    early = coefficients(weights, kept=range(1, before + 1))
    rng, ratios = np.random.default_rng(3), []
    for _ in range(_DRIFTS):
        answers = [share * moment + 3.0 * isotropic(rng, _FEATURES) for share in reach.sum(axis=1)]
        rows = np.linalg.eigh(combined(answers[:before], early))[1][:, -_COMPONENTS:].T
        difference = combined([answers[tick - 1] for tick in contrast.ticks], contrast.multipliers)
        found = measure_drift(difference, rows, contrast, noise_std=3.0 / math.sqrt(2.0), clip_norm=1.0)
        ratios.append(found.statistic / found.degrees)
    return near("drift: mean statistic over its degrees where nothing changed", 1.0, 0.02, got=float(np.mean(ratios)))
