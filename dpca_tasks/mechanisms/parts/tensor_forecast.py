r"""Forecast how many components the noise of a tensor release leaves room for, from public facts alone.

Of n records in k components of equal weight and length ``|mu|``, each component has the eigenvalue ``n |mu|^2 / k`` in
the second moment and the value ``n |mu|^3 / k`` in the core ``T(U, U, U)``. It can be found where

- its eigenvalue exceeds ``sqrt(2 D) std``, the spectral norm of the noise of the second moment. Then its direction
  among the released ones has the squared overlap ``o^2 = 1 - (sqrt(2 D) std / 2)^2 / eigenvalue^2``, at least 3/4;
- what these directions keep of it, ``n |mu|^3 o^3 / k``, exceeds ``1.657 sqrt(k) std``, the largest value that the
  noise of the core has along any direction. Whitening divides both by the same power of the eigenvalues, so it is the
  comparison of a component of the whitened tensor, ``(n / k)^(-1/2)``, with its noise.

>>> def core_std(n_components, overlap):
...     return 100.0
>>> found = room_for(50, n_records=1e5, n_features=50, length=lambda k: 1.0, moment_std=100.0, core_std=core_std)
>>> found.room, round(found.eigenvalue), round(found.edge)
(49, 2000, 1000)

References
----------
Benaych-Georges and Nadakuditi (2011), for the overlap; Crisanti and Sommers (1992), for the largest value of a
spherical model of three spins.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

LARGEST_CORE = 1.657
"""The largest value of isometric noise of order 3 along a direction, over ``sqrt(k) std``; std of its diagonal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A forecast for the components asked for, and the room that there is.

    Parameters
    ----------
    room : int
        The most components of equal weight that can all be found; 0 where one alone cannot.
    eigenvalue, edge : float
        Of a component asked for in the second moment, and what it has to exceed.
    value, core_edge : float
        The same in the core.
    """

    room: int
    eigenvalue: float
    edge: float
    value: float
    core_edge: float


def room_for(
    n_components: int,
    *,
    n_records: float,
    n_features: int,
    length: Callable[[int], float],
    moment_std: float,
    core_std: Callable[[int, float], float],
) -> Room:
    """Compare components with the noise of both releases.

    Parameters
    ----------
    n_components : int
        As many as are asked for.
    n_records, n_features : float and int
        Declared.
    length : callable
        Gives ``|mu|`` of one of k components.
    moment_std : float
        Of the noise on the diagonal of the second moment.
    core_std : callable
        Gives the std of the noise on the diagonal of the core, of the number of components and their overlap.
    """

    def compared(count: int) -> Room:
        each = n_records / count
        edge = math.sqrt(2.0 * n_features) * moment_std
        eigenvalue = each * length(count) ** 2
        overlap = overlap_of(eigenvalue, edge)
        return Room(
            room=count,
            eigenvalue=eigenvalue,
            edge=edge,
            value=each * (length(count) * overlap) ** 3,
            core_edge=LARGEST_CORE * math.sqrt(count) * core_std(count, overlap),
        )

    asked = compared(n_components)
    held = (found for found in map(compared, range(n_features - 1, 0, -1)) if _stands(found))
    room = max((found.room for found in held), default=0)
    return Room(**{name: getattr(asked, name) for name in ("eigenvalue", "edge", "value", "core_edge")}, room=room)


def overlap_of(eigenvalue: float, edge: float) -> float:
    """Return the cosine between a component and the released directions; 0 where the noise hides it."""
    return math.sqrt(max(0.0, 1.0 - (edge / 2.0 / eigenvalue) ** 2)) if eigenvalue > 0 else 0.0


def longest_row(n_components: int, *, n_features: int, length: float, overlap: float) -> float:
    """Return about how long the longest row of released directions is, where topics share words that are alike.

    A word has ``length`` in its topic's direction, and its row of the noise is one of a random frame.
    """
    noise = (math.sqrt(n_components) + math.sqrt(2.0 * math.log(n_features))) ** 2 / n_features
    return math.sqrt(min(1.0, (length * overlap) ** 2 + (1.0 - overlap**2) * noise))


def _stands(found: Room) -> bool:
    return found.eigenvalue > found.edge and found.value > found.core_edge
