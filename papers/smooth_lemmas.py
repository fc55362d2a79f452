"""Check the lemmas of the smooth sensitivity paper, and its example against global sensitivity.

Gonen and Gilad-Bachrach (2018) prove Theorem 5 and Lemmas 8 to 16 with constants that they do not state. Here each
statement is evaluated or simulated, with the bounds of dpca in place of these constants. All data are synthetic and
drawn from `SEEDS`, so nothing is charged and a run can be repeated.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import ortho_group

from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.accounting.smooth_sensitivity import local_sensitivity, smooth_bound
from dpca_tasks.mechanisms.base import PrivacyTarget
from dpca_tasks.mechanisms.subspace.smooth_sensitivity import SmoothSensitivity
from papers.lib.claims import Claim, Slope, sentence, slope_of
from papers.lib.experiments import Check, Matrix, Report, at_most, near, report
from papers.lib.kept_rows import KeptRows, along_axes, release

SEEDS = (1, 2, 3, 4, 5)
EPSILON, DELTA, FEATURES = 1.0, 1e-3, 100
"""The settings of the example of section 4.1."""
COPIES = (100, 1_000, 10_000, 100_000)
"""Values of n in the example of section 4.1."""
GAPS = (0.4, 0.2, 0.1, 0.05, 0.025)
RIVALS = (2, 8, 32)
"""Numbers of directions with eigenvalues close to the largest, for Lemma 14."""
DIMENSIONS = (25, 100, 400, 1_600)
SAMPLES = (500, 1_000, 2_000, 4_000, 8_000)
SPIKES = (1.3, 1.7, 2.4, 3.5)
"""Variances of the first of two directions, relative to the second, for the risk of a sample's direction."""
DRAWS = 200
"""Draws from which a probability or a median is estimated."""
SURE = 0.95
BOUND = math.sqrt(2.0)
"""C of Corollaries 12 and 13: the least C with L(g) <= C / g at every eigengap g of records of norm 1."""

type Slopes = list[dict[str, Any]]


def reproduce() -> Report:
    """Run the lemmas of smooth sensitivity and the example of section 4.1, over five seeds.

    Everything is synthetic, so no budget is spent. It takes less than a minute on one processor.

    Returns
    -------
    Report
        With ``claims`` (each statement with its verdict), ``slopes`` (with 95 % bands over seeds) and ``seeds``.
    """
    claims: list[Claim] = []
    slopes: Slopes = []
    parts = (example, sensitivity, smoothness, eigengap, gap_of_a_sample, records, tails, risk)
    checks = itertools.chain.from_iterable(part(claims, slopes) for part in parts)
    found = report(checks, seeds=SEEDS, slopes=slopes)
    return found | {"claims": [each.row() for each in claims], "notes": [sentence(each) for each in claims]}


def example(claims: list[Claim], slopes: Slopes) -> Iterator[Check]:
    """Check the example of section 4.1: n + 1 and n records along two axes, and a sample with eigengap 1/4."""
    hard = [_smooth_error(n + 1, n, seed=(seed, n)) for seed in SEEDS for n in COPIES]
    clear = [[_smooth_error(5 * n, 3 * n, seed=(seed, n)) for n in COPIES[1:]] for seed in SEEDS]
    noisy = [_global_error(np.random.default_rng(seed)) for seed in SEEDS]
    yield near("section 4.1: squared sine on n + 1 and n records, median", 0.99, 0.03, got=float(np.median(hard)))
    yield near("section 4.1: squared sine with noise for sqrt 2, median", 0.99, 0.03, got=float(np.median(noisy)))
    falls = slope_of(COPIES[1:], clear)
    slopes.append(falls.row(item="section 4.1", value="squared sine at eigengap 1/4", axis="n", states=-2.0))
    yield near("section 4.1: squared sine at eigengap 1/4 in n, slope", -2.0, 0.1, got=falls.mean)
    claims.append(
        Claim(
            item="section 4.1, example",
            states="an error that no sample size reduces, with noise for the global sensitivity",
            measured=f"squared sine {np.median(noisy):.2f} at every n, and {np.median(hard):.2f} with smooth noise",
            holds=bool(min(np.median(noisy), np.median(hard)) > 0.9),
        )
    )


