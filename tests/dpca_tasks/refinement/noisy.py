"""Noisy second moments of known signals, and copies of modules with a planted fault."""

import importlib.util
import inspect
import math
from types import ModuleType

import numpy as np

from dpca_tasks.refinement.noisy_moment import NoisyMoment

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
