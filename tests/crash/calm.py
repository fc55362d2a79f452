"""Runs without faults: the crash points that they reach, and the artifacts that they publish."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from tests.crash.faults import Place, recorder
from tests.crash.processes import forked
from tests.crash.recount import Tally, query, recount
from tests.crash.world import MECHANISMS, World, attempt, open_budget, request_of


def trace(calm: World) -> list[list[Place]]:
    """Return the crash points that a run of each mechanism reaches, in order, in a home that already has a release."""
    world, runs = calm.copy("traced"), range(2 * len(MECHANISMS))  # the first run to publish creates the signing key
    open_budget(world, runs)

    def body() -> None:
        for run in runs:
            seen: list[Place] = []
            attempt(world, run, 0, hook=recorder(seen))
            (world.home / f"trace-{run}").write_text(json.dumps([asdict(place) for place in seen]))

    assert forked(body) == 0
    traces = [json.loads((world.home / f"trace-{run}").read_text()) for run in runs[len(MECHANISMS) :]]
    world.destroy()
    return [[Place(**place) for place in seen] for seen in traces]


@dataclass(frozen=True, slots=True, kw_only=True)
class Undisturbed:
    """Artifact digests of runs without faults, by release id, computed on demand."""

    calm: World
    name: str
    known: dict[str, str] = field(default_factory=dict)

    def digests(self, world: World, runs: Sequence[int]) -> dict[str, str]:
        """Return the artifact digests that the releases of a world would have without faults, by release id.

        The undisturbed runs use the same keys as the releases of the world.
        """
        rows = query(world, "SELECT request, id FROM release")
        drawn = {json.loads(request)["clip_norm"]: release for request, release in rows}
        for number in (0, 1):
            missing = [run for run in runs if drawn.get(request_of(run).clip_norm) not in self.known]
            if missing:
                self._make(missing, number)
        return self.known

    def _make(self, runs: Sequence[int], number: int) -> None:
        world = self.calm.copy(self.name)
        open_budget(world, runs)

        def body() -> None:
            for run in runs:
                attempt(world, run, number)

        assert forked(body) == 0
        made: dict[str, str] = dict(query(world, "SELECT id, artifact_digest FROM release"))
        peace = recount(world, [request_of(run) for run in runs], made)
        assert peace == Tally(digests_equal=len(runs)), peace
        self.known.update(made)
        world.destroy()