def _smooth_error(first: int, second: int, *, seed: tuple[int, ...]) -> float:
    """Return the squared sine of the angle between a release by smooth sensitivity and the first axis.

    There are ``first`` records along the first axis, and ``second`` along the second.
    """
    rows = KeptRows(source=along_axes([first, second, *[0] * (FEATURES - 2)]))
    target = PrivacyTarget(epsilon=EPSILON, delta=DELTA, allow_large_delta=True)
    components: Matrix = release(SmoothSensitivity(n_components=1), target, rows, seed=seed).components
    return float(np.square(components[0, 1:]).sum())


def _global_error(rng: np.random.Generator) -> float:
    """Return the squared sine of a release with noise for the global sensitivity, which does not depend on records."""
    std = math.sqrt(2.0) * gaussian_noise_multiplier(epsilon=EPSILON, delta=DELTA)
    noised = std * rng.standard_normal(FEATURES)
    noised[0] += 1.0
    return float(1.0 - noised[0] ** 2 / (noised @ noised))


def sensitivity(claims: list[Claim], _slopes: Slopes) -> Iterator[Check]:
    """Check Theorem 5, on how far one record turns the leading direction: search the worst record in l2 and l1."""
    products = {}
    for gap in (0.5, 1.05, 2.0, 10.0, 1_000.0):
        turned = turned_most(gap)
        bound = float(local_sensitivity(gap, relation="add_remove", n_components=1, n_features=FEATURES))
        products[gap] = turned * gap
        yield near(f"Theorem 5: rotation found, divided by the bound, eigengap {gap:g}", 1.0, 0.01, got=turned / bound)
    far, near_one = products[1_000.0], products[1.05]
    claims.append(
        Claim(
            item="Theorem 5, l2",
            states="a rotation of at most 3 C / (n GAP) for a constant C that is not named, and sqrt 2 globally",
            measured=f"rotation times n GAP up to {near_one:.2f} near 1 and {far:.2f} far above; sqrt 2 at most",
            holds=max(products.values()) <= math.sqrt(2.0) + 1e-6,
        )
    )
    flat = largest_l1(FEATURES)
    yield near(f"Theorem 5: l1 distance of two directions, d={FEATURES}", math.sqrt(2 * FEATURES), 1e-6, got=flat)
    claims.append(
        Claim(
            item="Theorem 5, l1",
            states="a global l1 sensitivity of at most 2",
            measured=f"{flat:.1f} = sqrt(2 d) for two perpendicular directions of d = {FEATURES}",
            holds=flat <= 2.0,
        )
    )
    rng = np.random.default_rng(SEEDS[0])
    left = [ortho_group.rvs(FEATURES, random_state=rng)[0, 0] ** 2 for _ in range(20)]
    claims.append(
        Claim(
            item="Algorithm 1, rotation",
            states="R U with a random orthogonal R of order d",
            measured=f"squared cosine {np.mean(left):.2f} without noise, that of random directions",
            holds=bool(np.mean(left) > 0.5),
        )
    )


def turned_most(gap: float, *, angles: int = 20_001) -> float:
    """Return the largest distance that one added or removed record moves the leading direction, at eigengap ``gap``."""
    angle = np.linspace(0.0, math.pi / 2, angles)
    # the rotation of the leading eigenvector of diag(gap, 0) + sign x x^T, for unit vectors x at each angle
    turns = [0.5 * np.arctan2(sign * np.sin(2 * angle), gap + sign * np.cos(2 * angle)) for sign in (1.0, -1.0)]
    return float(2.0 * np.sin(np.abs(np.stack(turns)) / 2.0).max())


def largest_l1(n_features: int) -> float:
    """Return the l1 distance of two perpendicular unit vectors, at the better sign of one of them.

    The two vectors are normalized sums and differences of two vectors with entries of equal magnitude.
    """
    flat = np.ones(n_features) / math.sqrt(n_features)
    other = flat * np.where(np.arange(n_features) % 2, 1.0, -1.0)
    first, second = (flat + other) / math.sqrt(2.0), (flat - other) / math.sqrt(2.0)
    return float(min(np.abs(first - second).sum(), np.abs(first + second).sum()))


