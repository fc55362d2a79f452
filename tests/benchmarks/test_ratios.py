"""The report of a benchmark run, and in `make audit` a run of every benchmark at toy size so that none rots."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from benchmarks.ratios import Ratio, write_report
from benchmarks.table import README, rewritten, table

ROOT = Path(__file__).parent.parent.parent
ALONE = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
"""The environment of a run of pytest that is nobody's worker: workers time nothing."""
CLUSTER = re.compile(r"\b(open_cluster|LocalCluster)\(")
FILES = sorted((ROOT / "benchmarks").glob("bench_*.py"))
ON_A_CLUSTER = [path for path in FILES if CLUSTER.search(path.read_text(encoding="utf-8"))]
LINE = re.compile(r"^(\w+)(/[\w.-]+){1,2} -?\d+\.\d\d( \d+(\.\d+)? (holds|falls short))?$", flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("value", "bar", "at_most", "line"),
    [
        (9.0, 9.0, False, "gram/syn/scipy 9.00 9 holds"),
        (8.9951, 9.0, False, "gram/syn/scipy 9.00 9 holds"),
        (8.9949, 9.0, False, "gram/syn/scipy 8.99 9 falls short"),
        (1.26, 1.3, False, "gram/syn/scipy 1.26 1.3 falls short"),
        (1.1049, 1.1, True, "gram/syn/scipy 1.10 1.1 holds"),
        (1.1051, 1.1, True, "gram/syn/scipy 1.11 1.1 falls short"),
        (0.5, None, False, "gram/syn/scipy 0.50"),
    ],
)
def test_a_line_judges_the_number_that_it_prints(value: float, bar: float | None, *, at_most: bool, line: str) -> None:
    assert Ratio(name="gram/syn/scipy", value=value, bar=bar, at_most=at_most).line() == line


def test_the_report_says_what_the_lines_say(tmp_path: Path) -> None:
    ratios = [
        Ratio(name="a/b/c", value=2.5, bar=3.0, seconds=2.0, peer_seconds=5.0),
        Ratio(name="a/d", value=2.5),
    ]
    write_report(ratios, tmp_path / "new" / "ratios.json", toy=True, load=0.25)
    report = json.loads((tmp_path / "new" / "ratios.json").read_text())
    assert report["toy"] is True
    assert report["machine"]["load"] == 0.25
    timed = {"direction": "at least", "holds": False, "seconds": 2.0, "peer_seconds": 5.0}
    plain = {"direction": None, "holds": None, "seconds": None, "peer_seconds": None}
    assert report["ratios"] == [
        {"name": "a/b/c", "ratio": 2.5, "bar": 3.0} | timed,
        {"name": "a/d", "ratio": 2.5, "bar": None} | plain,
    ]


def test_the_table_says_what_the_reports_say_and_takes_the_place_of_the_last(tmp_path: Path) -> None:
    ratios = [
        Ratio(name="a/b/c", value=2.5, bar=3.0, seconds=2.0, peer_seconds=5.0),
        Ratio(name="a/d", value=2.5, bar=3.0, at_most=True),
        Ratio(name="a/e", value=2.5),
    ]
    loaded = [Ratio(name="a/b/c", value=3.5, bar=3.0, seconds=4.0, peer_seconds=14.0), Ratio(name="a/f", value=1.0)]
    write_report(ratios, tmp_path / "quiet.json", toy=False, load=0.0)
    write_report(loaded, tmp_path / "loaded.json", toy=False, load=7.0)
    reports = {run: json.loads((tmp_path / f"{run}.json").read_text()) for run in ("quiet", "loaded")}
    results = table(reports)
    assert results.splitlines()[-4:] == [
        "| `a/b/c` | 2.50 | 3.50 | at least 3 | falls short | 2 | 5 |",
        "| `a/d` | 2.50 |  | at most 3 | holds |  |  |",
        "| `a/e` | 2.50 |  |  |  |  |  |",
        "| `a/f` |  | 1.00 |  |  |  |  |",
    ]
    assert "7.0 processes at work when the run began" in results
    assert table({"quiet": reports["quiet"]}).splitlines()[-1] == "| `a/e` | 2.50 |  |  |  |  |"
    text = README.read_text(encoding="utf-8")
    assert rewritten(rewritten(text, "old\n"), results) == rewritten(text, results)
    assert results in rewritten(text, results)


def test_a_fast_and_a_slow_peer_are_judged_in_their_direction(tmp_path: Path) -> None:
    bench = """
import time

def bench_sleep(compare, measure):
    peers = {"slow": lambda: time.sleep(0.04), "fast": lambda: time.sleep(0.002)}
    compare(lambda: time.sleep(0.02), peers, bars={"slow": 1.2}, limits={"fast": 3}, rounds=3)
    measure("bytes", 3.0, at_least=2)
    measure("memory", 3.0, at_most=2)
"""
    (tmp_path / "bench_sleep.py").write_text(bench)
    (tmp_path / "conftest.py").write_text((ROOT / "benchmarks/conftest.py").read_text(encoding="utf-8"))
    options = ["-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path)]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", str(tmp_path), *options],
        cwd=ROOT,
        env=ALONE,
        capture_output=True,
        text=True,
        check=False,
    )
    verdicts = dict(re.findall(r"^(sleep/\w+) .* (holds|falls short)$", run.stdout, flags=re.MULTILINE))
    assert verdicts == {
        "sleep/slow": "holds",
        "sleep/fast": "falls short",
        "sleep/bytes": "holds",
        "sleep/memory": "falls short",
    }, run.stdout + run.stderr


def declared_benchmarks(paths: Iterable[Path]) -> set[str]:
    return {
        name
        for path in paths
        for name in re.findall(r"^def bench_(\w+)", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    }


def test_the_readme_lists_every_benchmark() -> None:
    table, _, _ = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8").partition("## Results")
    assert declared_benchmarks(FILES) == set(re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE))


def run_at_toy_size(paths: Sequence[Path], folder: Path) -> None:
    """Run the benchmarks of some files, each of which has to print and to report its ratios."""
    report = folder / "ratios.json"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *paths, "--toy", "--ratios", report, "-q", "-p", "no:cacheprovider"],
        cwd=ROOT,
        env=ALONE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    lines = [match[0] for match in LINE.finditer(run.stdout)]
    written = json.loads(report.read_text())["ratios"]
    assert [line.split()[0] for line in lines] == [ratio["name"] for ratio in written]
    assert {line.split("/")[0] for line in lines} == declared_benchmarks(paths) != set()


@pytest.mark.audit_only
def test_every_benchmark_of_one_process_runs_at_toy_size(tmp_path: Path) -> None:
    run_at_toy_size([path for path in FILES if path not in ON_A_CLUSTER], tmp_path)


@pytest.mark.audit_only
def test_every_benchmark_on_a_cluster_runs_at_toy_size(tmp_path: Path) -> None:
    run_at_toy_size(ON_A_CLUSTER, tmp_path)
