"""The way out for a sum with noise."""

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.noise.distributions import NoiseDistribution, add_noise
from dpca_tasks.privacy.gate import Gate
from dpca_tasks.privacy.rows import Rows
from dpca_tasks.privacy.units import in_data_units, scale_in_steps
from dpca_tasks.queries.base import RowSum


def release(gate: Gate, rows: Rows, query: RowSum, distribution: NoiseDistribution) -> NDArray[np.float64]:
    """Return the exact sum plus keyed noise, both integers on the query's grid, converted to data units."""
    request = gate.admit(query, distribution, scale_in_steps)

    def compute() -> NDArray[np.int64]:
        secrets = gate.secrets(request)
        asked = request.query.with_secrets(secrets)
        answer = rows.sum(asked, stay=gate.steps_left > 1)
        if not asked.noises_itself:
            scale = secrets.noise_scale
            add_noise(answer, request.distribution, secrets.noise, asked.layout.order, scale_in_steps=scale)
        return answer

    return in_data_units(gate.load_or_compute(request, compute), request.query)
