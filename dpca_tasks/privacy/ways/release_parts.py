"""A statistic of several parts with noise, each part by its own bound."""

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.noise.distributions import add_noise
from dpca_tasks.noise.joint import JointGaussian
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.privacy.gate import Gate
from dpca_tasks.privacy.request import Request
from dpca_tasks.privacy.rows import Rows
from dpca_tasks.privacy.units import part_in_data_units, part_scales_in_steps
from dpca_tasks.queries.joint_sum import JointSum


def release_parts(
    gate: Gate, rows: Rows, query: JointSum, distribution: JointGaussian
) -> dict[str, NDArray[np.float64]]:
    """Return the parts of the exact sum with keyed noise, all integers on grids of their own, in data units."""
    request = gate.admit(query, distribution, part_scales_in_steps)
    stay = gate.steps_left > 1
    parts = request.query.split(gate.load_or_compute(request, lambda: noised_parts(gate, rows, request, stay=stay)))
    return {name: part_in_data_units(packed, query.parts[name]) for name, packed in parts.items()}


def noised_parts(gate: Gate, rows: Rows, request: Request[JointSum, JointGaussian], *, stay: bool) -> NDArray[np.int64]:
    """Sum all parts and add their noise, with a key for each."""
    secrets, query = gate.secrets(request), request.query
    answer = rows.sum(query.with_secrets(secrets), stay=stay)
    for (name, packed), scale in zip(query.split(answer).items(), request.numbers, strict=True):
        layout = query.parts[name].layout
        key = subkey(secrets.noise.secret, label="part", info=name.encode())
        add_noise(packed, request.distribution.part(layout.kind), key, layout.order, scale_in_steps=scale)
    return answer
