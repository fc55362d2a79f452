"""Speed of exact draws from the discrete Gaussian distribution, with integer arithmetic on a keystream.

In a joint sum over several sites, each site adds a share of noise from this distribution. The bar is half a million
draws per second of processor time on one core. A noise share with a large standard deviation takes two draws.
"""

import time

import numpy as np
import pytest

from benchmarks.conftest import Comparison, Measurement
from dpca_tasks.noise.discrete_gaussian import LARGEST, WIDEST, wide_discrete_gaussians
from dpca_tasks.noise.keystream import subkey

N_DRAWS, N_TOY = 2_000_000, 5_000
BAR = 5e5


@pytest.mark.parametrize("squared_scale", [LARGEST, WIDEST[2]], ids=["one-draw", "two-draws"])
def bench_shares(squared_scale: int, compare: Comparison, measure: Measurement, *, toy: bool) -> None:
    key = subkey(bytes(32), label="benchmark", info=b"shares")
    size = N_TOY if toy else N_DRAWS
    numpy_pcg64 = np.random.Generator(np.random.PCG64(0))
    results = compare(
        lambda: wide_discrete_gaussians(key, size=size, squared_scale=squared_scale),
        {"numpy-rounded-normals": lambda: np.rint(numpy_pcg64.standard_normal(size) * squared_scale**0.5)},
    )
    start = time.process_time()
    wide_discrete_gaussians(key, size=size, squared_scale=squared_scale)
    measure("draws-a-second", size / (time.process_time() - start), at_least=BAR)
    assert results["ours"].std() == pytest.approx(results["numpy-rounded-normals"].std(), rel=0.1)
