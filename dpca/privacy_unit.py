"""The privacy unit, and the function with which all parts of the product state a privacy guarantee as a sentence.

>>> unit = PrivacyUnit(name="patient_id", rows=3)
>>> privacy_statement(epsilon=0.186, delta=1e-7, relation="add_remove", unit=unit)
'(0.186, 1e-7)-differential privacy when one patient (`patient_id`, at most 3 rows) is added or removed'
>>> privacy_statement(epsilon=1.0, delta=0.0, relation="replace_one", unit=PrivacyUnit())
'(1, 0)-differential privacy when one row is replaced by another'
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any, Self

from dpca.errors import Invalid

ROW, NIGHT_ROW = "row", "row of one night"
"""The units without ids: a row of a dataset, and a row of one snapshot of a stream."""
WITHOUT_PRIVACY = "no differential privacy: the result is exact, and no guarantee is left for anybody in the rows"
LONGEST = 100
"""The maximum length of a name of ids, in characters."""

_CHANGES: Mapping[str, str] = {
    "add_remove": "is added or removed",
    "zero_out": "is emptied",
    "replace_one": "is replaced by another",
}
_MOST_ROWS = 2**63 - 1
_DIGITS = Context(prec=6, rounding=ROUND_CEILING)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyUnit:
    """The unit of data that a privacy guarantee protects as a whole: one row, or all rows with the same id.

    Attributes
    ----------
    name : str
        The name of the ids, such as ``patient_id``, which is usually the name of the column of ids. `ROW` if each row
        is one unit.
    rows : int or None
        The maximum number of rows of one unit in a snapshot. This number is declared by the user, and so public. None
        if no maximum was declared.

    Raises
    ------
    Invalid
        If the name is too long or has unprintable characters or backticks, or if the number of rows is not positive.
    """

    name: str = ROW
    rows: int | None = 1

    def __post_init__(self) -> None:
        """Check the name and the number of rows."""
        if self.name in (ROW, NIGHT_ROW):
            if self.rows != 1:
                raise Invalid(
                    f"rows_per_unit={self.rows!r} is only allowed if each row has an id; name the ids, as in --unit "
                    "patient_id."
                )
            return
        name, rows = self.name, self.rows
        if not (isinstance(name, str) and 0 < len(name.strip()) == len(name) <= LONGEST) or not name.isprintable():
            raise Invalid(
                f"unit={_shown(name)} must have 1 to {LONGEST} printable characters, and no blanks at its ends; choose "
                "such a name for the ids."
            )
        if "`" in name:
            raise Invalid(f"unit={_shown(name)} has a backtick, which is not allowed in a name; choose another name.")
        if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int) or not 1 <= rows <= _MOST_ROWS):
            raise Invalid(
                f"rows_per_unit={rows!r} must be a whole number of at least 1; correct it, or omit it to declare no "
                "maximum."
            )

    @classmethod
    def requested(cls, name: str | None, rows: int | None) -> Self:
        """Return the privacy unit that the options ``unit`` and ``rows_per_unit`` request; by default, one row.

        Raises
        ------
        Invalid
            If the class refuses the name or the number of rows. Also if `name` is one of the reserved names of units
            without ids (`ROW`, `NIGHT_ROW`).
        """
        if name is None:
            return cls(rows=1 if rows is None else rows)
        if name in (ROW, NIGHT_ROW):
            raise Invalid(f"unit={name!r} is reserved for data without ids; omit unit, or give the ids another name.")
        return cls(name=name, rows=rows)

    @classmethod
    def of(cls, privacy: Mapping[str, Any]) -> Self:
        """Return the unit stated in the ``privacy`` facts of a manifest, which may be untrusted and are checked."""
        name = privacy.get("unit", ROW)
        return cls(name=name, rows=1 if name in (ROW, NIGHT_ROW) else privacy.get("rows_per_unit"))

    @property
    def facts(self) -> dict[str, Any]:
        """The unit as two facts, ``unit`` and ``rows_per_unit``, as stored in manifests and in the database."""
        return {"unit": self.name, "rows_per_unit": self.rows}

    @property
    def noun(self) -> str:
        """A noun for one unit: the name without a trailing ``_id``, such as "patient".

        The noun is "unit" if the name does not consist of plain words.
        """
        if self.name in (ROW, NIGHT_ROW):
            return self.name
        stem = self.name[:-3] if self.name.lower().endswith("_id") else self.name
        words = stem.replace("_", " ").split()
        plain = all(letter.isalnum() or letter == "-" for word in words for letter in word)
        return " ".join(words) if words and plain and words[0][0].isalpha() else "unit"

    def covers(self, other: "PrivacyUnit") -> bool:
        """Return whether data with the unit `other` satisfy this unit: equal ids, and no more rows per unit."""
        if self.name != other.name:
            return False
        return self.rows is None or (other.rows is not None and other.rows <= self.rows)

    def __str__(self) -> str:
        """Return a phrase for one unit, such as "one patient (`patient_id`, at most 3 rows)", for use in a sentence."""
        if self.name in (ROW, NIGHT_ROW):
            return f"one {self.noun}"
        most = "" if self.rows is None else f", at most {self.rows} row{'s' if self.rows > 1 else ''}"
        return f"one {self.noun} (`{self.name}`{most})"


def privacy_statement(*, epsilon: float | None, delta: float | None, relation: str, unit: PrivacyUnit) -> str:
    """State a privacy guarantee as one sentence, with epsilon and delta rounded up to six significant digits.

    Parameters
    ----------
    epsilon, delta : float or None
        The guarantee. If one of them is None, or epsilon is infinite, the sentence states that there is no guarantee.
    relation : str
        The relation of neighboring datasets: ``add_remove``, ``zero_out`` or ``replace_one``.
    unit : PrivacyUnit
        The unit by which neighboring datasets differ.
    """
    if epsilon is None or delta is None or not math.isfinite(epsilon):
        return WITHOUT_PRIVACY
    return f"({_up(epsilon)}, {_up(delta)})-differential privacy when {unit} {_CHANGES[relation]}"


def privacy_of(manifest: Mapping[str, Any]) -> str | None:
    """Return the guarantee of a manifest as a sentence, or None if the manifest states no well-formed guarantee.

    Noise may follow a published formula that gives less privacy than it claims. Then the sentence states the actual
    epsilon.
    """
    try:
        privacy, plan = manifest["privacy"], manifest.get("plan", {})
        if privacy.get("private") is False:
            return WITHOUT_PRIVACY
        real = max(float(privacy["epsilon"]), float(plan.get("real_epsilon_at_most", 0.0)))
        unit = PrivacyUnit.of({"unit": privacy["unit"], **privacy})
        return privacy_statement(epsilon=real, delta=float(privacy["delta"]), relation=privacy["relation"], unit=unit)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return None


def _up(number: float) -> str:
    """Format a number with at most six significant digits, rounded up."""
    mantissa, _, exponent = f"{float(_DIGITS.create_decimal(Decimal(repr(float(number))))):g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


def _shown(name: object) -> str:
    """Quote and truncate an untrusted name, for use in a one-line message."""
    return repr(name) if len(repr(name)) <= LONGEST else f"{repr(name)[:LONGEST]}..."
