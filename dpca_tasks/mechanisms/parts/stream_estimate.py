"""Estimates of a stream from its kept answers: of all that arrived, of a window, or with weights that halve.

Everything here is a public linear map of answers that were paid for. An answer weights what arrived s ticks ago by
``c_s``, and ``c_0 = 1``: so tonight's arrivals are ``x_t = y_t - sum_{s<t} c_{t-s} x_s`` plus noise, and an estimate is
a sum of these. Written as one sum over answers it needs one of them in memory at a time.

A tick whose answer was lost, or that an operator closed, is left out: what arrived at it is then seen, in parts, in the
answers after it.

>>> from dpca_tasks.accounting.factorisation import choose_weights
>>> year = choose_weights("sqrt", ticks=365)
>>> coefficients(year, kept=[1, 2, 3]).tolist()
[0.375, 0.5, 1.0]
>>> coefficients(year, kept=[1, 3]).tolist()
[0.625, 1.0]
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.factorisation import AnswerKind, Weights
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import Problem
from dpca_tasks.mechanisms.parts.released_moment import decompose, moment_from
from dpca_tasks.mechanisms.results import Subspace

type Matrix = NDArray[np.float64]


def coefficients(
    weights: Weights,
    *,
    kept: Sequence[int],
    answer: AnswerKind | None = None,
    window: int | None = None,
    half_life: float | None = None,
) -> Matrix:
    """Return what each kept answer is multiplied by in the estimate of the last of their ticks.

    Parameters
    ----------
    weights : Weights
    kept : sequence of int
        The ticks whose answers there are, from 1, rising; the last is the one that is estimated.
    answer : {"prefix", "window", "decay"}, optional
        What is estimated: the sum over all arrivals, over those of the last ticks, or one with weights that halve. By
        default what the strategy is made for.
    window, half_life
        Of the answer, in ticks; by default those of the strategy.

    Returns
    -------
    float64 array of shape (len(kept),)
        Its norm is the std of the estimate over that of one answer.
    """
    check_kept(kept)
    tick, ticks = kept[-1], np.asarray(kept)
    wanted = weights.wanted(tick, answer or weights.answer, window=window, half_life=half_life)
    series = np.zeros(tick)
    series[: len(weights.weights)] = weights.series[:tick]
    found: Matrix = wanted[tick - ticks]
    for at in range(len(kept) - 2, -1, -1):
        found[at] -= found[at + 1 :] @ series[ticks[at + 1 :] - ticks[at]]
    return found


def combined(answers: Iterable[NDArray[Any]], multipliers: Sequence[float] | Matrix) -> Matrix:
    """Add up answers times multipliers, reading one answer at a time.

    Parameters
    ----------
    answers : iterable of array
        In the order of the multipliers, all in one form: full matrices in data units, or packed ones.
    multipliers : sequence of float

    Returns
    -------
    float64 array
        In the form of the answers. Memory: three arrays of their size.
    """
    total: Matrix | None = None
    for answer, multiplier in zip(answers, multipliers, strict=True):
        if total is None:
            total, scaled = np.zeros(answer.shape), np.empty(answer.shape)
        np.multiply(answer, multiplier, out=scaled)
        total += scaled
    if total is None:
        raise InvalidInput("an estimate of no answers must have at least one; release a tick first.")
    return total


def streamed_subspace(
    estimate: Matrix, problem: Problem, *, noise: Mapping[str, Any], multipliers: Matrix, n_components: int
) -> Subspace:
    """Return the leading directions of an estimate, with what is known of its noise: ready to be refined and assessed.

    Parameters
    ----------
    estimate : float64 array of shape (d, d), data units
        What `combined` returns; of order ``d + 1`` where the problem is centred.
    problem : Problem
    noise : mapping
        What is public about the noise of one answer.
    multipliers : float64 array
        Those of the estimate.
    n_components : int
        k.
    """
    facts = {**noise, "std": noise["std"] * math.sqrt(float(multipliers @ multipliers))}
    return decompose(moment_from(estimate, problem, noise=facts), n_components=n_components)


def check_kept(kept: Sequence[int]) -> None:
    """Refuse what are no ticks in their order."""
    if not len(kept) or kept[0] < 1 or any(np.diff(np.asarray(kept)) < 1):
        raise InvalidInput("kept must be ticks from 1, each once and in order; pass those whose answers there are.")
