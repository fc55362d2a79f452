"""A measured number with an optional bar (its bound), usually the ratio of a peer's time to the time of dpca.

>>> Ratio(name="gram/a9a-like/scipy", value=12.5, bar=9.0).line()
'gram/a9a-like/scipy 12.50 9 holds'
>>> Ratio(name="overhead/syn/non-private", value=1.2, bar=1.1, at_most=True).line()
'overhead/syn/non-private 1.20 1.1 falls short'
>>> Ratio(name="gram/a9a-like/scipy", value=0.5).line()
'gram/a9a-like/scipy 0.50'
"""

import json
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

NAMED_IN_REPORT = ("numpy", "scipy", "scikit-learn", "numba", "zarr", "distributed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A measured number with an optional bar, a lower bound or, with ``at_most``, an upper bound.

    The value is rounded to two decimals, and the rounded value is compared with the bar. If the value is a ratio of two
    times, ``seconds`` and ``peer_seconds`` are these times.
    """

    name: str
    value: float
    bar: float | None = None
    at_most: bool = False
    seconds: float | None = None
    peer_seconds: float | None = None

    def __post_init__(self) -> None:
        """Round the value to two decimals."""
        object.__setattr__(self, "value", round(float(self.value), 2))

    @property
    def holds(self) -> bool | None:
        """True if the value meets its bar, False if it does not, and None without a bar."""
        if self.bar is None:
            return None
        return self.value <= self.bar if self.at_most else self.value >= self.bar

    def line(self) -> str:
        """Return ``NAME RATIO``, followed, if there is a bar, by ``BAR holds`` or ``BAR falls short``."""
        measured = f"{self.name} {self.value:.2f}"
        return measured if self.bar is None else f"{measured} {self.bar:g} {'holds' if self.holds else 'falls short'}"


def ran_on(load: float) -> dict[str, Any]:
    """Return a description of this machine, its load, and the versions of Python and of the measured packages."""
    return {
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "load": load},
        "versions": {"python": platform.python_version()} | {name: version(name) for name in NAMED_IN_REPORT},
    }


def write_report(ratios: Iterable[Ratio], path: Path, *, toy: bool, load: float) -> None:
    """Write all ratios of a run to a JSON file, with the machine, its load and the package versions."""
    report = ran_on(load) | {
        "toy": toy,
        "ratios": [
            {
                "name": ratio.name,
                "ratio": ratio.value,
                "bar": ratio.bar,
                "direction": None if ratio.bar is None else "at most" if ratio.at_most else "at least",
                "holds": ratio.holds,
                "seconds": ratio.seconds,
                "peer_seconds": ratio.peer_seconds,
            }
            for ratio in ratios
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
