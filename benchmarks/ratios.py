"""A measured number with an optional bar, usually the ratio of a peer's time to ours.

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
    """A number with an optional bar, which it must reach, or, with ``at_most``, must not exceed.

    The value is rounded to two decimals, so that the printed value is the judged one. If it is a ratio of two times,
    these are given in seconds.
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
        """True if the number satisfies its bar; None without a bar."""
        if self.bar is None:
            return None
        return self.value <= self.bar if self.at_most else self.value >= self.bar

    def line(self) -> str:
        """Return ``NAME RATIO``, or with a bar ``NAME RATIO BAR holds`` or ``falls short``."""
        measured = f"{self.name} {self.value:.2f}"
        return measured if self.bar is None else f"{measured} {self.bar:g} {'holds' if self.holds else 'falls short'}"


def ran_on(load: float) -> dict[str, Any]:
    """Return the machine of a run, its load of other processes, and the versions used."""
    return {
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "load": load},
        "versions": {"python": platform.python_version()} | {name: version(name) for name in NAMED_IN_REPORT},
    }


def write_report(ratios: Iterable[Ratio], path: Path, *, toy: bool, load: float) -> None:
    """Write the ratios as JSON, with the facts needed to compare them with other machines and loads."""
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
