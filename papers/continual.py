"""Check published numbers on continual release against the streams of dpca, and release nightly subspaces of a9a.

The checked numbers are sensitivities, noise factors and exact events. The published numbers are for exact coefficients;
streams use nearby integer weights. The name of a check states this where it matters. The a9a data are public and all
keys come from seeds, so nothing is charged.

A buffered linear Toeplitz matrix (BLT) is included for comparison; dpca does not use it. It replaces the stored answers
of all nights by a few buffers. Its weights are the coefficients of the generating function
``c(z) = prod(1 - g_i z) / prod(1 - h_i z)``.
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.accounting.factorisation import (
    Series,
    Weights,
    choose_weights,
    coefficients_of,
    divided,
    exact_zeta,
    tree_factors,
)
from dpca_tasks.mechanisms.base import Plan, PrivacyTarget, Problem
from dpca_tasks.mechanisms.eigenpairs import leading_eigenpairs
from dpca_tasks.mechanisms.streams.stream_estimate import coefficients, combined, streamed_subspace
from dpca_tasks.mechanisms.streams.stream_ticks import plan_stream, release_tick, tick_noise, tick_query
from dpca_tasks.metrics import captured_variance
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.queries.streamed_moment import StreamedMoment
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.threads import one_thread
from papers.lib.experiments import Check, Matrix, Report, Runs, at_least, at_most, isotropic, near, report
from papers.lib.public_data import a9a_entries

RUNS, N_COMPONENTS = 3, 10
TARGET = PrivacyTarget(epsilon=1.0, delta=1e-6)
YEAR = 365
SENSITIVITIES = {7: 1.674500, 30: 2.146268, 90: 2.497727, 365: 2.944054, 730: 3.164798, 3650: 3.677185}
NIGHTS = {32: (0.967, 0.004), 128: (0.952, 0.006)}
"""The mean share of the best captured variance of a9a that a stream captures, by the number of nights, with its
tolerance."""
COMPANIONS = {32: {"independent releases": 0.898, "tree": 0.947}, 128: {"independent releases": 0.810, "tree": 0.921}}
"""The same shares for separate releases with equal noise, and for binary tree sums; their tolerance is `SEPARATE`."""
SEPARATE = 0.01

_CLOSE, _CLIP = 1e-4, math.sqrt(14.0)


def reproduce(*, runs: Runs = RUNS) -> Report:
    """Check the sensitivities, factors and events of streams, and the variance captured by nightly estimates of a9a.

    The data are public and the keys come from seeds, so no budget is spent. It takes about a minute on one processor.
    """
    return report(_checks(runs))


def _checks(runs: int) -> Iterator[Check]:
    yield from _check_strategies()
    yield from _check_tree_and_buffers()
    yield from _check_events()
    yield from _check_nights(runs)


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
    separate = np.abs(exact_multipliers(THREE).prefix(noise) - direct).max()
    yield at_most("three buffers: distance from the direct sums", 1e-11, got=float(separate))
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


def _check_nights(runs: int) -> Iterator[Check]:
    rows, _ = a9a_entries()
    for ticks, (expected, tolerance) in NIGHTS.items():
        with one_thread():
            found = [captured(Nights(rows=rows, clip_norm=_CLIP, ticks=ticks, run=run)) for run in range(runs)]
        means = {name: float(np.mean([each[name] for each in found])) for name in found[0]}
        stream = means["stream"]
        yield near(f"a9a in {ticks} nights: mean captured variance", expected, tolerance, got=stream)
        for name, published in COMPANIONS[ticks].items():
            yield near(f"a9a in {ticks} nights: mean captured variance of {name}", published, SEPARATE, got=means[name])
        above = stream - means["independent releases"]
        yield at_least(f"a9a in {ticks} nights: captured variance above that of independent releases", 0.05, got=above)
        yield at_least(
            f"a9a in {ticks} nights: captured variance above that of the tree", 0.01, got=stream - means["tree"]
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Nights:
    """A simulated stream: rows arrive over a number of nights, in random order and in equal numbers per night.

    Parameters
    ----------
    rows : sparse array of shape (n, d)
    clip_norm : float
    ticks : int
    run : int
        The seed of the order, the keys and the baselines.
    """

    rows: sparse.csr_array
    clip_norm: float
    ticks: int
    run: int

    @cached_property
    def weights(self) -> Weights:
        """The stream weights for this number of nights."""
        return choose_weights("sqrt", ticks=self.ticks)

    @cached_property
    def plan(self) -> Plan:
        """The plan of a stream over this number of nights."""
        problem = Problem(n_features=self.rows.shape[1], clip_norm=self.clip_norm)
        return plan_stream(problem, TARGET, weights=self.weights, ticks=self.ticks, n_components=N_COMPONENTS)

    @cached_property
    def ordered(self) -> sparse.csr_array:
        """The rows in order of arrival."""
        rng = np.random.default_rng((self.run, self.ticks))
        return sparse.csr_array(self.rows[rng.permutation(self.rows.shape[0])])

    @cached_property
    def arrived(self) -> NDArray[np.int64]:
        """The arrival night of each row."""
        n_rows = self.rows.shape[0]
        return np.asarray(np.arange(n_rows) * self.ticks // n_rows + 1)

    def released(self, tick: int) -> Matrix:
        """Return the noised answer of one night (tick), released through the curator with a key from the seed."""
        here = int(np.searchsorted(self.arrived, tick, side="right"))
        source = ArrayBlocks(self.ordered[:here], first_seen=self.arrived[:here])
        key = hashlib.sha256(f"continual {self.ticks} {self.run} {tick}".encode()).digest()
        reservation = InMemoryReservation(event=self.plan.event, key=key)
        return release_tick(Curator(source, reservation), self.plan, self.query(tick))

    def query(self, tick: int) -> StreamedMoment:
        """Return the weighted second moment that is released on one night (tick)."""
        arrivals = tuple(range(1, tick + 1))
        return tick_query(self.plan, weights=self.weights, horizon=self.ticks, tick=tick, arrivals=arrivals)

    def moments(self) -> Iterator[Matrix]:
        """For each night, yield the exact second moment of all rows that have arrived so far."""
        total = np.zeros((self.rows.shape[1],) * 2)
        for tick in range(1, self.ticks + 1):
            first, last = np.searchsorted(self.arrived, [tick, tick + 1])
            tonight = self.ordered[first:last]
            total = total + (tonight.T @ tonight).toarray()
            yield total


def captured(nights: Nights) -> dict[str, float]:
    """Return the captured variance relative to the best subspace, as a mean over nights, for each method.

    - ``stream`` releases every night with the code of dpca.
    - ``independent releases`` adds equal noise every night.
    - ``tree`` uses the best estimator on a complete binary tree.

    For the last two methods, only the noise of the estimate is simulated, from a seed.
    """
    rng = np.random.default_rng((nights.run, nights.ticks, 1))
    alone = nights.plan.noise_multiplier * nights.clip_norm**2
    baselines = {
        "independent releases": np.full(nights.ticks, math.sqrt(nights.ticks)),
        "tree": tree_factors(nights.ticks),
    }
    facts = tick_noise(nights.plan, nights.query(1))
    found: dict[str, list[float]] = {name: [] for name in ("stream", *baselines)}
    answers: list[Matrix] = []
    for tick, moment in enumerate(nights.moments(), start=1):
        values = np.linalg.eigvalsh(moment)[::-1]
        answers.append(nights.released(tick))
        multipliers = coefficients(nights.weights, kept=range(1, tick + 1))
        estimate = combined(answers, multipliers)
        subspace = streamed_subspace(
            estimate, nights.plan.problem, noise=facts, multipliers=multipliers, n_components=N_COMPONENTS
        )
        found["stream"].append(captured_variance(moment, subspace.components, values=values))
        for name, factors in baselines.items():
            noisy = moment + alone * factors[tick - 1] * isotropic(rng, len(moment))
            _, rows = leading_eigenpairs(noisy, N_COMPONENTS)
            found[name].append(captured_variance(moment, rows, values=values))
    return {name: float(np.mean(values)) for name, values in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffered:
    """A buffered linear Toeplitz matrix (BLT).

    ``poles`` and ``zeros`` are the h and g of the generating function ``c = prod(1 - g_i z) / prod(1 - h_i z)``. The
    multipliers m give prefix sums by the partial fractions ``1 / ((1 - z) c) = sum_p m_p / (1 - p z)``, in which p is 1
    or one of the zeros g.
    """

    poles: tuple[float, ...]
    zeros: tuple[float, ...]
    multipliers: tuple[float, ...]

    def weights(self, ticks: int) -> Series:
        """Return the first coefficients of the generating function c, which weight the records by age."""
        above = np.zeros(ticks)
        above[: len(self.zeros) + 1] = np.poly(self.zeros)
        return divided(above, np.asarray(np.poly(self.poles), np.float64))

    def prefix(self, inputs: Matrix) -> Matrix:
        """Return the noise of all prefix sums, shape (ticks, ...), from the noise of each tick in the same shape."""
        decay = np.array([1.0, *self.zeros])
        buffers = np.zeros((len(decay), *inputs.shape[1:]))
        found = np.empty_like(inputs)
        for at, each in enumerate(inputs):
            buffers = decay.reshape(-1, *[1] * each.ndim) * buffers + each
            found[at] = np.tensordot(self.multipliers, buffers, axes=1)
        return found


THREE = Buffered(
    poles=(0.99751784, 0.95821185, 0.65743310),
    zeros=(0.98758202, 0.87386707, 0.26150145),
    multipliers=(0.03071845, 0.09396514, 0.25699436, 0.61832205),
)
"""A BLT of three buffers for a year of prefix sums, with the multipliers to eight digits as published."""


def exact_multipliers(blt: Buffered) -> Buffered:
    """Return a copy of a BLT whose multipliers are computed from the poles and zeros to full precision."""
    poles = np.array([1.0, *blt.zeros])
    found = [
        np.prod(1.0 - np.array(blt.poles) / pole) / np.prod(1.0 - np.delete(poles, at) / pole)
        for at, pole in enumerate(poles)
    ]
    return Buffered(poles=blt.poles, zeros=blt.zeros, multipliers=tuple(map(float, found)))
