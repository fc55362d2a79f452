"""The grid of a statistic, that is the number of steps in one unit of its output, chosen from public facts."""

import math

from dpca_tasks.errors import InvalidInput

MAX_NOISE_STEPS = 2.0**28
MIN_NOISE_STEPS = 2.0**4
MAX_STEPS_PER_UNIT = 2**28


def grid_bits(*, noise_std: float, degree: int) -> int:
    """Choose the finest safe grid from public facts.

    Parameters
    ----------
    noise_std : float
        The largest standard deviation of a coordinate, in units where a clipped record has norm 1.
    degree : int
        The number of record entries that a contribution multiplies: 1 for values, 2 for second moments, 3 for third
        moments.

    Returns
    -------
    int
        The largest b with ``noise_std * 2^(degree b) <= 2^28`` steps and ``2^(degree b) <= 2^28``.

    Raises
    ------
    InvalidInput
        When the noise is too large for any grid.
    """
    if not noise_std > 0 or math.isinf(noise_std):
        raise InvalidInput(f"noise_std={noise_std!r} must be positive and finite; choose a larger epsilon.")
    limit = min(MAX_NOISE_STEPS / noise_std, MAX_STEPS_PER_UNIT)
    bits = math.floor(math.log2(limit) / degree) if limit >= 1 else 0
    while bits and 2.0 ** (degree * bits) > limit:  # log2 may round up
        bits -= 1
    if bits < 1:
        raise InvalidInput(f"noise_std={noise_std!r} is beyond any grid of integers; choose a larger epsilon or delta.")
    return bits
