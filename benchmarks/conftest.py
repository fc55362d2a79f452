"""The frame of every benchmark: we and our peers are timed in turn, then the ratios are told."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.ratios import Ratio, write_report

ROUNDS = 3
RATIOS = pytest.StashKey[list[Ratio]]()

type Work = Callable[[], Any]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the size of the inputs and the place of the report."""
    group = parser.getgroup("ratios")
    group.addoption("--toy", action="store_true", help="Run every benchmark once, on a few rows.")
    group.addoption("--ratios", type=Path, metavar="FILE", help="Also write the ratios as JSON.")


def pytest_configure(config: pytest.Config) -> None:
    """Begin without ratios."""
    config.stash[RATIOS] = []


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print a line a ratio, and write the same as JSON when asked to."""
    ratios = config.stash[RATIOS]
    measured = "toy size, no measurement" if config.getoption("toy") else "a peer's time over ours"
    terminalreporter.section(f"ratios: {measured}")
    for ratio in ratios:
        terminalreporter.write_line(ratio.line())
    path = config.getoption("ratios")
    if path is not None:
        write_report(ratios, path, toy=config.getoption("toy"))


@pytest.fixture(scope="session")
def toy(pytestconfig: pytest.Config) -> bool:
    """Whether inputs are cut to a few rows."""
    return bool(pytestconfig.getoption("toy"))


class Comparison:
    """Times us and our peers in turn, so that a busy machine is as slow for one as for the other."""

    def __init__(self, benchmark: BenchmarkFixture, name: str, ratios: list[Ratio], *, toy: bool) -> None:
        self._benchmark, self._name, self._ratios, self._toy = benchmark, name, ratios, toy

    def __call__(
        self, ours: Work, peers: Mapping[str, Work], *, bars: Mapping[str, float] | None = None
    ) -> dict[str, Any]:
        """Run everything, keep the shortest times, and return the last results: ours under ``"ours"``.

        Parameters
        ----------
        ours : callable
            What we do.
        peers : mapping of str to callable
            What does the same, by name.
        bars : mapping of str to float, optional
            The ratio demanded against a peer; a toy run demands none.

        Returns
        -------
        dict
            The results, for the caller to check that all did the same work.
        """
        demanded = dict(bars or {})
        assert demanded.keys() <= peers.keys(), "a bar is set against a peer"
        times: dict[str, list[float]] = {peer: [] for peer in peers}
        results: dict[str, Any] = {}

        def run_peers() -> None:
            for peer, work in peers.items():
                start = time.perf_counter()
                results[peer] = work()
                times[peer].append(time.perf_counter() - start)

        rounds, warmup_rounds = (1, 0) if self._toy else (ROUNDS, 1)
        results["ours"] = self._benchmark.pedantic(ours, setup=run_peers, rounds=rounds, warmup_rounds=warmup_rounds)
        stats = self._benchmark.stats
        assert stats is not None, "ratios need timings: run without --benchmark-disable"
        for peer in peers:
            ratio = Ratio(
                name=f"{self._name}/{peer}",
                ours=stats["min"],
                peer=min(times[peer]),
                bar=None if self._toy else demanded.get(peer),
            )
            self._ratios.append(ratio)
        return results


@pytest.fixture
def compare(
    benchmark: BenchmarkFixture, request: pytest.FixtureRequest, pytestconfig: pytest.Config, *, toy: bool
) -> Comparison:
    """Compare under the name of the benchmark and of its input, such as ``gram/a9a-like``."""
    name = f"{request.node.originalname.removeprefix('bench_')}/{request.node.callspec.id}"
    return Comparison(benchmark, name, pytestconfig.stash[RATIOS], toy=toy)
