"""Comparison of the columns of two tables: their number, names and schemas."""

from dataclasses import replace

import pytest

from dpca_tasks.errors import InvalidInput
from flows.families.columns import Columns, check_same_columns

ONE = Columns(table="one", n_features=2, names=("a", "b"))


def encoder(low: float) -> dict[str, object]:
    """Return the stored form of a schema with one numeric column."""
    return {"missing_texts": [], "columns": [{"name": "a", "kind": "numeric", "range": [low, 1.0]}]}


@pytest.mark.parametrize("named", [False, True])
def test_equal_columns_are_accepted(*, named: bool) -> None:
    for other in (ONE, replace(ONE, table="other", names=["a", "b"])):
        check_same_columns(ONE, other, rule="use it", named=named)
    check_same_columns(replace(ONE, encoder=encoder(0.0)), replace(ONE, encoder=encoder(0.0)), rule="use it")


@pytest.mark.parametrize(
    ("other", "refused"),
    [
        (replace(ONE, table="other", n_features=3), "one has 2 columns, but other has 3; use it."),
        (replace(ONE, table="other", names=("b", "a")), "other names, or another order, than those of other; use it."),
        (replace(ONE, table="other", encoder=encoder(0.0)), "another schema than those of other; use it."),
    ],
)
def test_a_difference_is_named_in_one_line(other: Columns, refused: str) -> None:
    for named in (False, True):
        with pytest.raises(InvalidInput) as found:
            check_same_columns(ONE, other, rule="use it", named=named)
        assert str(found.value).endswith(refused)


def test_missing_names_are_a_difference_only_if_names_are_required() -> None:
    unnamed = replace(ONE, names=None)
    for pair in ((ONE, unnamed), (unnamed, ONE)):
        check_same_columns(*pair, rule="use it")
        with pytest.raises(InvalidInput, match="other names"):
            check_same_columns(*pair, rule="use it", named=True)
    check_same_columns(unnamed, unnamed, rule="use it", named=True)


def test_schemas_with_other_ranges_differ() -> None:
    with pytest.raises(InvalidInput, match="another schema"):
        check_same_columns(replace(ONE, encoder=encoder(0.0)), replace(ONE, encoder=encoder(0.5)), rule="use it")
