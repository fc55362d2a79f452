"""Records of options: fields in order, and domains that refuse in one line."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from pydantic import Field

from storage.errors import Invalid
from storage.options import Handling, OptionField, options_of


@dataclass(frozen=True, kw_only=True)
class Walk:
    steps: Annotated[int, Field(description="How many steps.", ge=1)] = 10
    where: Annotated[str | None, Field(description="Where to.")]
    notes: Annotated[Mapping[str, str], Field(description="What to note.")] = field(default_factory=dict)
    name: Annotated[str, Field(description="The name of the walk.", min_length=1)]


def _option(*, choices: Any = (), **bounds: Any) -> OptionField:
    return OptionField("x", Any, None, Field(description="help", **bounds), Handling(choices=choices))


def test_required_fields_come_first_and_a_made_default_may_be_left_out_as_none() -> None:
    options = options_of(Walk)
    assert [option.name for option in options] == ["where", "name", "steps", "notes"]
    assert [option.is_required for option in options] == [True, True, False, False]
    assert [option.may_be_none for option in options] == [True, False, False, True]
    assert [option.default for option in options[2:]] == [10, None]


@pytest.mark.parametrize(
    ("domain", "value", "rule"),
    [
        ({"ge": 1}, 0, "x=0 must be at least 1"),
        ({"le": 9}, 10, "x=10 must be at most 9"),
        ({"ge": 0, "le": 1}, float("nan"), "x=nan must be at least 0 and be at most 1"),
        ({"gt": 0}, 0.0, r"x=0\.0 must be above 0"),
        ({"ge": 0, "lt": 1}, 1, "x=1 must be at least 0 and be below 1"),
        ({"min_length": 1}, "", "x='' must have a length of at least 1"),
        ({"pattern": "^[a-z]+$"}, "A", r"x='A' must match \^\[a-z\]\+\$"),
        ({"choices": ("a", "b")}, "c", "x='c' is not one of a, b; choose one of them"),
        ({"choices": lambda: ("a", "b")}, "c", "x='c' is not one of a, b; choose one of them"),
    ],
)
def test_a_value_outside_a_domain_is_refused_in_one_line(domain: dict[str, Any], value: Any, rule: str) -> None:
    with pytest.raises(Invalid, match=f"^{rule}"):
        _option(**domain).check(value)


@pytest.mark.parametrize(
    ("domain", "values"),
    [
        ({"ge": 0, "le": 1}, [0, 1, 0.5]),
        ({"gt": 0}, [1e-300]),
        ({"ge": 0, "lt": 1}, [0, 0.999]),
        ({"min_length": 1}, ["a"]),
        ({"pattern": "^[a-z]+$"}, ["ab"]),
        ({"choices": lambda: ("a", "b")}, ["a", "b"]),
        ({}, ["anything", -1]),
    ],
)
def test_a_domain_admits_its_edges_and_what_is_left_out(domain: dict[str, Any], values: list[Any]) -> None:
    for value in (*values, None):
        _option(**domain).check(value)
