"""Which tests enter which function, measured once: a pytest plug-in, and the map that it writes.

A mutation is judged by the tests that enter its function, the fastest first. Functions that Numba compiles, and code
that runs at import, are entered by no test. Their mutations are judged by the tests that enter the module.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from tests.mutants.targets import PACKAGES, ROOT

FOLDER = ROOT / ".mutants"
MAP = FOLDER / "reached.json"
_TOOL = sys.monitoring.PROFILER_ID
_PREFIXES = tuple(str(ROOT / package) for package in PACKAGES)

type Timed = list[tuple[float, str]]
"""Durations and names of tests, the fastest first."""
type Reached = dict[str, dict[str, Timed]]
"""For each module and function, the tests that enter it. The module with an empty name lists all tests."""


class Recorder:
    """Records the functions that each test enters, one line of JSON for each test that passed."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.entered: set[tuple[str, str]] = set()
        self.passed = False

    def start(self, code: CodeType, _offset: int) -> Any:
        """Note an entered function once for each test."""
        if code.co_filename.startswith(_PREFIXES):
            name = code.co_qualname.replace(".<locals>", "")
            self.entered.add((str(Path(code.co_filename).relative_to(ROOT)), name))
        return sys.monitoring.DISABLE

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out the recorded tests, so that a run that was cut continues."""
        known = {each["test"] for each in _recorded()}
        items[:] = [item for item in items if item.nodeid not in known]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Record one test, with the set-up of its fixtures."""
        self.entered = set()
        sys.monitoring.restart_events()
        began = time.monotonic()
        self.passed = False
        result = yield
        seconds = round(time.monotonic() - began, 3)
        if self.passed:
            test = {"test": item.nodeid, "seconds": seconds, "entered": sorted(self.entered)}
            with self.file.open("a") as file:
                file.write(json.dumps(test) + "\n")
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note whether the test passed: a test that fails or is skipped judges no mutation."""
        if report.when == "call":
            self.passed = report.passed

    def pytest_sessionfinish(self) -> None:
        """Stop recording."""
        sys.monitoring.set_events(_TOOL, sys.monitoring.events.NO_EVENTS)


def pytest_configure(config: pytest.Config) -> None:
    """Record from now on. Each process of pytest-xdist writes a separate file."""
    name = getattr(config, "workerinput", {}).get("workerid", "main")
    recorder = Recorder(FOLDER / f"reached-{name}.jsonl")
    sys.monitoring.use_tool_id(_TOOL, "mutants")
    sys.monitoring.register_callback(_TOOL, sys.monitoring.events.PY_START, recorder.start)
    sys.monitoring.set_events(_TOOL, sys.monitoring.events.PY_START)
    config.pluginmanager.register(recorder)


def _recorded() -> Iterator[dict[str, Any]]:
    """Yield the recorded tests of all processes. The last line of a process that was cut has no end."""
    for file in sorted(FOLDER.glob("reached-*.jsonl")):
        for line in file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)


def collect() -> Reached:
    """Merge the files of all processes into one map, and store it."""
    found: Reached = {}
    for each in _recorded():
        for path, function in [("", ""), *each["entered"]]:
            module = path.removesuffix(".py").replace("/", ".")
            found.setdefault(module, {}).setdefault(function, []).append((each["seconds"], each["test"]))
    for functions in found.values():
        for tests in functions.values():
            tests.sort()
    MAP.write_text(json.dumps(found))
    return found


def read() -> Reached:
    """Return the stored map.

    Raises
    ------
    SystemExit
        If it was not measured yet.
    """
    if not MAP.exists():
        raise SystemExit("measure first which tests enter which function: make .mutants/reached.json")
    found: Reached = json.loads(MAP.read_text())
    return found


if __name__ == "__main__":
    collect()
