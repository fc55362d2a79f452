"""Options that are declared once: the fields of a record, each with its type, default, help text and bounds.

Commands, flows and forms are made from such a record, so that they declare none of its options again.

>>> from typing import Annotated
>>> from pydantic import Field
>>> @dataclass(frozen=True, kw_only=True)
... class Walk:
...     steps: Annotated[int, Field(description="How many steps to take.", ge=1)] = 10
>>> [(option.name, option.default, option.bounds) for option in options_of(Walk)]
[('steps', 10, {'ge': 1})]
"""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, NamedTuple, get_args, get_type_hints

from pydantic.fields import FieldInfo

from storage.errors import Invalid


@dataclass(frozen=True, slots=True, kw_only=True)
class Handling:
    """How commands and forms treat an option, besides the help text and the bounds that its `pydantic.Field` states.

    Attributes
    ----------
    choices : tuple of str, or a function that returns it; the words allowed, empty if any word is
    is_file : bool, whether the value names a file: such a value is private, so Prefect never sees it
    is_argument : bool, whether a command takes it by its position
    is_offered : bool, whether forms offer it: what weakens a guarantee they do not, though a job takes it all the same
    form : a function that returns what the option's JSON schema has in a form in place of what its type says, or None
    """

    choices: tuple[str, ...] | Callable[[], tuple[str, ...]] = ()
    is_file: bool = False
    is_argument: bool = False
    is_offered: bool = True
    form: Callable[[], Mapping[str, Any]] | None = None


_RULES: dict[str, tuple[str, Callable[[Any, Any], bool], str]] = {
    "ge": ("minimum", operator.ge, "be at least"),
    "gt": ("exclusiveMinimum", operator.gt, "be above"),
    "le": ("maximum", operator.le, "be at most"),
    "lt": ("exclusiveMaximum", operator.lt, "be below"),
    "min_length": ("minLength", lambda word, length: len(word) >= length, "have a length of at least"),
    "pattern": ("pattern", lambda word, pattern: re.search(pattern, word) is not None, "match"),
}
"""By pydantic's name of a bound: JSON Schema's name, whether a value keeps it, and how a refusal states it."""


def bounds_of(field: FieldInfo) -> dict[str, Any]:
    """Return the bounds of a field, by pydantic's names."""
    found = {bound: [getattr(one, bound, None) for one in field.metadata] for bound in _RULES}
    return {bound: to for bound, stated in found.items() for to in stated if to is not None}


def rules_of(field: FieldInfo) -> dict[str, Any]:
    """Return the bounds of a field, by the names of JSON Schema."""
    return {_RULES[bound][0]: to for bound, to in bounds_of(field).items()}


class OptionField(NamedTuple):
    """One field of a record of options: name, type, default, bounds and handling.

    The default of a field that makes its own is None, and the record accepts None for it.
    """

    name: str
    kind: Any
    default: Any
    field: FieldInfo
    handling: Handling = Handling()

    @property
    def help(self) -> str:
        """The help text: one line for the command line and the form."""
        return self.field.description or ""

    @property
    def bounds(self) -> dict[str, Any]:
        """The bounds, by pydantic's names."""
        return bounds_of(self.field)

    @property
    def words(self) -> tuple[str, ...]:
        """The words allowed; empty if any word is."""
        return self.handling.choices() if callable(self.handling.choices) else self.handling.choices

    def rules(self) -> dict[str, Any]:
        """Return the domain in the words of JSON Schema."""
        return rules_of(self.field) | ({"enum": list(self.words)} if self.words else {})

    def check(self, value: Any) -> None:
        """Refuse a value outside the domain; None means that the option was left out.

        Raises
        ------
        Invalid
            If it is outside.
        """
        if value is None:
            return
        if self.words and value not in self.words:
            raise Invalid(f"{self.name}={value!r} is not one of {', '.join(self.words)}; choose one of them")
        stated = [(*_RULES[bound][1:], to) for bound, to in self.bounds.items()]
        if not all(holds(value, to) for holds, _, to in stated):
            rule = " and ".join(f"{rule} {to}" for _, rule, to in stated)
            raise Invalid(f"{self.name}={value!r} must {rule}; correct it, or leave it out")

    @property
    def is_required(self) -> bool:
        """Whether the record has no default for it."""
        return self.default is MISSING

    @property
    def flag(self) -> str:
        """The flag of a command: the option's name, as command lines write it."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def is_settings(self) -> bool:
        """Whether it is a mapping whose entries are given one at a time."""
        return bool(self.kind == Mapping[str, str] | None)

    @property
    def may_be_none(self) -> bool:
        """Whether None is one of its values."""
        return type(None) in get_args(self.kind)


_listed: dict[type[Any], tuple[OptionField, ...]] = {}
"""The options of the records that were asked for: reading their types takes longer than all that is done with them."""


def options_of(record: type[Any]) -> tuple[OptionField, ...]:
    """List the fields of a record of options: the required ones first, each part in the order of the record."""
    if record not in _listed:
        hints = get_type_hints(record, include_extras=True)
        options = [_option(field, hints[field.name]) for field in fields(record)]
        _listed[record] = tuple(sorted(options, key=lambda option: not option.is_required))
    return _listed[record]


def check_options(record: Any) -> None:
    """Refuse a record of options of which a value lies outside its domain.

    Raises
    ------
    Invalid
        In one line, about the first such value.
    """
    for option in options_of(type(record)):
        option.check(getattr(record, option.name))


def _option(field: Field[Any], annotated: Any) -> OptionField:
    kind, stated, *handling = get_args(annotated)
    if field.default_factory is MISSING:
        return OptionField(field.name, kind, field.default, stated, *handling)
    return OptionField(field.name, kind | None, None, stated, *handling)
