"""Columns are matched by name: any order of them is found, and one that is missing or unknown is one line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import Invalid
from storage.schemas.matching import match_names

NAMES = st.lists(st.text(max_size=5), unique=True, min_size=1, max_size=12)


@given(NAMES, st.randoms(use_true_random=False))
def test_any_order_is_found(names: list[str], random: object) -> None:
    permuted = list(names)
    random.shuffle(permuted)  # type: ignore[attr-defined]
    order = match_names(permuted, names, noun="release")
    assert (permuted if order is None else [permuted[at] for at in order]) == names


@given(NAMES, st.data())
def test_one_missing_column_is_named_and_what_is_there_is_not(names: list[str], data: st.DataObject) -> None:
    missing = data.draw(st.sampled_from(names))
    found = [name for name in names if name != missing] + ["SECRET cell of a first row"]
    with pytest.raises(Invalid) as caught:
        match_names(found, names, noun="release")
    assert f"column {missing!r} is missing" in str(caught.value)
    assert "SECRET" not in str(caught.value)


def test_columns_that_nobody_wants_are_refused_or_left_out() -> None:
    with pytest.raises(Invalid, match=r"^column 'x' and 1 more are not among the 2 that this release knows; leave"):
        match_names(["b", "x", "a", "y"], ["a", "b"], noun="release")
    order = match_names(["b", "x", "a", "y"], ["a", "b"], noun="release", drop_others=True)
    assert order is not None
    assert order.tolist() == [2, 0]


def test_names_that_occur_twice_go_by_position_or_not_at_all() -> None:
    assert match_names(["a", "a", "b"], ["a", "a", "b"], noun="release") is None
    for found, wanted in ((["a", "b", "a"], ["a", "a", "b"]), (["b", "a", "a"], ["a", "b"])):
        with pytest.raises(Invalid, match="occurs twice"):
            match_names(found, wanted, noun="release")
