"""Identity of a release: the arguments of a fit, never its rows.

Without a slot, each fit is a new release and a new charge. A slot names one release of a budget. It keeps the rows of
the fit that was charged for it, and rows that are passed later are not looked at.
"""

import hashlib
import json
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import sklearn

from dpca_tasks.accounting.relation import Relation
from dpca_tasks.errors import InvalidInput
from flows.estimators.tables import Columns, TableRows
from flows.requests.base import Request
from storage.errors import Conflict

LONGEST_SLOT = 100
_PARAMETERS = {"components": "n_components", "rank": "n_components", "publish": "published name"}
"""Parameters of estimators that requests have under another name."""
_RESOLVED = ("mechanism", "settings")
"""Fields that a stored request has as they were chosen, where ``mechanism="auto"`` leaves the choice."""
_LIBRARIES = (str(Path(__file__).parent), str(Path(sklearn.__file__).parent))


class RepeatedFitWarning(UserWarning):
    """A fit without a slot charges again for parameters that were charged before in this process."""


class ReadRows(Protocol):
    """A function that checks and reads the rows of a fit."""

    def __call__(self, *, copied: bool = False) -> TableRows:
        """Return the rows; ``copied`` where later changes by the caller must not reach them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """One call of ``fit``.

    Attributes
    ----------
    request : Request
    columns : Columns
    read_rows : ReadRows
        It is called for a new release alone.
    relation : str or None
    records_at_most : int or None
    slot : str or None
    """

    request: Request
    columns: Columns
    read_rows: ReadRows
    relation: Relation | None
    records_at_most: int | None
    slot: str | None

    def __post_init__(self) -> None:
        """Refuse a slot that is not a short line of text."""
        if self.slot is None:
            return
        if not isinstance(self.slot, str) or not self.slot.strip() or not self.slot.isprintable():
            raise InvalidInput(f"slot={self.slot!r} must be printable text; pass a name such as 'fold-1', or None.")
        if len(self.slot) > LONGEST_SLOT:
            raise InvalidInput(
                f"slot has {len(self.slot)} characters, and at most {LONGEST_SLOT} are allowed; pass a shorter name."
            )

    def of(self, dataset: str, *, published: str, relation: Relation) -> Self:
        """Return the fit with the relation of its budget, and with its names of rows and releases."""
        return replace(self, request=replace(self.request, dataset=dataset, publish=published), relation=relation)

    @property
    def parameters(self) -> dict[str, Any]:
        """The public arguments without the columns, in JSON values."""
        request = {**asdict(self.request), "family": self.request.family}
        terms = {**request, "relation": self.relation, "records_at_most": self.records_at_most}
        read: dict[str, Any] = json.loads(json.dumps(terms, default=_plain))
        return read

    @property
    def terms(self) -> dict[str, Any]:
        """All public arguments, in JSON values."""
        names = self.columns.names
        columns = {"number of columns": self.columns.n_features, "column names": None if names is None else list(names)}
        return {**self.parameters, **columns}

    @property
    def digest(self) -> str:
        """Digest of the terms."""
        return hashlib.sha256(_text(self.terms).encode()).hexdigest()

    def warn_if_repeated(self, charged: Counter[str], *, payer: object) -> None:
        """Warn before a fit without a slot charges again; ``charged`` counts such fits by their parameters.

        The message holds parameters and a count, which are public.
        """
        before = charged[_text(self.parameters)]
        if self.slot is None and before:
            request = self.request
            warnings.warn(
                f"fit {before + 1} with equal parameters on {payer!r} in this process is another release, and charges "
                f"epsilon={request.epsilon:g} at delta={request.delta:g} again; pass slot='NAME' for one release that "
                "later fits with this slot return.",
                RepeatedFitWarning,
                skip_file_prefixes=_LIBRARIES,
            )

    def note_charge(self, charged: Counter[str]) -> None:
        """Count a fit without a slot that was charged."""
        if self.slot is None:
            charged[_text(self.parameters)] += 1

    def other_terms(self, stored: Mapping[str, Any]) -> Conflict:
        """Return the refusal of a slot that is taken by a fit of other terms, of which some are ``stored``."""
        left_open = _RESOLVED if self.request.mechanism == "auto" else ()
        differing = [
            _PARAMETERS.get(name, name)
            for name, value in self.terms.items()
            if name in stored and name not in left_open and stored[name] != value
        ]
        named = ", ".join(differing) or "column names or public bounds"
        return Conflict(
            f"slot {self.slot!r} was charged with other terms ({named}), and a slot has one release; pass the same "
            "terms, or another slot."
        )


def _text(terms: Mapping[str, Any]) -> str:
    return json.dumps(dict(terms), sort_keys=True)


def _plain(value: Any) -> Any:
    """Return a number of NumPy as Python's, and other objects as text."""
    return value.item() if isinstance(value, np.generic) else str(value)