def smoothness(claims: list[Claim], _slopes: Slopes) -> Iterator[Check]:
    """Check Lemma 8, on how much the smooth bound changes between neighbors.

    It is checked for the bound of dpca and for Corollary 12 as printed.
    """
    beta = 0.05
    gaps = np.random.default_rng(SEEDS[0]).uniform(0.0, 60.0, DRAWS)
    moved = np.maximum(gaps + np.random.default_rng(SEEDS[1]).uniform(-1.0, 1.0, DRAWS), 0.0)

    def largest(bound: Callable[[float], float]) -> float:
        return max(
            abs(math.log(bound(one) / bound(other))) / beta
            for one, other in zip(gaps.tolist(), moved.tolist(), strict=True)
        )

    ours = largest(_smooth(beta))
    yield at_most("Lemma 8: largest log ratio of dpca's bound divided by beta", 1.0, got=ours, tolerance=1e-9)
    printed = largest(lambda gap: printed_bound(gap, smoothness=beta))
    claims.append(
        Claim(
            item="Corollary 12, the bound as printed",
            states="a bound whose logarithm moves by at most beta with one record",
            measured=f"a move of {printed:.0f} beta, since C / (n GAP - k) has no cap where n GAP - k is small",
            holds=printed <= 1.0,
        )
    )


def _smooth(beta: float) -> Callable[[float], float]:
    return lambda gap: smooth_bound(
        gap, smoothness=beta, relation="add_remove", n_components=1, n_features=FEATURES, tolerance=0.0
    )


def printed_bound(gap: float, *, smoothness: float) -> float:
    """Return the smooth bound of Corollary 12, ``max_k e^{-beta k} A^(k)``, at eigengap g.

    ``A^(k)`` is C / (g - k) if this is positive, and sqrt 2 otherwise. beta is ``smoothness``.
    """
    k = np.arange(math.ceil(gap) + 1)
    left = gap - k
    bound = np.where(left > 0, BOUND / np.where(left > 0, left, 1.0), math.sqrt(2.0))
    return float((np.exp(-smoothness * k) * bound).max())


def eigengap(claims: list[Claim], _slopes: Slopes) -> Iterator[Check]:
    """Check Lemma 11, on how much k records change the eigengap.

    The records are along the first two eigenvectors, or in random directions.
    """
    moves, k = [], 7
    rng = np.random.default_rng(SEEDS[0])
    moment = np.diag([60.0, 30.0, *([5.0] * 8)])
    for _ in range(DRAWS):
        rows = rng.standard_normal((k, 10))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        moves.append(abs(_gap(moment + rows.T @ rows) - 30.0) / k)
    up, down = (_gap(moment + k * np.diag(np.eye(10)[at])) - 30.0 for at in (0, 1))
    yield near("Lemma 11: move of the eigengap by k copies of u_1, divided by k", 1.0, 1e-9, got=up / k)
    yield near("Lemma 11: move of the eigengap by k copies of u_2, divided by k", -1.0, 1e-9, got=down / k)
    yield at_most("Lemma 11: largest move by k random records, divided by k", 1.0, got=max(moves))
    claims.append(
        Claim(
            item="Lemma 11",
            states="a move of n GAP by at most k, attained on both sides",
            measured=f"{up / k:+.3f} k and {down / k:+.3f} k, and at most {max(moves):.2f} k by random records",
            holds=max(moves) <= 1.0 and abs(up - k) + abs(down + k) < 1e-6,
        )
    )


def _gap(moment: NDArray[np.float64]) -> float:
    values = np.linalg.eigvalsh(moment)
    return float(values[-1] - values[-2])


