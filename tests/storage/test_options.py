"""Option records: fields in order, strict types, and domains whose violations are refused in one line."""

import copy
import dataclasses
import json
import math
import pickle
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from dpca.errors import Invalid
from storage.options import Handling, option_record, options_of


@option_record
class Walk:
    steps: Annotated[int, Field(description="The number of steps.", ge=1)] = 10
    where: Annotated[str | None, Field(description="The destination.")]
    notes: Annotated[Mapping[str, str], Field(description="Notes by name.")] = field(default_factory=dict)
    name: Annotated[str, Field(description="The name of the walk.", min_length=1)]


@option_record
class Mixed:
    """Options of every kind that requests and ingests have."""

    whole: Annotated[int | None, Field(description="A count.", ge=1)] = None
    part: Annotated[float | None, Field(description="A fraction.", ge=0, le=1)] = None
    below: Annotated[float, Field(description="A fraction below one.", ge=0, lt=1)] = 0.0
    positive: Annotated[float, Field(description="A positive number.", gt=0)] = 1.0
    flag: Annotated[bool, Field(description="A yes/no value.")] = False
    doubt: Annotated[bool | None, Field(description="A yes/no value, or unset.")] = None
    text: Annotated[str | None, Field(description="A text.")] = None
    filled: Annotated[str, Field(description="A text of one letter or more.", min_length=1)] = "a"
    named: Annotated[str, Field(description="A name.", pattern="^[a-z]+$")] = "a"
    word: Annotated[str, Field(description="A word."), Handling(choices=("a", "b"))] = "a"
    lazy: Annotated[str | None, Field(description="A word."), Handling(choices=lambda: ("a", "b"))] = None
    number_or_word: Annotated[float | str, Field(description="A number or a word.")] = "auto"
    count_or_word: Annotated[Annotated[int, Field(ge=1)] | str, Field(description="A count or a word.")] = "auto"
    pairs: Annotated[dict[str, str] | None, Field(description="Names by role.")] = None
    file: Annotated[str | None, Field(description="A file."), Handling(is_file=True)] = None


KINDS: dict[str, type[Any]] = {
    "whole": int,
    "part": float,
    "below": float,
    "positive": float,
    "flag": bool,
    "doubt": bool,
    "text": str,
    "filled": str,
    "named": str,
    "word": str,
    "lazy": str,
    "pairs": dict,
}
TAKEN: dict[str, list[Any]] = {
    "whole": [1, 2**70, np.int64(3), np.uint8(3), np.array(3)],
    "part": [0, 1, 0.5, np.float64(0.5), np.float32(0.5), np.int64(1), -0.0],
    "below": [0, 0.999, np.float64(0)],
    "positive": [1e-300, 1, 1e300, math.inf],
    "flag": [True, False, np.True_, np.False_],
    "doubt": [True, np.False_],
    "text": ["", "a\nb", np.str_("a")],
    "filled": ["a", " "],
    "named": ["ab"],
    "word": ["a", "b", np.str_("b")],
    "lazy": ["a", "b"],
    "number_or_word": [1, 0.5, "1", "quantile:0.9", np.float32(0.5), math.inf],
    "count_or_word": [1, "auto", "3", np.int64(3)],
    "pairs": [{}, {"row": "user"}],
    "file": ["a/b.txt", "s3://bucket/b"],
}
STRANGE: list[Any] = [b"1", [1], (1,), {1}, 1j, object(), Path("a"), np.array([1])]
REFUSED: dict[str, list[Any]] = {
    "whole": [0, -1, True, np.True_, 1.0, 1.5, np.float64(1), "1", "", math.nan, math.inf, *STRANGE],
    "part": [
        -1e-9,
        1.1,
        2,
        True,
        np.True_,
        "0.5",
        "",
        "nan",
        math.nan,
        math.inf,
        -math.inf,
        np.float32("nan"),
        *STRANGE,
    ],
    "below": [1, -0.1, math.nan, "0"],
    "positive": [0, 0.0, -0.0, -1, math.nan, -math.inf],
    "flag": [0, 1, 0.0, 1.0, np.int64(1), "true", "", *STRANGE],
    "doubt": [0, 1, "false", *STRANGE],
    "text": [1, True, 0.5, math.nan, np.int64(1), *STRANGE],
    "filled": ["", 1],
    "named": ["A", "", "a b", "a\n", 1],
    "word": ["c", "", "A", "ab", 1, True, *STRANGE],
    "lazy": ["c", "", 1],
    "number_or_word": [True, *STRANGE],
    "count_or_word": [0, -1, True, 1.0, 1.5, math.nan, *STRANGE],
    "pairs": [{"row": 1}, {1: "user"}, [("row", "user")], "row=user"],
    "file": [1, b"a", ["a"], True],
}


def _cases(table: Mapping[str, list[Any]]) -> list[Any]:
    return [
        pytest.param(name, value, id=f"{name}-{number}")
        for name, values in table.items()
        for number, value in enumerate(values)
    ]


def test_required_fields_come_first_and_none_means_a_generated_default() -> None:
    options = options_of(Walk)
    assert [option.name for option in options] == ["where", "name", "steps", "notes"]
    assert [option.is_required for option in options] == [True, True, False, False]
    assert [option.may_be_none for option in options] == [True, False, False, True]
    assert [option.default for option in options[2:]] == [10, None]
    assert [option.kind for option in options] == [str | None, str, int, Mapping[str, str] | None]


