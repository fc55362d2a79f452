"""Files of declared public facts: the names of the columns, and the factors by which they are scaled."""

from pathlib import Path

import pytest

from dpca.errors import Invalid
from storage.formats.declared import read_names, read_scale


def test_a_byte_order_mark_is_no_part_of_a_name_or_number(tmp_path: Path) -> None:
    names, factors = tmp_path / "names.txt", tmp_path / "scale.txt"
    names.write_text("äge\nweight\n", encoding="utf-8-sig")
    factors.write_text("0.5\n2\n", encoding="utf-8-sig")
    assert read_names(names) == ("äge", "weight")
    assert read_scale(factors, n_features=2).tolist() == [0.5, 2.0]


@pytest.mark.parametrize("text", ["a\n\nb\n", "a\nb\na\n", "\n"])
def test_names_that_are_empty_or_occur_twice_are_refused_with_their_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "names.txt"
    path.write_text(text)
    with pytest.raises(Invalid, match=r"line \d of the feature names in .*names\.txt (is empty|occurs twice)"):
        read_names(path)


@pytest.mark.parametrize("text", ["1\n", "1\n2\n3\n", "1\n0\n", "1\n-2\n", "1\ninf\n", "1\nnan\n"])
def test_factors_that_are_not_one_positive_number_for_each_column_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "scale.txt"
    path.write_text(text)
    with pytest.raises(Invalid, match="must hold 2 positive finite numbers"):
        read_scale(path, n_features=2)
