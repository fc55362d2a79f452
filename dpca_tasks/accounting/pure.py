"""The calibration of pure mechanisms: multipliers of Laplace and Wishart noise."""

from fractions import Fraction

from dpca_tasks.accounting.calibration import check_guarantee
from dpca_tasks.accounting.rounding import float_up
from dpca_tasks.errors import InvalidInput

_LARGEST = 2**28  # beyond it a release costs less than one unit


def laplace_noise_multiplier(*, epsilon: float) -> float:
    """Return the Laplace scale over L1 sensitivity that is epsilon-DP: ``1 / epsilon``, rounded up."""
    check_guarantee(epsilon=epsilon)
    return _reciprocal_up(epsilon, 1)


def wishart_noise_multiplier(*, epsilon: float) -> float:
    """Return the scale c of symmetrised Wishart noise over sensitivity: ``1 / (2 epsilon)``, rounded up.

    The sensitivity is in the nuclear norm: 1 for a record more, less or emptied, 2 for a record replaced.
    """
    check_guarantee(epsilon=epsilon)
    return _reciprocal_up(epsilon, 2)


def _reciprocal_up(epsilon: float, factor: int) -> float:
    value = factor * Fraction(epsilon)
    if value * _LARGEST < 1:
        raise InvalidInput(f"epsilon={epsilon} must allow a noise multiplier of at most 2**28; ask for more epsilon")
    return float_up(1 / value)
