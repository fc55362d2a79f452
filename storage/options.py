"""Options declared once as the fields of a record, with type, default, help text and bounds.

Commands, flows and web forms are derived from such a record. The record rejects invalid values, with an error message
of one line.

Types are strict: text is never converted to a number, a number never to a boolean, and a fraction is never truncated.
There are four exceptions. An integer is accepted for a float, a NumPy scalar for the corresponding Python scalar, and a
path object for the name of a file. None is accepted for an option with a default, and means that the option is left
out. NaN satisfies no bound.

>>> from typing import Annotated
>>> from pydantic import Field
>>> @option_record
... class Walk:
...     steps: Annotated[int, Field(description="How many steps to take.", ge=1)] = 10
>>> [(option.name, option.default, option.bounds) for option in options_of(Walk)]
[('steps', 10, {'ge': 1})]
>>> Walk(steps=0)
Traceback (most recent call last):
    ...
dpca.errors.Invalid: steps=0 must be greater than or equal to 1; correct it, or leave it out
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, dataclass_transform, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ArgsKwargs, CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_after_validator_function, no_info_before_validator_function

from dpca.errors import Invalid

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_STRICT = ConfigDict(strict=True, extra="forbid")
_SUBJECT = re.compile(r"^(Input|String|Value) should\b")
_CHOICE = "choice"
_NAMES = ("missing", "unexpected_keyword_argument")
"""Pydantic's errors about names of arguments; they are programming errors, and are raised as TypeError."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def option_record[T](record: type[T]) -> type[T]:
    """Class decorator: make a frozen dataclass of options, which raises `Invalid` for invalid values.

    Pydantic is loaded only when the first record with values is created, so that a command that prints its help is
    fast.
    """
    made: Any = dataclass(frozen=True, kw_only=True)(record)
    made.__pydantic_config__ = _STRICT
    by_default = made.__init__

    def build(self: T, **given: Any) -> None:
        if not given:  # default values need no check, so Pydantic is not loaded
            by_default(self)
            return
        try:
            _adapter(made).validator.validate_python(ArgsKwargs((), _declared(made, given)), self_instance=self)
        except ValidationError as error:
            raise _refusal(made, error) from None

    made.__init__ = build
    checked: type[T] = made
    return checked


@cache
def _adapter(record: Any) -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter

    return TypeAdapter(record)


