"""The way out for a noised matrix that is too large to form."""

from functools import partial

from dpca_tasks.noise.distributions import Symmetric
from dpca_tasks.privacy.gate import ANSWER, APPLIED, PUBLIC, Gate
from dpca_tasks.privacy.released_operator import CheckColumns, NoisedOperator
from dpca_tasks.privacy.rows import Rows
from dpca_tasks.privacy.tiled_noise import NoiseOperator
from dpca_tasks.privacy.units import scale_in_steps
from dpca_tasks.queries.augmented_moment import CentredMoment
from dpca_tasks.queries.second_moment import SecondMoment


def release_operator(
    gate: Gate, rows: Rows, query: SecondMoment | CentredMoment, distribution: Symmetric
) -> NoisedOperator:
    """Return, as an operator, the matrix that `release` would return; a step is answered in one of the two forms."""
    request = gate.admit(query, distribution, scale_in_steps)
    gate.advance(request)

    def begin() -> NoiseOperator:
        key, (scale,) = gate.key(request, "noise"), request.numbers
        order = request.query.layout.order
        return NoiseOperator(request.distribution, key, order=order, scale_in_steps=scale, client=rows.client)

    def load_or_store(check: CheckColumns) -> CheckColumns:
        columns, images = check
        stored = gate.load_or_store(request, lambda: (images, {"directions": columns}), mark=APPLIED)
        return stored[PUBLIC + "directions"], stored[ANSWER]

    return NoisedOperator(request.query, partial(rows.sum, stay=True), begin, load_or_store)
