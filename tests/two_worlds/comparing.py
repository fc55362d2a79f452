"""Comparison of the public outputs of a job in two worlds."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.two_worlds import outputs
from tests.two_worlds.world import Terms, run_world


@dataclass(kw_only=True)
class Worlds:
    """The worlds of one job, all at the same path and the same instant.

    Parameters
    ----------
    job : str
    folder : Path
    environment : dict of str to str
        Variables of every world, such as the address of a Prefect server.
    planted : str or None
        Name of a leak in `tests.two_worlds.planted`, planted in every world.
    """

    job: str
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    planted: str | None = None
    # the worlds' clock is later than their real end, so that files seem older
    now: float = field(default_factory=lambda: time.time() + 1800.0)
    outputs: int = 0
    _first: dict[str, bytes] = field(default_factory=dict, repr=False)

    def first(self) -> dict[str, bytes]:
        """Run the job on the base data, once; return its public outputs."""
        if not self._first:
            self._first = self._run(None, first=True)
        return self._first

    def compare(self, neighbour: str | None) -> list[str]:
        """Return the differences between the public outputs on the base data and on a neighbour."""
        first = self.first()
        other = self._run(neighbour, first=False)
        self.outputs += len(first)
        return outputs.differences(first, other)

    def _run(self, neighbour: str | None, *, first: bool) -> dict[str, bytes]:
        return run_world(
            Terms(
                job=self.job,
                neighbour=neighbour,
                first=first,
                folder=str(self.folder / "world"),
                answers=str(self.folder / "answers"),
                now=self.now,
                planted=self.planted,
                environment=self.environment,
            )
        )
