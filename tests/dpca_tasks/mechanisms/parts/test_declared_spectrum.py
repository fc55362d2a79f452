"""Declared spectra: parts of all variance, descending, 1 in sum."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.parts.declared_spectrum import spectrum_shares


@given(
    shares=st.lists(st.floats(0.001, 1.0), min_size=1, max_size=12),
    n_features=st.integers(1, 300),
    left_out=st.floats(0.0, 1.0),
)
def test_any_leading_parts_of_a_spectrum_are_kept_and_continued(shares, n_features, left_out):
    whole = np.sort(np.resize(shares, n_features))[::-1]
    whole = whole / whole.sum()
    stated = whole[: max(1, int(len(whole) * (1.0 - left_out)))]
    found = spectrum_shares(",".join(map(repr, stated.tolist())), n_features=n_features)
    assert len(found) == n_features
    assert found.sum() == pytest.approx(1.0)
    assert (np.diff(found) <= 1e-12).all()
    assert (found >= 0).all()
    assert found[: len(stated)] == pytest.approx(stated, abs=1e-6)


def test_more_parts_than_features_are_refused():
    assert spectrum_shares("0.625,0.375", n_features=2) == pytest.approx([0.625, 0.375])
    with pytest.raises(InvalidInput, match="one a feature at most"):
        spectrum_shares("0.5,0.3,0.2", n_features=2)


@pytest.mark.parametrize(("declared", "first"), [("decay:0", 0.01), ("flat", 0.01), ("decay:200", 1.0), ("1", 1.0)])
def test_the_ends_of_each_kind(declared, first):
    assert spectrum_shares(declared, n_features=100)[0] == pytest.approx(first)


@pytest.mark.parametrize(
    "wrong",
    ["0.2,0.3", "0.9,0.2", "", "0", "-0.1", "nan", "decay:", "decay:-1", "decay:1e9", "falling", "0.5;0.2", "inf"],
)
def test_what_is_no_spectrum_is_refused_in_one_line(wrong):
    with pytest.raises(InvalidInput, match=r"^spectrum='[^\n]*correct it, or leave it out\.$"):
        spectrum_shares(wrong, n_features=50)


def test_parts_too_small_for_what_they_leave_are_refused():
    with pytest.raises(InvalidInput, match=r"leaves 0\.99 of all variance to 1 components"):
        spectrum_shares("0.01", n_features=2)
