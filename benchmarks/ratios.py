"""A measured number, most often how many times as long a peer takes as we do, judged against a bar where it has one.

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
    """One number and its bar: it must be reached, or, with ``at_most``, not be exceeded.

    The value is kept to two digits: what is printed is what is judged. Where it comes from two times, they are given
    in seconds.
    """

    name: str
    value: float
    bar: float | None = None
    at_most: bool = False
    seconds: float | None = None
    peer_seconds: float | None = None

    def __post_init__(self) -> None:
        """Round the value."""
        object.__setattr__(self, "value", round(float(self.value), 2))

    @property
    def holds(self) -> bool | None:
        """Whether the number keeps to its bar, where it has one."""
        if self.bar is None:
            return None
        return self.value <= self.bar if self.at_most else self.value >= self.bar

    def line(self) -> str:
        """Say ``NAME RATIO``, and where there is a bar ``NAME RATIO BAR holds`` or ``falls short``."""
        measured = f"{self.name} {self.value:.2f}"
        return measured if self.bar is None else f"{measured} {self.bar:g} {'holds' if self.holds else 'falls short'}"


def ran_on(load: float) -> dict[str, Any]:
    """Return what a run ran on, beside how many other processes at work, and with which versions."""
    return {
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "load": load},
        "versions": {"python": platform.python_version()} | {name: version(name) for name in NAMED_IN_REPORT},
    }


def write_report(ratios: Iterable[Ratio], path: Path, *, toy: bool, load: float) -> None:
    """Write the ratios as JSON, with what is needed to compare them with another machine's, and a busier one's."""
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
