"""Options that are declared once: the fields of a record, each with its meaning, type, default and domain.

Commands, flows and forms are made from such a record, so that they declare none of its options again.

>>> from typing import Annotated
>>> @dataclass(frozen=True, kw_only=True)
... class Walk:
...     steps: Annotated[int, Meaning("How many steps to take.", minimum=1)] = 10
>>> [(option.name, option.default, option.meaning.minimum) for option in options_of(Walk)]
[('steps', 10, 1)]
"""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, MISSING, Field, dataclass, fields
from typing import Any, NamedTuple, get_args, get_type_hints

from storage.errors import Invalid


@dataclass(frozen=True, slots=True)
class Meaning:
    """The help text and the domain of one option, and how a command line spells it.

    Attributes
    ----------
    help : str, one line for the command line and the form
    minimum, maximum : int or None, bounds of a number, included
    above, below : int or None, bounds of a number, excluded
    min_length : int or None, how many characters a word has at least
    pattern : str or None, the regular expression that a word matches
    choices : tuple of str, or a function that returns it; the words allowed, empty if any word is
    is_file : bool, whether the value names a file: such a value is private, so Prefect never sees it
    is_argument : bool, whether a command takes it by its position
    is_offered : bool, whether forms offer it: what weakens a guarantee they do not, though a job takes it all the same
    form : a function that returns what the option's JSON schema has in a form in place of what its type says, or None
    """

    help: str
    _: KW_ONLY
    minimum: int | None = None
    maximum: int | None = None
    above: int | None = None
    below: int | None = None
    min_length: int | None = None
    pattern: str | None = None
    choices: tuple[str, ...] | Callable[[], tuple[str, ...]] = ()
    is_file: bool = False
    is_argument: bool = False
    is_offered: bool = True
    form: Callable[[], Mapping[str, Any]] | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """The words allowed; empty if any word is."""
        return self.choices() if callable(self.choices) else self.choices

    def rules(self) -> dict[str, Any]:
        """Return the domain in the words of JSON Schema."""
        rules: dict[str, Any] = {
            "minimum": self.minimum,
            "maximum": self.maximum,
            "exclusiveMinimum": self.above,
            "exclusiveMaximum": self.below,
            "minLength": self.min_length,
            "pattern": self.pattern,
            "enum": list(self.words) or None,
        }
        return {rule: to for rule, to in rules.items() if to is not None}

    def check(self, name: str, value: Any) -> None:
        """Refuse a value outside the domain; None means that the option was left out.

        Raises
        ------
        Invalid
            If it is outside.
        """
        if value is None:
            return
        if self.words and value not in self.words:
            raise Invalid(f"{name}={value!r} is not one of {', '.join(self.words)}; choose one of them")
        rules = [(holds, rule, getattr(self, bound)) for bound, (holds, rule) in _RULES.items()]
        stated = [(holds, rule, to) for holds, rule, to in rules if to is not None]
        if not all(holds(value, to) for holds, _, to in stated):
            rule = " and ".join(f"{rule} {to}" for _, rule, to in stated)
            raise Invalid(f"{name}={value!r} must {rule}; correct it, or leave it out")


_RULES: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "minimum": (operator.ge, "be at least"),
    "above": (operator.gt, "be above"),
    "maximum": (operator.le, "be at most"),
    "below": (operator.lt, "be below"),
    "min_length": (lambda word, length: len(word) >= length, "have a length of at least"),
    "pattern": (lambda word, pattern: re.search(pattern, word) is not None, "match"),
}


class OptionField(NamedTuple):
    """One field of a record of options: name, type, default and meaning.

    The default of a field that makes its own is None, and the record accepts None for it.
    """

    name: str
    kind: Any
    default: Any
    meaning: Meaning

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
        return self.kind == Mapping[str, str] | None

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


def _option(field: Field[Any], annotated: Any) -> OptionField:
    kind, meaning = get_args(annotated)
    if field.default_factory is MISSING:
        return OptionField(field.name, kind, field.default, meaning)
    return OptionField(field.name, kind | None, None, meaning)
