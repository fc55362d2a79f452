"""Accuracy, intervals and correlations of released moments on a9a, by the mechanism itself.

The numbers to reach were set before the code was written. Rows 1 to 26,048 of the shipped file are released, and the
others are the test rows. A row has features of norm 1, and its label as a column, 1 or -1 over the root of 2. All rules
were fixed by five-fold cross-validation within the first 26,048 rows, with simulated noise: the penalty and the
predictor (`dpca.moments`, `dpca.predictors`), and the scale of the label. Keys are derived from seeds, so that every
number is reproducible. The data are public, so nothing is charged.
"""

import hashlib
import math
from collections.abc import Iterator
from typing import Annotated

import numpy as np
import typer

from dpca.artifacts.derived import SIGNIFICANT
from dpca.artifacts.moment import PrivateMoment
from dpca.moments import Moment
from dpca_tasks.layouts import pack_symmetric
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.moments.gaussian_moment import GaussianMoment
from dpca_tasks.records.blocks import ArrayBlocks
from papers.lib.experiments import Check, Matrix, Report, at_least, at_most, report, run_mechanism
from papers.lib.public_data import a9a

TRAINED = 26_048
DELTA, SCALE = 1e-6, 1.0 / math.sqrt(2.0)
CLIP_NORM = math.sqrt(1.0 + SCALE**2)
LOSS = {0.03: 0.04, 0.1: 0.018, 0.3: 0.008, 1.0: 0.004}
"""The most accuracy that the mean of the draws may lose against ridge without privacy, by epsilon."""
REFERENCE_L2 = 1.0
"""The penalty of ridge without privacy: the best of .01, 1, 10, 100 and 1000 within the released rows."""
COVERED, SIGNS = (0.93, 0.98), 0.9

_SEED = 35


def reproduce(
    *,
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="200 draws for each epsilon in place of 20; two minutes in place of twelve seconds."
        ),
    ] = False,
) -> Report:
    """Check classification, intervals and correlations from released moments of a9a.

    Returns
    -------
    Report
        For each epsilon: the mean test accuracy, the share of 95 % intervals that hold the coefficient of the same
        ridge without noise, and the least share of significant correlations with the right sign, over all draws.
    """
    return report(_checks(200 if full else 20))


def _checks(draws: int) -> Iterator[Check]:
    data = a9a()
    labels = data.labels.astype(np.float64)
    rows = np.column_stack([data.rows.toarray(), np.where(labels > 0, SCALE, -SCALE)])
    released, tested, wanted = rows[:TRAINED], rows[TRAINED:, :-1], labels[TRAINED:] > 0
    constant = CLIP_NORM * SCALE
    extended = np.column_stack([released, np.full(TRAINED, constant)])
    exact = Moment(released=extended.T @ extended, noise_std=1e-6, constant=constant)
    target, features = np.array([rows.shape[1] - 1]), np.arange(rows.shape[1] - 1)
    plain = exact.ridge(target, features, l2=REFERENCE_L2)
    reference = float(((tested @ plain.coefficients[0] + plain.intercepts[0] > 0) == wanted).mean())
    yield at_least("test accuracy without privacy", 0.84, got=reference)
    signs, source = np.sign(np.nan_to_num(np.corrcoef(released.T))), ArrayBlocks(released)
    for epsilon, loss in LOSS.items():
        accuracies, covered, right = [], [], []
        for draw in range(draws):
            moment = _release(source, rows.shape[1], epsilon, draw)
            model = moment.ridge(str(target[0]), classes=(-SCALE, SCALE))
            accuracies.append(((model.predict(tested) > 0) == wanted).mean())
            true = exact.ridge(target, features, l2=model.derived["l2"]).coefficients
            low, high = np.moveaxis(model.intervals(), -1, 0)
            covered.append(((low <= true) & (true <= high)).mean())
            right.append(_right_signs(moment, signs))
        name = f"epsilon={epsilon:g}"
        yield at_least(f"{name}, test accuracy", reference, got=float(np.mean(accuracies)), tolerance=loss)
        yield at_least(f"{name}, coverage", COVERED[0], got=float(np.mean(covered)))
        yield at_most(f"{name}, coverage", COVERED[1], got=float(np.mean(covered)))
        yield at_least(f"{name}, right signs in every draw", SIGNS, got=float(np.min(right)))


def _release(source: ArrayBlocks, n_features: int, epsilon: float, draw: int) -> PrivateMoment:
    problem = Problem(n_features=n_features, clip_norm=CLIP_NORM, center="private", records_at_most=TRAINED)
    key = hashlib.sha256(repr((_SEED, epsilon, draw)).encode()).digest()
    found = run_mechanism(GaussianMoment(), problem, PrivacyTarget(epsilon=epsilon, delta=DELTA), source, key=key)
    return PrivateMoment(matrix=pack_symmetric(found.released), manifest={"outcome": {"noise": found.noise}})


def _right_signs(moment: PrivateMoment, signs: Matrix) -> float:
    """Return the share of significant correlations with the right sign; 1 where none is significant."""
    found = moment.correlation()
    seen = np.triu(np.abs(found.values) > SIGNIFICANT * found.errors, 1)
    return float((np.sign(found.values) == signs)[seen].mean()) if seen.any() else 1.0
