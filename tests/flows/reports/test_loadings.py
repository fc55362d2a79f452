"""The largest loadings of a component."""

import numpy as np
import pytest

from flows.reports.loadings import top_loadings
from storage.artifacts.subspace import PrivateSubspace
from storage.errors import Invalid

COMPONENTS = np.array([[0.48, 0.0, -0.64, 0.6], [0.0, 1.0, 0.0, 0.0]])


def test_loadings_come_by_size_and_by_name() -> None:
    subspace = PrivateSubspace(components=COMPONENTS, manifest={"feature_names": ["a", "b", "c", "d"]})
    found = top_loadings(subspace, component=1, count=2)
    assert found == [{"feature": "c", "loading": -0.64}, {"feature": "d", "loading": 0.6}]


def test_columns_without_names_are_counted_from_one_and_zeros_left_out() -> None:
    subspace = PrivateSubspace(components=COMPONENTS, manifest={})
    assert top_loadings(subspace, component=2) == [{"feature": "column 2", "loading": 1.0}]
    assert len(top_loadings(subspace, component=1)) == 3


@pytest.mark.parametrize("component", [0, 3, -1])
def test_a_component_that_was_not_released_is_refused(component: int) -> None:
    with pytest.raises(Invalid, match=r"none of the release's, 1 to 2; name one"):
        top_loadings(PrivateSubspace(components=COMPONENTS, manifest={}), component=component)
