"""The way out for a statistic of several parts without noise, for reference results."""

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.privacy.gate import Gate
from dpca_tasks.privacy.rows import Rows
from dpca_tasks.privacy.units import part_in_data_units
from dpca_tasks.privacy.ways.disclose import exact_answer
from dpca_tasks.queries.joint_sum import JointSum


def disclose_parts(gate: Gate, rows: Rows, query: JointSum) -> dict[str, NDArray[np.float64]]:
    """Return the parts of an exact sum, each on its own grid, in data units."""
    parts = query.split(exact_answer(gate, rows, query))
    return {name: part_in_data_units(packed, query.parts[name]) for name, packed in parts.items()}
