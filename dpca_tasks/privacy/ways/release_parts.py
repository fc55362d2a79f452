"""A statistic of several parts with noise, each part by its own bound."""

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.noise.distributions import add_noise
from dpca_tasks.noise.joint import JointGaussian
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.privacy.gate import Gate
from dpca_tasks.privacy.rows import Rows
from dpca_tasks.privacy.units import part_in_data_units, part_scales_in_steps
from dpca_tasks.queries.joint_sum import JointSum


def release_parts(
    gate: Gate, rows: Rows, query: JointSum, distribution: JointGaussian
) -> dict[str, NDArray[np.float64]]:
    """Return the parts of the exact sum with keyed noise, all integers on grids of their own, in data units."""
    request = gate.admit(query, distribution, part_scales_in_steps)

    def compute() -> NDArray[np.int64]:
        secrets = gate.secrets(request)
        answer = rows.sum(request.query.with_secrets(secrets), stay=gate.steps_left > 1)
        for (name, packed), scale in zip(query.split(answer).items(), request.numbers, strict=True):
            layout = query.parts[name].layout
            key = subkey(secrets.noise.secret, label="part", info=name.encode())
            add_noise(packed, distribution.part(layout.kind), key, layout.order, scale_in_steps=scale)
        return answer

    parts = request.query.split(gate.load_or_compute(request, compute))
    return {name: part_in_data_units(packed, query.parts[name]) for name, packed in parts.items()}