def _declared(record: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given values without optional ones that are None; NumPy scalars become Python scalars."""
    optional = {option.name for option in options_of(record) if not option.is_required}
    kept = {name: one for name, one in given.items() if one is not None or name not in optional}
    return {name: one.item() if getattr(one, "shape", None) == () else one for name, one in kept.items()}


def as_rule(message: str, *, subject: str = "") -> str:
    """Convert Pydantic's message about a value to a rule with "must", after an optional subject.

    >>> as_rule("Input should be greater than 0"), as_rule("Input should be greater than 0", subject="it ")
    ('must be greater than 0', 'it must be greater than 0')
    """
    return _SUBJECT.sub(f"{subject}must", message)


def _refusal(record: Any, error: ValidationError) -> Exception:
    """Return the exception for the first invalid option in a validation error."""
    first = error.errors(include_url=False)[0]
    declared = first.get("ctx", {}).get("error")
    if isinstance(declared, Invalid):
        return Invalid(*declared.args)
    name = str(first["loc"][0])
    if first["type"] in _NAMES:
        return TypeError(f"{record.__name__}: {first['msg']} ({name})")
    found, rule = repr(first["input"]).replace("\n", " "), as_rule(first["msg"])
    if first["type"] == _CHOICE:
        return Invalid(f"{name}={found} {rule}; choose one of them")
    (option,) = (option for option in options_of(record) if option.name == name)
    variant = "correct it" if option.is_required else "correct it, or leave it out"
    return Invalid(f"{name}={found} {rule}; {variant}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Handling:
    """How commands and web forms treat an option; help text and bounds are in the option's `pydantic.Field`.

    Attributes
    ----------
    choices : tuple of str, or a function that returns it; the allowed words, or empty if any word is allowed
    is_file : bool, whether the value is a file name, which is private, so that Prefect never receives it
    is_argument : bool, whether the option is a positional argument of commands
    is_offered : bool, whether web forms show the option; forms omit options that weaken a guarantee, but jobs accept
        them
    form : a function that returns the option's JSON schema for web forms, or None to derive it from the type
    """

    choices: tuple[str, ...] | Callable[[], tuple[str, ...]] = ()
    is_file: bool = False
    is_argument: bool = False
    is_offered: bool = True
    form: Callable[[], Mapping[str, Any]] | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """The allowed words; empty if any word is allowed."""
        return self.choices() if callable(self.choices) else self.choices

    def __get_pydantic_core_schema__(self, kind: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Extend Pydantic's check of the type: check the allowed words, and accept a path object for a file name."""
        schema = handler(kind)
        if self.is_file:
            return no_info_before_validator_function(_path_text, schema)
        return no_info_after_validator_function(self._chosen, schema) if self.choices else schema

    def _chosen(self, value: Any) -> Any:
        if value is not None and value not in (words := self.words):
            raise PydanticCustomError(_CHOICE, "is not one of {words}", {"words": ", ".join(words)})
        return value


def _path_text(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


_RULES = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "min_length": "minLength",
    "pattern": "pattern",
}
"""The name of each bound in JSON Schema, by its name in Pydantic."""


def rules_of(bounds: Mapping[str, Any]) -> dict[str, Any]:
    """Rename bounds from their names in Pydantic to their names in JSON Schema."""
    return {_RULES[bound]: to for bound, to in bounds.items()}


class OptionField(NamedTuple):
    """One option of a record, with its name, its type without bounds, and its declaration."""

    name: str
    kind: Any
    field: FieldInfo

    @property
    def help(self) -> str:
        """The help text, one line for the command line and the web form."""
        return self.field.description or ""

    @property
    def handling(self) -> Handling:
        """How commands and web forms treat the option."""
        return next((one for one in self.field.metadata if isinstance(one, Handling)), Handling())

    @property
    def words(self) -> tuple[str, ...]:
        """The allowed words; empty if any word is allowed."""
        return self.handling.words

    @property
    def bounds(self) -> dict[str, Any]:
        """The bounds by their names in Pydantic, including bounds inside a union type (number or word)."""
        members = [one for one in get_args(self.field.annotation) if get_origin(one) is Annotated]
        declared = [
            *self.field.metadata,
            *(one for part in members for one in FieldInfo.from_annotation(part).metadata),
        ]
        found = {bound: getattr(one, bound, None) for one in declared for bound in _RULES if hasattr(one, bound)}
        return {bound: to for bound, to in found.items() if to is not None}

    @property
    def rules(self) -> dict[str, Any]:
        """The bounds and allowed words as keywords of JSON Schema."""
        return rules_of(self.bounds) | ({"enum": list(self.words)} if self.words else {})

    @property
    def is_required(self) -> bool:
        """True if the record has no default for the option."""
        return self.field.is_required()

    @property
    def default(self) -> Any:
        """The default value; None for a default factory. The value has no meaning for a required option."""
        return None if self.field.default_factory is not None else self.field.default

    @property
    def is_settings(self) -> bool:
        """True if the option is a mapping, whose entries are given one by one on the command line."""
        return bool(self.kind == Mapping[str, str] | None)

    @property
    def may_be_none(self) -> bool:
        """True if None is one of the option's values."""
        return type(None) in get_args(self.kind)


_listed: dict[type[Any], tuple[OptionField, ...]] = {}
"""Cache of the options of each record, because reading the types of a record is slow."""


def options_of(record: type[Any]) -> tuple[OptionField, ...]:
    """Return the options of a record in declaration order, but required options first."""
    if record not in _listed:
        kinds, hints = get_type_hints(record), get_type_hints(record, include_extras=True)
        options = [
            OptionField(
                one.name,
                kinds[one.name] if one.default_factory is MISSING else kinds[one.name] | None,
                FieldInfo.from_annotated_attribute(hints[one.name], one),
            )
            for one in fields(record)
        ]
        _listed[record] = tuple(sorted(options, key=lambda option: not option.is_required))
    return _listed[record]
