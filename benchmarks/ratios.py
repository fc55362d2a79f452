"""A ratio: how many times as long a peer takes as we do, judged against a bar where there is one.

>>> Ratio(name="gram/a9a-like/scipy", ours=0.1, peer=1.25, bar=9.0).line()
'gram/a9a-like/scipy 12.50 9 holds'
>>> Ratio(name="gram/a9a-like/scipy", ours=0.5, peer=0.25, bar=None).line()
'gram/a9a-like/scipy 0.50'
"""

import json
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

NAMED_IN_REPORT = ("numpy", "scipy", "scikit-learn", "numba", "zarr", "distributed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """One comparison: our shortest time and the peer's, in seconds, and the bar for their ratio."""

    name: str
    ours: float
    peer: float
    bar: float | None

    @property
    def value(self) -> float:
        """The peer's time over ours, to two digits: what is printed is what is judged."""
        return round(self.peer / self.ours, 2)

    @property
    def holds(self) -> bool | None:
        """Whether the ratio reaches its bar, where it has one."""
        return None if self.bar is None else self.value >= self.bar

    def line(self) -> str:
        """Say ``NAME RATIO``, and where there is a bar ``NAME RATIO BAR holds`` or ``falls short``."""
        measured = f"{self.name} {self.value:.2f}"
        return measured if self.bar is None else f"{measured} {self.bar:g} {'holds' if self.holds else 'falls short'}"


def write_report(ratios: Iterable[Ratio], path: Path, *, toy: bool) -> None:
    """Write the ratios as JSON, with what is needed to compare them with another machine's."""
    report = {
        "toy": toy,
        "machine": {"processor": platform.machine(), "cores": os.cpu_count()},
        "versions": {"python": platform.python_version()} | {name: version(name) for name in NAMED_IN_REPORT},
        "ratios": [
            {
                "name": ratio.name,
                "ratio": ratio.value,
                "bar": ratio.bar,
                "holds": ratio.holds,
                "seconds": ratio.ours,
                "peer_seconds": ratio.peer,
            }
            for ratio in ratios
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
