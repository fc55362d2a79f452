"""The largest loadings of a component by the names of the features: what the component is about.

>>> subspace = PrivateSubspace(components=np.array([[0.6, 0.0, -0.8]]), manifest={"feature_names": ["a", "b", "c"]})
>>> top_loadings(subspace, component=1, count=2)
[{'feature': 'c', 'loading': -0.8}, {'feature': 'a', 'loading': 0.6}]
"""

from typing import Any

import numpy as np

from storage.artifacts.subspace import PrivateSubspace
from storage.errors import Invalid


def top_loadings(artifact: PrivateSubspace, *, component: int, count: int = 12) -> list[dict[str, Any]]:
    """Return the features of the largest loadings of a component, largest first by size, none that are zero.

    Parameters
    ----------
    artifact : PrivateSubspace
        Features without names are called by the number of their column, from 1.
    component : int
        From 1.
    count : int
        How many at most.

    Raises
    ------
    Invalid
        If the release has no such component.
    """
    if not 1 <= component <= artifact.n_components:
        raise Invalid(
            f"component {component} is none of the release's, 1 to {artifact.n_components}; name one of them."
        )
    loadings, names = artifact.components[component - 1], artifact.feature_names
    largest = np.argsort(-np.abs(loadings), kind="stable")[:count]
    return [
        {"feature": f"column {at + 1}" if names is None else names[at], "loading": float(loadings[at])}
        for at in largest.tolist()
        if loadings[at] != 0.0
    ]
