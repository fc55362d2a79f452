"""The way out for one site's share of a joint sum: noised by its own part of the noise, under a mask."""

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.privacy.gate import Gate
from dpca_tasks.privacy.rows import Rows
from dpca_tasks.queries.base import RowSum
from dpca_tasks.sites.masks import Masks
from dpca_tasks.sites.opening import Address, Message, check_room, masked
from dpca_tasks.sites.shares import Share


def share(gate: Gate, rows: Rows, query: RowSum, noise: Share, *, address: Address, seeds: Masks) -> Message:
    """Return the site's weighted sum plus its keyed noise plus a mask, modulo ``2^64``.

    Notes
    -----
    The noised integers are stored as the answer of the step and never leave; each attempt sends them under a mask of
    its own. A round has a step for each roster that is tried in it, and its noise is a function of the roster: other
    sites, other noise, another charge.
    """
    roster = noise.roster
    if seeds.site != noise.site:
        raise InvalidInput(
            f"the seeds of site {seeds.site!r} mask no message of site {noise.site!r}: they would not cancel; "
            "pass the site's own."
        )
    check_room(roster, steps_per_unit=query.steps_per_unit)  # a record's contribution has norm at most one unit
    first = address.round * roster.attempts
    steps = range(first, first + roster.attempts)
    request = gate.admit_among(steps, query, noise, _numbers, bound_to=roster.digest)

    def compute() -> NDArray[np.int64]:
        answer = rows.sum(request.query, stay=gate.steps_left > 1)
        answer *= noise.weight
        answer += noise.draw(
            gate.key(request, "noise"), request.query.layout.order, squared_scale=int(request.numbers[0])
        )
        return answer

    stored = gate.load_or_compute(request, compute)
    mask = seeds.mask(address, roster=roster, size=stored.size)
    return Message(site=noise.site, address=address, roster_digest=roster.digest, words=masked(stored, mask))


def _numbers(query: RowSum, noise: Share) -> tuple[float, ...]:
    scale = noise.squared_scale(query.sensitivity("l2") * query.steps_per_unit)
    return (float(scale), float(noise.weight), float(noise.roster.honest))