def test_the_tables_have_each_kind() -> None:
    names = {option.name for option in options_of(Mixed)}
    assert names == TAKEN.keys() == REFUSED.keys()


@pytest.mark.parametrize(("name", "value"), _cases(TAKEN))
def test_a_value_inside_a_domain_is_kept_as_a_plain_json_value(name: str, value: Any) -> None:
    found = getattr(Mixed(**{name: value}), name)
    assert found == value
    assert type(found) is KINDS.get(name, type(found))
    assert type(found).__module__ == "builtins"
    assert getattr(Mixed(**json.loads(json.dumps({name: found}))), name) == found


@pytest.mark.parametrize(("name", "value"), _cases(REFUSED))
def test_a_value_outside_a_domain_or_of_another_type_is_refused_in_one_line(name: str, value: Any) -> None:
    with pytest.raises(Invalid, match=f"^{name}=.*; [a-z ,]+$") as refused:
        Mixed(**{name: value})
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("whole", 0, "whole=0 must be greater than or equal to 1; correct it, or leave it out"),
        ("whole", "3", "whole='3' must be a valid integer; correct it, or leave it out"),
        ("whole", True, "whole=True must be a valid integer; correct it, or leave it out"),
        ("part", 2.0, "part=2.0 must be less than or equal to 1; correct it, or leave it out"),
        ("part", math.nan, "part=nan must be less than or equal to 1; correct it, or leave it out"),
        ("below", 1.0, "below=1.0 must be less than 1; correct it, or leave it out"),
        ("positive", 0.0, "positive=0.0 must be greater than 0; correct it, or leave it out"),
        ("filled", "", "filled='' must have at least 1 character; correct it, or leave it out"),
        ("named", "A", "named='A' must match pattern '^[a-z]+$'; correct it, or leave it out"),
        ("word", "c", "word='c' is not one of a, b; choose one of them"),
        ("lazy", "c", "lazy='c' is not one of a, b; choose one of them"),
        ("count_or_word", 0, "count_or_word=0 must be greater than or equal to 1; correct it, or leave it out"),
    ],
)
def test_a_refusal_states_what_was_found_the_rule_and_what_to_do(name: str, value: Any, line: str) -> None:
    with pytest.raises(Invalid) as refused:
        Mixed(**{name: value})
    assert str(refused.value) == line


@given(value=st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.booleans() | st.text() | st.none())
def test_no_value_is_converted_by_a_record(value: Any) -> None:
    for option in options_of(Mixed):
        try:
            found = getattr(Mixed(**{option.name: value}), option.name)
        except Invalid:
            continue
        assert found == (option.default if value is None else value)


def test_the_path_of_a_file_is_its_text() -> None:
    assert Mixed(file=Path("a") / "b.txt") == Mixed(file=str(Path("a") / "b.txt"))  # type: ignore[arg-type]


def test_none_means_the_default_unless_the_type_includes_none() -> None:
    left_out: dict[str, Any] = dict.fromkeys(TAKEN)
    assert Mixed(**left_out) == Mixed()
    assert Walk(where=None, name="a", steps=None, notes=None) == Walk(where=None, name="a")  # type: ignore[arg-type]
    with pytest.raises(Invalid, match=r"^name=None must be a valid string; correct it$"):
        Walk(where="x", name=None)  # type: ignore[arg-type]


def test_unknown_and_missing_fields_are_programming_errors() -> None:
    with pytest.raises(TypeError, match=r"Walk: .*pace"):
        Walk(where="x", name="a", pace=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Walk: .*name"):
        Walk(where="x")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Walk.*name"):
        Walk()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        cast(Any, Walk)("x", "a")


def test_a_record_never_changes_and_its_changed_copies_are_checked() -> None:
    walk = Walk(where="x", name="a", notes={"b": "c"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        walk.steps = 3  # type: ignore[misc]
    assert dataclasses.replace(walk, steps=3).steps == 3
    with pytest.raises(Invalid, match=r"^steps=0 must"):
        dataclasses.replace(walk, steps=0)
    assert copy.deepcopy(walk) == pickle.loads(pickle.dumps(walk)) == Walk(**dataclasses.asdict(walk)) == walk


def test_a_default_is_generated_for_each_record() -> None:
    assert Walk(where="x", name="a").notes is not Walk(where="x", name="a").notes


def test_a_record_that_derives_from_another_checks_the_options_of_both() -> None:
    @option_record
    class Hike(Walk):
        steps: Annotated[int, Field(description="The number of steps.", ge=100)] = 100
        height: Annotated[float, Field(description="The height.", gt=0)]

        def __post_init__(self) -> None:
            if self.height > self.steps:
                raise Invalid("height and steps do not fit; correct one")

    assert [option.name for option in options_of(Hike)] == ["where", "name", "height", "steps", "notes"]
    requested: dict[str, Any] = {"where": "x", "name": "a", "height": 500}
    for changed, line in (
        ({"steps": 10}, "^steps=10 must"),
        ({"name": ""}, "^name='' must"),
        ({}, "^height and steps do"),
    ):
        with pytest.raises(Invalid, match=line):
            Hike(**requested | changed)
