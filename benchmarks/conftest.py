"""The frame of every benchmark: we and our peers are timed in turn, then the ratios are told."""

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
    """Add the size of the inputs and the place of the report."""
    group = parser.getgroup("ratios")
    group.addoption("--toy", action="store_true", help="Run every benchmark once, on a few rows of one input.")
    group.addoption("--ratios", type=Path, metavar="FILE", help="Also write the ratios as JSON.")


def pytest_configure(config: pytest.Config) -> None:
    """Begin without ratios, and see how busy the machine is."""
    config.stash[RATIOS] = []
    config.stash[LOAD] = os.getloadavg()[0]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the benchmarks of the main job on the first of its inputs only, when toys are asked for."""
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
    """Print a line a ratio, and write the same as JSON when asked to."""
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
    """Whether inputs are cut to a few rows."""
    return bool(pytestconfig.getoption("toy"))


@pytest.fixture(scope="module", params=spine_inputs(), ids=lambda declared: declared.name)
def spine_input(request: pytest.FixtureRequest) -> Input:
    """Take each input of the main job in turn."""
    declared: Input = request.param
    return declared


class Comparison:
    """Times us and our peers in turn, so that a busy machine is as slow for one as for the other."""

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
        """Run everything, compare median times, and return the last results: ours under ``"ours"``.

        Parameters
        ----------
        ours : callable
            What we do.
        peers : mapping of str to callable
            What does the same, by name.
        bars : mapping of str to float, optional
            What a peer's time over ours must reach. A toy run demands nothing.
        limits : mapping of str to float, optional
            What our time over a peer's may be at most; for such a peer, that is the ratio told.
        rounds : int, optional
            How often each is timed, after one round to warm up.

        Returns
        -------
        dict
            The results, for the caller to check that all did the same work.
        """
        demanded, allowed = dict(bars or {}), dict(limits or {})
        assert demanded.keys() | allowed.keys() <= peers.keys(), "a bar is set against a peer"
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
    """Compare under the name of the benchmark and of its input, such as ``gram/a9a-like``."""
    return Comparison(benchmark, _name(request), request.config.stash[RATIOS], toy=toy)


class Measurement:
    """Takes down a number that is no comparison of two times, such as bytes a second or a ratio of memories."""

    def __init__(self, name: str, ratios: list[Ratio], *, toy: bool) -> None:
        self._name, self._ratios, self._toy = name, ratios, toy

    def __call__(self, name: str, value: float, *, at_least: float | None = None, at_most: float | None = None) -> None:
        """Tell a number, and one bar for it or none; a toy run demands nothing."""
        assert at_least is None or at_most is None, "a number has one bar"
        ratio = Ratio(
            name=f"{self._name}/{name}",
            value=value,
            bar=None if self._toy else at_least if at_most is None else at_most,
            at_most=at_most is not None,
        )
        self._ratios.append(ratio)


@pytest.fixture
def measure(request: pytest.FixtureRequest, *, toy: bool) -> Measurement:
    """Take numbers down under the name of the benchmark and of its input."""
    return Measurement(_name(request), request.config.stash[RATIOS], toy=toy)


def _name(request: pytest.FixtureRequest) -> str:
    benchmark = str(request.node.originalname).removeprefix("bench_")
    callspec = getattr(request.node, "callspec", None)
    return benchmark if callspec is None else f"{benchmark}/{callspec.id}"
