"""Normal deviates drawn from a keystream, compared with a fast generator (PCG64) and a cryptographic one (ChaCha20).

Each bar (the bound that a result must meet) is a constant in this file.
"""

import numpy as np
import pytest
from numpy.typing import NDArray
from randomgen import ChaCha
from scipy import stats

from benchmarks.conftest import Comparison
from dpca_tasks.noise.distributions import Symmetric
from dpca_tasks.noise.keystream import normals, subkey

N_NORMALS = 12_000_000
N_TOY = 12_000
OVER_PCG64 = 0.8
"""The least ratio of the time of NumPy's normals, which are not cryptographic, to ours."""


@pytest.mark.parametrize("count", [N_NORMALS], ids=["12m"])
def bench_normals(count: int, compare: Comparison, *, toy: bool) -> None:
    key = subkey(bytes(32), label="benchmark", info=b"normals")
    size = N_TOY if toy else count
    numpy_pcg64 = np.random.Generator(np.random.PCG64(0))
    randomgen_chacha = np.random.Generator(ChaCha(0, rounds=20))
    results = compare(
        lambda: normals(key, start=0, stop=size),
        {
            "numpy-pcg64": lambda: numpy_pcg64.standard_normal(size),
            "randomgen-chacha20": lambda: randomgen_chacha.standard_normal(size),
        },
        bars={"numpy-pcg64": OVER_PCG64},
    )
    for made in results.values():
        assert stats.kstest(made[:N_TOY], stats.norm.cdf).pvalue > 1e-6


@pytest.mark.parametrize("order", [2_000], ids=["2000"])
def bench_symmetric_noise(order: int, compare: Comparison, *, toy: bool) -> None:
    """Time the noise of one released second moment; the peer draws floats of the same distribution with NumPy."""
    key = subkey(bytes(32), label="benchmark", info=b"symmetric")
    d = 50 if toy else order
    law = Symmetric(noise_multiplier=1.0)
    numpy_pcg64 = np.random.Generator(np.random.PCG64(0))

    def floats() -> NDArray[np.float64]:
        square = numpy_pcg64.standard_normal((d, d))
        return (square + square.T) / 2

    results = compare(lambda: law.draw(key, d, scale_in_steps=2.0**28), {"numpy-pcg64": floats})
    assert results["ours"].std() / 2.0**28 == pytest.approx(results["numpy-pcg64"].std(), rel=0.15)
