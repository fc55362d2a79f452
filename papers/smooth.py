"""Measure the theorems of Gonen and Gilad-Bachrach (2018) on smooth sensitivity, which come without experiments.

The mechanisms of dpca run on synthetic records along the axes, so that the eigengap is known exactly. The slopes of
errors in d, in the eigengap and in epsilon are compared with Theorems 1 and 2 and their proofs. The constants of the
paper are compared with exact calibration. The eigengap at which smooth sensitivity becomes more accurate than other
mechanisms is computed too.

The error of every mechanism depends only on the eigengap in records, n GAP. So n and GAP are not varied separately,
except in one check of this fact. Nothing is charged. Seeds are 1, 2, ... up to the number of runs. A seed determines
all noise of its run, at every eigengap, so a run can be repeated.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.optimize import brentq

from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.accounting.published import FORMULAS, Settings
from dpca_tasks.accounting.smooth_sensitivity import gaussian_shift, smooth_bound, smooth_gaussian_shift, useful_gap
from dpca_tasks.mechanisms.base import PrivacyTarget
from dpca_tasks.mechanisms.subspace import MECHANISMS
from papers.lib.claims import Claim, Slope, sentence, slope_of
from papers.lib.experiments import Check, Matrix, Report, Runs, at_least, at_most, judged, near, report
from papers.lib.kept_rows import KeptRows, along_axes, release

DELTA, RUNS = 1e-3, 9
OTHERS = 10
"""The number of records along each axis, without the additional records along the planted directions."""
CLOSE = 0.1
"""The squared sine up to which a direction counts as found."""
FAR = 200_000
"""An eigengap at which all noise is small."""
LEAST, RATIO, HIGHEST = 20.0, 1.05, 170
"""Searches use the eigengaps ``LEAST * RATIO**i``. The search for a crossing goes down from ``i = HIGHEST``."""
EPSILONS = (0.2, 0.4, 0.8)


CONTENDERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "Analyze Gauss": ("analyze_gauss", {"rounds": 1}),
    "propose-test-release": ("propose_test_release", {}),
    "exponential": ("exponential", {}),
    "smooth Gaussian": ("smooth_sensitivity", {}),
    "smooth Gaussian, printed": ("smooth_sensitivity", {"calibration": "paper"}),
    "smooth spherical t": ("smooth_sensitivity", {"noise": "spherical_t"}),
    "smooth Cauchy": ("smooth_sensitivity", {"noise": "cauchy"}),
}
"""Mechanisms with their settings, by their names in tables."""
PURE = ("exponential", "smooth spherical t", "smooth Cauchy")
"""The mechanisms that run with delta 0."""
USEFUL = (
    # D, k, epsilon; the eigengaps from which the noise is at most twice its limit, with printed and with exact noise
    (123, 1, 0.1, 59_000, 5_500),
    (123, 1, 1.0, 4_600, 600),
    (1230, 10, 0.1, 743_000, 23_000),
    (1230, 10, 1.0, 62_000, 2_400),
    (7840, 10, 1.0, 456_000, 6_600),
)
IN_FEATURES = {
    # for each mechanism: the expected exponent of d in the length of the noise at a large eigengap, and a tolerance
    "smooth Gaussian": (0.5, 0.12),
    "smooth Gaussian, printed": (0.5, 0.12),
    "smooth spherical t": (1.0, 0.15),
    "smooth Cauchy": (1.5, 0.3),
}
NEEDED = {
    # for each mechanism: the expected exponent of d in the eigengap needed to find a direction, and a tolerance
    "Analyze Gauss": (0.5, 0.12),
    "exponential": (1.0, 0.15),
    "smooth Gaussian": (0.5, 0.15),
    "smooth Gaussian, printed": (1.0, 0.15),
    "smooth spherical t": (1.0, 0.25),
    "smooth Cauchy": (1.5, 0.35),
}
CROSSINGS = ((123, 1, 1.0), (400, 1, 1.0), (123, 3, 1.0), (123, 1, 0.1))
"""The settings d, k and epsilon at which two mechanisms are compared over the eigengap."""
SIZES = (50, 100, 200, 400)


def reproduce(*, runs: Runs = RUNS) -> Report:
    """Check the theorems of smooth sensitivity on planted spectra, its constants, and crossings with other mechanisms.

    The data are synthetic, so no budget is spent. With fewer runs than the default, checks are not judged. --json also
    contains the eigengaps that mechanisms need, and the crossings.

    Returns
    -------
    Report
        With ``claims`` (each statement with its verdict), ``slopes`` (with 95 % bands over seeds), ``seeds`` and two
        tables. ``needed`` has the median eigengap from which each mechanism finds a direction, for every d.
        ``crossings`` has the eigengap from which a mechanism is more accurate than Analyze Gauss.
    """
    needed: list[dict[str, Any]] = []
    crossings: list[dict[str, Any]] = []
    slopes: dict[str, Slope] = {}
    full = runs >= RUNS
    measured = itertools.chain(
        _check_slopes(runs, slopes),
        _check_needed(runs, needed, slopes),
        _check_crossings(runs, crossings),
        _check_statements(runs),
    )
    found = report(itertools.chain(_check_constants(), judged(measured, full=full)))
    claims = list(_claims(slopes, full=full))
    return found | {
        "seeds": list(range(1, runs + 1)),
        "claims": [each.row() for each in claims],
        "notes": [sentence(each) for each in claims],
        "slopes": [slope.row(item=name) for name, slope in slopes.items()],
        "needed": needed,
        "crossings": crossings,
    }


def _claims(slopes: Mapping[str, Slope], *, full: bool) -> Iterator[Claim]:
    """Compare the powers of d with which the number of needed records grows: in Theorems 1 and 2, and as measured."""
    for item, name, exponent in (
        ("Theorem 1, exact constants", "smooth Gaussian", 0.5),
        ("Theorem 1, printed constants", "smooth Gaussian, printed", 0.5),
        ("Theorem 2", "smooth Cauchy", 1.5),
        ("section 3, Analyze Gauss", "Analyze Gauss", 0.5),
        ("section 3, exponential mechanism", "exponential", 1.0),
    ):
        found = slopes.get(f"{name}: eigengap needed in d")
        if found is not None:
            holds = found.low - 0.1 <= exponent <= found.high + 0.1
            yield Claim(
                item=item,
                states=f"records that grow like d^{exponent:g} up to logarithms",
                measured=f"slope {found}",
                holds=holds if full else None,
            )


@lru_cache(maxsize=256)
def planted(n_features: int, gap: int, *, n_components: int = 1, others: int = OTHERS) -> KeptRows:
    """Return records along the axes: ``others`` records along each axis, and ``gap`` more along each of the first k."""
    counts = np.full(n_features, others)
    counts[:n_components] += gap
    return KeptRows(source=along_axes(counts.tolist()))


def squared_distances(
    name: str,
    n_features: int,
    gap: int,
    *,
    epsilon: float,
    seeds: Sequence[int],
    n_components: int = 1,
    others: int = OTHERS,
) -> Matrix:
    """Return the error ``k - ||V^T V'||_F^2`` of a mechanism for each seed, on records with a known eigengap.

    V are the true directions and V' the released directions. The noise of a seed is the same at every eigengap.
    """
    mechanism, settings = CONTENDERS[name]
    rows = planted(n_features, gap, n_components=n_components, others=others)
    delta = 0.0 if name in PURE else DELTA
    target = PrivacyTarget(epsilon=epsilon, delta=delta, allow_large_delta=True)
    found = []
    for seed in seeds:
        made = MECHANISMS[mechanism](n_components=n_components, **settings)
        components: Matrix = release(made, target, rows, seed=(seed, name, n_features, epsilon)).components
        found.append(float(np.square(components[:, n_components:]).sum()))
    return np.array(found)


def squared_distance(
    name: str, n_features: int, gap: int, *, epsilon: float, runs: int, n_components: int = 1, others: int = OTHERS
) -> float:
    """Return the median of `squared_distances` over the seeds 1 to ``runs``."""
    found = squared_distances(
        name,
        n_features,
        gap,
        epsilon=epsilon,
        seeds=range(1, runs + 1),
        n_components=n_components,
        others=others,
    )
    return float(np.median(found))


def gap_at(step: int) -> int:
    """Return the eigengap at a step of the geometric grid on which searches run."""
    return round(LEAST * RATIO**step)


def needed_gap(name: str, n_features: int, *, epsilon: float, seed: int) -> float:
    """Return the smallest eigengap, to within a twentieth, at which a mechanism finds the true direction for a seed."""

    def finds(step: int) -> bool:
        (found,) = squared_distances(name, n_features, gap_at(step), epsilon=epsilon, seeds=(seed,))
        return bool(found <= CLOSE)

    below, above = -1, 64
    while not finds(above):
        below, above = above, above + 32
    while above > below + 1:
        middle = (below + above) // 2
        below, above = (below, middle) if finds(middle) else (middle, above)
    return float(gap_at(above))


def _lengths(name: str, n_features: int, gap: int, *, epsilon: float, runs: int) -> Matrix:
    """Return the length of the noise for each seed: the tangent of the angle to the true direction.

    Cauchy noise varies more, so it is measured with more seeds.
    """
    many = 9 * runs if name.endswith("Cauchy") else runs
    squared = squared_distances(name, n_features, gap, epsilon=epsilon, seeds=range(1, many + 1))
    return np.asarray(np.sqrt(squared / (1.0 - squared)))


def _check_constants() -> Iterator[Check]:
    """Compare the printed constants of eigengap, smoothness, scale and true epsilon with the exact calibration."""
    for size, n_components, epsilon, printed, exact in USEFUL:
        for name, calibrate, expected in (
            ("printed", smooth_gaussian_shift, printed),
            ("exact", gaussian_shift, exact),
        ):
            _, smoothness = calibrate(epsilon=epsilon, delta=DELTA, size=size)
            got = useful_gap(
                smoothness=smoothness, relation="add_remove", n_components=n_components, n_features=size // n_components
            )
            yield near(f"useful eigengap, D={size} epsilon={epsilon} {name}", expected, 0.13 * expected, got=got)
    for size, epsilon, wider in ((123, 0.1, 17.0), (1230, 1.0, 38.0)):
        shift, smoothness = gaussian_shift(epsilon=epsilon, delta=DELTA, size=size)
        printed_shift, printed_smoothness = smooth_gaussian_shift(epsilon=epsilon, delta=DELTA, size=size)
        name = f"D={size} epsilon={epsilon}, exact value divided by printed value"
        yield near(f"largest smoothness, {name}", wider, 0.06 * wider, got=2.0 * smoothness / printed_smoothness)
        if epsilon < 1:
            yield near(f"shift, {name}", 9.0, 0.5, got=shift / printed_shift)
            true = FORMULAS["smooth_gaussian"].event(Settings(epsilon=epsilon, delta=DELTA, n_features=size))
            yield at_most(
                f"true epsilon of the printed Gaussian, D={size} claimed {epsilon}", 0.1 * epsilon, got=true["epsilon"]
            )


def _check_slopes(runs: int, slopes: dict[str, Slope]) -> Iterator[Check]:
    """Compare the slopes of the length of the noise, at a large eigengap, with the exponents in the theorems."""

    def check(
        label: str, sizes: Sequence[float], lengths: Sequence[Matrix], expected: float, tolerance: float
    ) -> Check:
        slopes[label] = slope_of(sizes, np.transpose(lengths).tolist())
        return near(f"{label}, slope", expected, tolerance, got=slopes[label].mean)

    for name, (expected, tolerance) in IN_FEATURES.items():
        lengths = [_lengths(name, d, FAR, epsilon=0.5, runs=runs) for d in SIZES]
        yield check(f"{name}: noise in d", SIZES, lengths, expected, tolerance)
    for name, tolerance in (("smooth Gaussian, printed", 0.15), ("smooth spherical t", 0.15), ("smooth Cauchy", 0.4)):
        lengths = [_lengths(name, 100, FAR, epsilon=epsilon, runs=runs) for epsilon in EPSILONS]
        yield check(f"{name}: noise in epsilon", EPSILONS, lengths, -1.0, tolerance)
    gaps = (FAR // 4, FAR // 2, FAR)
    lengths = [_lengths("smooth Gaussian, printed", 100, gap, epsilon=0.5, runs=runs) for gap in gaps]
    yield check("smooth Gaussian, printed: noise in n GAP", gaps, lengths, -1.0, 0.15)
    spread, narrow = (
        squared_distance("smooth Gaussian", 100, 20_000, epsilon=0.5, runs=runs, others=others) for others in (1000, 10)
    )
    yield near(
        "smooth Gaussian: error at GAP=.17 divided by error at GAP=.95, n GAP=20,000", 1.0, 0.01, got=spread / narrow
    )


def _check_needed(runs: int, table: list[dict[str, Any]], slopes: dict[str, Slope]) -> Iterator[Check]:
    """Compute the eigengap that each mechanism needs to find a direction, for every d.

    For the printed Gaussian noise it grows like d ln d, which Theorem 1 omits.
    """
    for name in CONTENDERS:
        many = 3 * runs if name.endswith("Cauchy") else runs
        gaps = [[needed_gap(name, d, epsilon=0.5, seed=seed) for d in SIZES] for seed in range(1, many + 1)]
        middle = np.median(gaps, axis=0)
        table.append({"mechanism": name} | {f"d={d}": round(gap) for d, gap in zip(SIZES, middle, strict=True)})
        label = f"{name}: eigengap needed in d"
        found = slopes[label] = slope_of(SIZES, gaps)
        if name in NEEDED:
            expected, tolerance = NEEDED[name]
            yield near(f"{label}, slope", expected, tolerance, got=found.mean)
        else:
            yield at_most(f"{label}, slope", 0.5, got=found.mean)


def _check_crossings(runs: int, table: list[dict[str, Any]]) -> Iterator[Check]:
    """Compute the eigengap above which smooth Gaussian noise is more accurate than other mechanisms.

    It is compared with the prediction from the calibrations.
    """
    for d, k, epsilon in CROSSINGS:
        for other in ("Analyze Gauss", "propose-test-release"):
            got = crossing("smooth Gaussian", other, d, epsilon=epsilon, n_components=k, runs=runs)
            table.append({"d": d, "k": k, "epsilon": epsilon, "against": other, "eigengap": round(got)})
            expected = _foreseen(other, d, k, epsilon)
            name = f"smooth Gaussian passes {other}, d={d} k={k} epsilon={epsilon}, n GAP"
            yield near(name, expected, 0.15 * expected, got=got)


def crossing(name: str, other: str, n_features: int, *, epsilon: float, n_components: int, runs: int) -> float:
    """Return the eigengap above which the mechanism ``name`` has a smaller error than the mechanism ``other``."""

    def leads(step: int) -> bool:
        mine, theirs = (
            squared_distance(each, n_features, gap_at(step), epsilon=epsilon, n_components=n_components, runs=runs)
            for each in (name, other)
        )
        return mine < theirs

    # the search starts from large eigengaps, where both are accurate; at small eigengaps both are random
    below, above = HIGHEST - 16, HIGHEST
    while below > 0 and leads(below):
        below, above = below - 16, below
    while above > below + 1:
        middle = (below + above) // 2
        below, above = (below, middle) if leads(middle) else (middle, above)
    return math.sqrt(gap_at(below) * gap_at(above))


def _foreseen(other: str, n_features: int, n_components: int, epsilon: float) -> float:
    """Return the eigengap at which smooth Gaussian noise and another mechanism are predicted to have equal noise.

    The prediction uses only the calibrations of both mechanisms.
    """
    shift, smoothness = gaussian_shift(epsilon=epsilon, delta=DELTA, size=n_features * n_components)
    multiplier = gaussian_noise_multiplier(epsilon=epsilon, delta=DELTA)
    tested = gaussian_noise_multiplier(epsilon=0.8 * epsilon, delta=DELTA / 2)
    margin = math.log(1 / DELTA) / (0.2 * epsilon)

    def excess(gap: float) -> float:
        bound = smooth_bound(
            gap, smoothness=smoothness, relation="add_remove", n_components=n_components, n_features=n_features
        )
        theirs = multiplier / (math.sqrt(2.0) * gap) if other == "Analyze Gauss" else tested / (2.0 * (gap - margin))
        return math.log(bound / shift / theirs)

    return float(brentq(excess, 1.5 * margin, 1e6, rtol=1e-4))


def _check_statements(runs: int) -> Iterator[Check]:
    """Check the accuracy at the sample sizes of Theorem 1 and of its proof, and claims on which mechanism is better."""
    d, epsilon, error = 100, 0.5, 0.01
    first = math.sqrt(d) / (epsilon * error)  # the printed 2 C sqrt(d) / (GAP epsilon_p epsilon_g), with C = 1/2
    second = 8 * (d + math.log(2 / DELTA)) * math.log(math.sqrt(2 * d) / (epsilon * error)) / epsilon
    constant = 5 * math.sqrt(2 * math.log(2 / DELTA))  # noise over U sqrt(d) / epsilon: the constant in O(...)
    enough, alone = (
        squared_distance("smooth Gaussian, printed", d, round(gap), epsilon=epsilon, runs=runs)
        for gap in (first + second, first)
    )
    yield at_most("printed Gaussian with the records of Lemma 15: sine", constant * error, got=math.sqrt(enough))
    yield at_least("printed Gaussian with the records of Theorem 1 alone: squared sine", 0.9, got=alone)
    for name, setting in (("Analyze Gauss", 0.1), ("Analyze Gauss", 1.0)):
        mine, theirs = (
            squared_distance(each, 123, 20_000, epsilon=setting, runs=runs) for each in ("smooth Gaussian", name)
        )
        yield at_most(
            f"squared sine of smooth Gaussian divided by that of {name}, n GAP=20,000 epsilon={setting}",
            2.0,
            got=mine / theirs,
        )
