"""Fixtures and command-line options of all benchmarks, which time dpca and its peers in turn and report ratios."""

import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.inputs import GENERATED, Input, spine_inputs
from benchmarks.ratios import Ratio, write_report

ROUNDS = 5
RATIOS = pytest.StashKey[list[Ratio]]()
LOAD = pytest.StashKey[float]()

type Work = Callable[[], Any]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options ``--toy`` for tiny inputs and ``--ratios`` for the file of the report."""
    group = parser.getgroup("ratios")
    group.addoption("--toy", action="store_true", help="Run every benchmark once, on a few rows of one input.")
    group.addoption("--ratios", type=Path, metavar="FILE", help="Also write the ratios as JSON.")


def pytest_configure(config: pytest.Config) -> None:
    """Prepare an empty list of ratios, and record the load of the machine at the start of the run."""
    config.stash[RATIOS] = []
    config.stash[LOAD] = os.getloadavg()[0]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a toy run, drop benchmarks over `spine_inputs` for all inputs but the first."""
    if config.getoption("toy"):
        left_out = [item for item in items if _spine_input_of(item) not in (None, GENERATED[0])]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _spine_input_of(item: pytest.Item) -> Input | None:
    callspec = getattr(item, "callspec", None)
    found: Input | None = None if callspec is None else callspec.params.get("spine_input")
    return found


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print one line per ratio, and write the ratios as JSON if requested."""
    ratios = config.stash[RATIOS]
    measured = "toy size, no measurement" if config.getoption("toy") else "a peer's time over ours"
    terminalreporter.section(f"ratios: {measured}")
    for ratio in ratios:
        terminalreporter.write_line(ratio.line())
    path = config.getoption("ratios")
    if path is not None:
        write_report(ratios, path, toy=config.getoption("toy"), load=config.stash[LOAD])


@pytest.fixture(scope="session")
def toy(pytestconfig: pytest.Config) -> bool:
    """Return whether this is a toy run, in which every input has only a few rows."""
    return bool(pytestconfig.getoption("toy"))


@pytest.fixture(scope="module", params=spine_inputs(), ids=lambda declared: declared.name)
def spine_input(request: pytest.FixtureRequest) -> Input:
    """Return each of `spine_inputs` in turn."""
    declared: Input = request.param
    return declared


class Comparison:
    """A comparison that times dpca and its peers in turn, so that load on the machine affects all of them alike."""

    def __init__(self, benchmark: BenchmarkFixture, name: str, ratios: list[Ratio], *, toy: bool) -> None:
        self._benchmark, self._name, self._ratios, self._toy = benchmark, name, ratios, toy

    def __call__(
        self,
        ours: Work,
        peers: Mapping[str, Work],
        *,
        bars: Mapping[str, float] | None = None,
        limits: Mapping[str, float] | None = None,
        rounds: int = ROUNDS,
    ) -> dict[str, Any]:
        """Run dpca and all peers, record the ratio of median times for each peer, and return the last results.

        Parameters
        ----------
        ours : callable
            The work of dpca.
        peers : mapping of str to callable
            The same work done by each peer, by the name of the peer.
        bars : mapping of str to float, optional
            The smallest allowed ratio of a peer's time to the time of dpca, by peer. A toy run ignores it.
        limits : mapping of str to float, optional
            The largest allowed ratio of the time of dpca to a peer's time, by peer. For these peers, this inverse ratio
            is reported. A toy run ignores it.
        rounds : int, optional
            The number of timed rounds, after one warm-up round.

        Returns
        -------
        dict
            The result of each peer by its name, and the result of dpca under ``"ours"``. The caller can check that all
            did the same work.
        """
        demanded, allowed = dict(bars or {}), dict(limits or {})
        assert demanded.keys() | allowed.keys() <= peers.keys(), "a bar or limit names a peer that is not timed"
        times: dict[str, list[float]] = {peer: [] for peer in peers}
        results: dict[str, Any] = {}

        def run_peers() -> None:
            for peer, work in peers.items():
                start = time.perf_counter()
                results[peer] = work()
                times[peer].append(time.perf_counter() - start)

        turns, warmup = (1, 0) if self._toy else (rounds, 1)
        results["ours"] = self._benchmark.pedantic(ours, setup=run_peers, rounds=turns, warmup_rounds=warmup)
        stats = self._benchmark.stats
        assert stats is not None, "ratios need timings: run without --benchmark-disable"
        for peer in peers:
            taken, theirs = stats["median"], statistics.median(times[peer][warmup:])
            at_most = peer in allowed
            ratio = Ratio(
                name=f"{self._name}/{peer}",
                value=taken / theirs if at_most else theirs / taken,
                bar=None if self._toy else (allowed | demanded).get(peer),
                at_most=at_most,
                seconds=taken,
                peer_seconds=theirs,
            )
            self._ratios.append(ratio)
        return results


@pytest.fixture
def compare(benchmark: BenchmarkFixture, request: pytest.FixtureRequest, *, toy: bool) -> Comparison:
    """Return a comparison that is named after the benchmark and its input, such as ``gram/a9a-like``."""
    return Comparison(benchmark, _name(request), request.config.stash[RATIOS], toy=toy)


class Measurement:
    """A recorder of numbers that are not ratios of two times, such as bytes per second or ratios of memories."""

    def __init__(self, name: str, ratios: list[Ratio], *, toy: bool) -> None:
        self._name, self._ratios, self._toy = name, ratios, toy

    def __call__(self, name: str, value: float, *, at_least: float | None = None, at_most: float | None = None) -> None:
        """Record a number with its name and at most one bar, its lower or upper bound; a toy run ignores bars."""
        assert at_least is None or at_most is None, "a number has at most one bar: give at_least or at_most"
        ratio = Ratio(
            name=f"{self._name}/{name}",
            value=value,
            bar=None if self._toy else at_least if at_most is None else at_most,
            at_most=at_most is not None,
        )
        self._ratios.append(ratio)


@pytest.fixture
def measure(request: pytest.FixtureRequest, *, toy: bool) -> Measurement:
    """Return a measurement that is named after the benchmark and its input."""
    return Measurement(_name(request), request.config.stash[RATIOS], toy=toy)


def _name(request: pytest.FixtureRequest) -> str:
    benchmark = str(request.node.originalname).removeprefix("bench_")
    callspec = getattr(request.node, "callspec", None)
    return benchmark if callspec is None else f"{benchmark}/{callspec.id}"
