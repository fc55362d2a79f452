"""Two-worlds test: worlds that differ in one record have equal public outputs, byte for byte.

The harness makes noised answers equal. `make test` runs a few jobs, `make audit` all of them; every planted leak is
found.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_SERVER_ANALYTICS_ENABLED, temporary_settings
from prefect.testing.utilities import prefect_test_harness

from tests.two_worlds import outputs
from tests.two_worlds.jobs import JOBS
from tests.two_worlds.planted import LEAKS
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


QUICK = "subspace, quick"

Found = Callable[[str, bool], Worlds]


@pytest.fixture(scope="session")
def prefect_address() -> Iterator[str]:
    """Run one Prefect server for all worlds; each world compares its own runs."""
    with temporary_settings({PREFECT_SERVER_ANALYTICS_ENABLED: False}), prefect_test_harness(180):
        yield str(PREFECT_API_URL.value())


@pytest.fixture
def worlds(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], Worlds]:
    def of(job: str) -> Worlds:
        environment = {}
        if JOBS[job].prefect:
            environment["PREFECT_API_URL"] = request.getfixturevalue("prefect_address")
        return Worlds(job=job, folder=tmp_path, environment=environment)

    return of


@pytest.mark.parametrize("job", [name for name, job in JOBS.items() if job.quick])
def test_public_outputs_are_equal_for_a_few_neighbors(worlds: Callable[[str], Worlds], job: str) -> None:
    both = worlds(job)
    found = {neighbour: both.compare(neighbour) for neighbour in JOBS[job].quick}
    assert {neighbour: shown for neighbour, shown in found.items() if shown} == {}


@pytest.mark.audit_only
@pytest.mark.parametrize("job", JOBS)
def test_public_outputs_are_equal_for_all_neighbors(
    worlds: Callable[[str], Worlds], job: str, record_property: Callable[[str, object], None]
) -> None:
    both = worlds(job)
    found = {neighbour: both.compare(neighbour) for neighbour in JOBS[job].neighbours}
    print(f"two worlds: {job}: {len(found)} neighbours, {both.outputs} outputs compared")
    record_property("outputs", both.outputs)
    assert both.outputs > 0
    assert {neighbour: shown for neighbour, shown in found.items() if shown} == {}


@pytest.mark.audit_only
@pytest.mark.parametrize("job", JOBS)
def test_public_outputs_are_equal_for_equal_data(worlds: Callable[[str], Worlds], job: str) -> None:
    assert worlds(job).compare(None) == []


@pytest.mark.audit_only
@pytest.mark.parametrize("leak", LEAKS)
def test_a_planted_leak_is_found_with_a_neighbor_and_not_with_equal_data(tmp_path: Path, leak: str) -> None:
    both = Worlds(job=QUICK, folder=tmp_path, planted=leak)
    assert both.compare(None) == []
    found = both.compare("added")
    assert found
    assert any(LEAKS[leak].shown_in in each for each in found), found
