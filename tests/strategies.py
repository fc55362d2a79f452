"""Hypothesis strategies that generate small, adversarial private rows."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

AWKWARD = (0.0, 1.0, -1.0, 0.5, 1 / 3, 1e-300, 1e200, -1e200, 5e-324, np.inf, -np.inf, np.nan)


def entries(*, finite: bool = False) -> st.SearchStrategy[float]:
    """Generate numbers that break naive clipping: huge, tiny, subnormal, and by default also non-finite."""
    awkward = [value for value in AWKWARD if np.isfinite(value) or not finite]
    return st.one_of(st.sampled_from(awkward), st.floats(-4.0, 4.0, width=64))


def counts() -> st.SearchStrategy[float]:
    """Generate word counts, mostly small, and numbers that are invalid as counts."""
    few = st.integers(0, 12).map(float)
    return st.one_of(few, few, few, st.sampled_from((1e3, 1e9, 2.0**41, 1e300, 0.5, -1.0, np.inf, np.nan)))


def rows(
    *,
    n_features: int,
    max_rows: int = 6,
    finite: bool = False,
    min_rows: int = 0,
    elements: st.SearchStrategy[float] | None = None,
) -> st.SearchStrategy[np.ndarray]:
    """Generate dense rows of shape (n, n_features)."""
    shapes = st.integers(min_rows, max_rows).map(lambda n: (n, n_features))
    numbers = entries(finite=finite) if elements is None else elements
    return shapes.flatmap(lambda shape: hnp.arrays(np.float64, shape, elements=numbers))
