"""Releases in rounds of rows in memory, with floats and NumPy's noise: a reference for the numerics alone.

Rows have norm 1 at most. ``mu`` is the noise level of the whole release: a release in one round would have noise of
standard deviation ``1 / mu`` on the diagonal.

The module also contains rows of a declared schema, noisy second moments of known signals, and copies of modules with
a planted fault.
"""

import importlib.util
import inspect
import itertools
import math
from types import ModuleType
from typing import Any

import numpy as np

from dpca_tasks.refinement import rounds as numerics
from dpca_tasks.refinement.noisy_moment import NoisyMoment
from dpca_tasks.refinement.public_map import PublicMap
from dpca_tasks.refinement.rounds import Answer
from dpca_tasks.refinement.schema_constraints import Constraints

SHARES = {2: (0.2, 0.8), 3: (0.1, 0.3, 0.6)}


def decaying_rows(n_rows=4_000, order=40, *, offset=0.0, seed=0):
    """Return rows of norm 1 whose variance decays over directions, around an offset if one is given.

    The features have different scales.
    """
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.standard_normal((order, order)) * np.geomspace(3.0, 0.3, order)[:, None])[0]
    rows = rng.standard_normal((n_rows, order)) * np.geomspace(1.0, 0.05, order) @ turn.T
    rows += offset * turn.sum(axis=1) / math.sqrt(order)
    return rows / np.linalg.norm(rows, axis=1)[:, None]


def moment(rows, *, public_map, mean=None, clip_norm=1.0, constant=0.0):
    """Return the second moment of rows that are centered, mapped and clipped.

    If ``constant`` is not 0, each row ends in it.
    """
    mapped = public_map.forward((rows if mean is None else rows - mean).T).T
    mapped *= np.minimum(1.0, clip_norm / np.maximum(np.linalg.norm(mapped, axis=1), 1e-300))[:, None]
    if constant:
        mapped = np.hstack([mapped, np.full((len(rows), 1), constant)])
    return mapped.T @ mapped


def in_rounds(rows, *, mu, n_components, n_rounds=3, centred=False, seed=0, module=numerics):
    """Release rows in rounds; return the final estimate and the answers of all rounds.

    ``module`` designs the maps.
    """
    estimate: Any = None
    answers = []
    for number, share in enumerate(SHARES[n_rounds]):
        first = number == 0
        square = 1 / 3 if centred and first else 1 / 15 if centred or first else 0.0
        unit = (1.0 + square) / (mu * math.sqrt(2.0 * share))
        public_map, mean, clip_norm, energy = PublicMap.identity(rows.shape[1]), None, 1.0, None
        if not first:
            found = module.proposed(estimate, n_components=n_components, noise_std=unit)
            public_map, mean, clip_norm, energy = found.map, estimate.mean, found.clip_norm, found.energy
        constant = math.sqrt(square) * clip_norm
        exact = moment(rows, public_map=public_map, mean=mean, clip_norm=clip_norm, constant=constant)
        noise_std = unit * clip_norm**2
        answer = Answer(
            released=exact + noise_std * isometric_noise(len(exact), seed=(seed, number)),
            noise_std=noise_std,
            map=public_map,
            clip_norm=clip_norm,
            constant=constant,
            energy=energy,
        )
        answers.append(answer)
        estimate = module.begun(answer, centred=centred) if first else module.continued(estimate, answer)
    return estimate, answers


def around_mean(rows):
    centred = rows - rows.mean(axis=0)
    return centred.T @ centred


KNOWN = np.diag(np.concatenate([[30.0, 20.0, 14.0], np.linspace(8.0, 0.0, 37)]))
"""A signal with three components above noise of size 1, and weaker ones."""


def isometric_noise(order, *, seed):
    """Return a symmetric noise matrix with std 1 off the diagonal and sqrt 2 on the diagonal."""
    square = np.random.default_rng(seed).standard_normal((order, order)) / math.sqrt(2)
    return square + square.T


def noisy(signal, *, seed, noise_std=1.0):
    return NoisyMoment(matrix=signal + noise_std * isometric_noise(len(signal), seed=seed), noise_std=noise_std)


def signal(columns, *strengths):
    """Return a second moment with these strengths along the columns, which are orthonormalized in order."""
    directions = np.linalg.qr(columns)[0]
    moment = (directions * np.array(strengths)) @ directions.T
    return (moment + moment.T) / 2


def held(second_moment, rows):
    return float(np.einsum("ij,jk,ik->", rows, second_moment, rows))


def captured(second_moment, rows):
    """Return the variance that the given components capture, divided by that of the best components."""
    return held(second_moment, rows) / float(np.linalg.eigvalsh(second_moment)[-len(rows) :].sum())


def planted(module: ModuleType, *changes: tuple[str, str]) -> ModuleType:
    """Return a copy of a module in which pieces of the source text are replaced; each piece must occur once."""
    source = inspect.getsource(module)
    for before, after in changes:
        assert source.count(before) == 1, before
        source = source.replace(before, after)
    spec = importlib.util.spec_from_loader(module.__name__, loader=None)
    assert spec is not None
    copy = importlib.util.module_from_spec(spec)
    exec(compile(source, str(module.__file__), "exec"), copy.__dict__)
    return copy


N_ROWS, SIZES = 3_000, (3, 4, 5, 6, 4)
GROUPS = tuple(itertools.pairwise(itertools.accumulate(SIZES, initial=0)))
SPACE = Constraints(n_features=24, groups=GROUPS, filled=(True, True, True, True, False))


def encoded():
    """Return rows whose categories depend on two hidden factors, clipped to norm 2."""
    rng = np.random.default_rng(5)
    rows, hidden = np.zeros((N_ROWS, 24)), rng.standard_normal((N_ROWS, 2))
    for full, (start, stop) in zip(SPACE.filled, GROUPS, strict=True):
        scores = hidden @ rng.standard_normal((2, stop - start)) * 1.5 + rng.gumbel(size=(N_ROWS, stop - start))
        rows[np.arange(N_ROWS), start + scores.argmax(axis=1)] = 1.0 if full else rng.random(N_ROWS) < 0.6
    rows[:, 22:] = rng.standard_normal((N_ROWS, 2))
    return rows / np.maximum(np.linalg.norm(rows, axis=1) / 2.0, 1.0)[:, None]


ROWS = encoded()
S = ROWS.T @ ROWS
