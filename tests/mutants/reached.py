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

type Reached = dict[str, dict[str, list[tuple[float, str]]]]
"""For each module and function, the durations and names of the tests that enter it, the fastest first."""


class Recorder:
    """Records the functions that each test enters. Each process of pytest-xdist writes a file of its own."""

    def __init__(self) -> None:
        self.entered: set[tuple[str, str]] = set()
        self.tests: list[dict[str, Any]] = []

    def start(self, code: CodeType, _offset: int) -> Any:
        """Note an entered function once for each test."""
        if code.co_filename.startswith(_PREFIXES):
            name = code.co_qualname.replace(".<locals>", "")
            self.entered.add((str(Path(code.co_filename).relative_to(ROOT)), name))
        return sys.monitoring.DISABLE

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Record one test, with the set-up of its fixtures."""
        self.entered = set()
        sys.monitoring.restart_events()
        began = time.monotonic()
        result = yield
        seconds = round(time.monotonic() - began, 3)
        self.tests.append({"test": item.nodeid, "seconds": seconds, "entered": sorted(self.entered)})
        return result

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write what this process recorded."""
        name = getattr(session.config, "workerinput", {}).get("workerid", "main")
        if self.tests:
            (FOLDER / f"reached-{name}.json").write_text(json.dumps(self.tests))


def pytest_configure(config: pytest.Config) -> None:
    """Record from now on."""
    recorder = Recorder()
    sys.monitoring.use_tool_id(_TOOL, "mutants")
    sys.monitoring.register_callback(_TOOL, sys.monitoring.events.PY_START, recorder.start)
    sys.monitoring.set_events(_TOOL, sys.monitoring.events.PY_START)
    config.pluginmanager.register(recorder)


def collect() -> Reached:
    """Merge the files of all processes into one map, and store it."""
    found: Reached = {}
    for file in sorted(FOLDER.glob("reached-*.json")):
        for each in json.loads(file.read_text()):
            for path, function in each["entered"]:
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