def gap_of_a_sample(claims: list[Claim], slopes: Slopes) -> Iterator[Check]:
    """Check Lemma 14: find the size from which a sample has at least half of the eigengap of its distribution."""
    in_gap = [[enough_records(gap, 2, seed=seed) for gap in GAPS] for seed in SEEDS]
    in_rivals = [[enough_records(0.1, rivals, seed=seed) for rivals in RIVALS] for seed in SEEDS]
    found, fewer = slope_of(GAPS, in_gap), slope_of(RIVALS, in_rivals)
    slopes.append(found.row(item="Lemma 14", value="records needed", axis="GAP", states=-2.0))
    slopes.append(fewer.row(item="Lemma 14", value="records needed", axis="d", states="at most log d"))
    yield near("Lemma 14: records needed in GAP, slope", -2.0, 0.15, got=found.mean)
    yield at_most("Lemma 14: records needed in d, slope", 0.0, got=fewer.mean)
    constants = [n * gap**2 for each in in_gap for n, gap in zip(each, GAPS, strict=True)]
    claims.append(
        Claim(
            item="Lemma 14",
            states="that a multiple of log d / GAP^2 records gives half of the eigengap",
            measured=f"{max(constants):.1f} / GAP^2 at most; slope {found} in GAP and {fewer} in d",
            holds=found.low <= -1.85 and found.high >= -2.15 and fewer.high <= 0.0,
        )
    )


def enough_records(gap: float, n_rivals: int, *, seed: int) -> int:
    """Return the smallest sample size, to within 2 %, at which 95 % of samples have at least half of the eigengap.

    Records are along axes. The first axis has a larger share of the records than its ``n_rivals`` rivals, by ``gap``.
    The rivals have equal shares. The first axis and the rivals together have 60 % of the records.
    """
    rival = (0.6 - gap) / n_rivals
    shares = [rival + gap, *[rival] * (n_rivals - 1), 1.0 - gap - rival * n_rivals]

    def is_enough(n: int) -> bool:
        counts = np.random.default_rng(seed).multinomial(n, shares, size=DRAWS)[:, :-1] / n
        return bool(np.mean(counts[:, 0] - counts[:, 1:].max(axis=1) >= gap / 2.0) >= SURE)

    above = 64
    while not is_enough(above):
        above *= 2
    below = above // 2
    while above > max(1.02 * below, below + 1):
        middle = round(math.sqrt(below * above))
        below, above = (below, middle) if is_enough(middle) else (middle, above)
    return above


def records(claims: list[Claim], _slopes: Slopes) -> Iterator[Check]:
    """Check Lemmas 15 and 16: evaluate the smooth bound at the stated numbers of records, over a grid of settings."""
    settings = itertools.product((10, 100, 1_000), (0.1, 0.5, 0.9), (0.01, 0.1, 0.9), (1e-3, 1e-6))
    excess: dict[str, list[float]] = {"Lemma 15": [], "Lemma 16": []}
    for d, epsilon, error, delta in settings:
        excess["Lemma 15"].append(approximate_excess(d, epsilon, error, delta))
        excess["Lemma 16"].append(pure_excess(d, epsilon, error))
    for item, ratios in excess.items():
        yield at_most(
            f"{item}: smooth bound divided by the stated one, largest of {len(ratios)} settings", 1.0, got=max(ratios)
        )
        claims.append(
            Claim(
                item=item,
                states="a smooth bound of at most epsilon_g epsilon_p / sqrt d (in l1: / d) at its records",
                measured=f"{max(ratios):.2f} of that bound at most, with C = sqrt 2",
                holds=max(ratios) <= 1.0,
            )
        )


def approximate_excess(n_features: int, epsilon: float, error: float, delta: float) -> float:
    """Return the smooth bound U at the records of Lemma 15, divided by ``epsilon_g epsilon_p / sqrt d``."""
    size = n_features + math.log(2.0 / delta)
    first = 2.0 * BOUND * math.sqrt(n_features) / (epsilon * error)
    second = 8.0 * size * math.log(math.sqrt(2.0 * n_features) / (epsilon * error)) / epsilon
    bound = _bound(first + second, n_features, smoothness=epsilon / (4.0 * size))
    return bound * math.sqrt(n_features) / (epsilon * error)


def pure_excess(n_features: int, epsilon: float, error: float) -> float:
    """Return the l1 smooth bound U at the records of Lemma 16, divided by ``epsilon_g epsilon_p / d``.

    The bound is capped at sqrt(2 d), the largest l1 distance of two directions.
    """
    first = 2.0 * BOUND * n_features**1.5 / (epsilon * error)
    second = 6.0 * n_features * math.log(2.0 * n_features / (epsilon * error)) / epsilon
    bound = _bound(first + second, n_features, smoothness=epsilon / (6.0 * n_features))
    return math.sqrt(n_features) * bound * n_features / (epsilon * error)


