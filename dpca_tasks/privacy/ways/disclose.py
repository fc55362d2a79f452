"""The way out for a sum without noise, for reference results."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting import events
from dpca_tasks.privacy.gate import Gate
from dpca_tasks.privacy.rows import Rows
from dpca_tasks.privacy.units import in_data_units
from dpca_tasks.queries.base import RowSum


@dataclass(frozen=True, slots=True, kw_only=True)
class NoNoise:
    """The noise distribution of a request without noise."""

    name: ClassVar[str] = "NoneType"
    norm: ClassVar[str] = "none"

    @property
    def event(self) -> events.Event:
        """The event without a guarantee."""
        return events.non_private()


def disclose(gate: Gate, rows: Rows, query: RowSum) -> NDArray[np.float64]:
    """Return the exact sum, on the query's grid, in data units."""
    return in_data_units(exact_answer(gate, rows, query), query)


def exact_answer(gate: Gate, rows: Rows, query: RowSum) -> NDArray[np.int64]:
    """Return the stored answer of a step without noise: the exact sum, in grid steps."""
    request = gate.admit(query, NoNoise(), lambda *_: ())
    return gate.load_or_compute(request, lambda: rows.sum(request.query, stay=gate.steps_left > 1))