def _bound(gap: float, n_features: int, *, smoothness: float) -> float:
    return smooth_bound(
        gap, smoothness=smoothness, relation="add_remove", n_components=1, n_features=n_features, tolerance=0.0
    )


def tails(claims: list[Claim], slopes: Slopes) -> Iterator[Check]:
    """Check the proof of Theorem 2: measure the norms of vectors with Cauchy entries."""
    norms = [
        [np.abs(np.random.default_rng([seed, d]).standard_cauchy((DRAWS, d))) for d in DIMENSIONS] for seed in SEEDS
    ]
    euclidean = slope_of(DIMENSIONS, [[float(np.median(np.linalg.norm(z, axis=1))) for z in each] for each in norms])
    sums = slope_of(DIMENSIONS, [[float(np.median(z.sum(axis=1))) for z in each] for each in norms])
    for norm, found in (("l2", euclidean), ("l1", sums)):
        slopes.append(found.row(item="proof of Theorem 2", value=f"{norm} norm of Cauchy noise", axis="d", states=1.0))
        claims.append(
            Claim(
                item=f"proof of Theorem 2, {norm} norm",
                states="a norm of d Cauchy variables of order d",
                measured=f"slope {found} in d"
                + ("" if norm == "l2" else ", as d log d: absolute values are not 1-stable"),
                holds=found.low <= 1.0 + 0.02 and found.high >= 1.0 - 0.02,
            )
        )
    yield near("proof of Theorem 2: l2 norm of Cauchy noise in d, slope", 1.0, 0.08, got=euclidean.mean)
    yield near("proof of Theorem 2: l1 norm of Cauchy noise in d, slope", 1.19, 0.08, got=sums.mean)


def risk(claims: list[Claim], slopes: Slopes) -> Iterator[Check]:
    """Check the proofs of Theorems 1 and 2: measure the excess risk of the direction of a sample, by sample size."""
    gaps = [_true_gap(spike) for spike in SPIKES]
    in_n = slope_of(SAMPLES, [_excess(SPIKES[-1:], SAMPLES, seed=seed) for seed in SEEDS])
    in_gap = slope_of(gaps, [_excess(SPIKES, SAMPLES[-1:], seed=seed) for seed in SEEDS])
    for axis, found, tolerance in (("n", in_n, 0.15), ("GAP", in_gap, 0.4)):
        slopes.append(found.row(item="proof of Theorem 1", value="excess risk of a sample", axis=axis, states=-1.0))
        yield near(f"proof of Theorem 1: excess risk of a sample in {axis}, slope", -1.0, tolerance, got=found.mean)
    claims.append(_risk_claim(in_n, in_gap))


def _risk_claim(in_n: Slope, in_gap: Slope) -> Claim:
    return Claim(
        item="proof of Theorem 1, sample size",
        states="an excess risk of order 1 / (n GAP) without privacy, measured where two eigenvalues are large",
        measured=f"slope {in_n} in n and {in_gap} in GAP",
        holds=in_n.low <= -0.85 and in_gap.low <= -0.85,
    )


def _spiked(spike: float, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw rows of norm 1 in two directions: a small eigengap between two large eigenvalues, the worst case."""
    rows = rng.standard_normal((n, 2))
    rows[:, 0] *= math.sqrt(spike)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def _true_gap(spike: float) -> float:
    """Return the eigengap of the distribution of `_spiked` rows, ``(r - 1) / (r + 1)`` with r^2 = ``spike``."""
    return (math.sqrt(spike) - 1.0) / (math.sqrt(spike) + 1.0)


def _excess(spikes: Sequence[float], sizes: Sequence[int], *, seed: int, draws: int = 60) -> list[float]:
    """Return the mean over draws of GAP times the squared sine, for each pair of a spike and a sample size."""
    found = []
    for spike, n in itertools.product(spikes, sizes):
        rng, sines = np.random.default_rng([seed, n]), []
        for _ in range(draws):
            rows = _spiked(spike, n, rng)
            sines.append(1.0 - np.linalg.eigh(rows.T @ rows)[1][0, -1] ** 2)
        found.append(_true_gap(spike) * float(np.mean(sines)))
    return found
