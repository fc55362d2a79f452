"""The report of a benchmark run, and a run of every benchmark at toy size so that none rots."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.ratios import Ratio, write_report

ROOT = Path(__file__).parent.parent.parent
LINE = re.compile(r"^(\w+)/[\w-]+/[\w-]+ \d+\.\d\d( \d+(\.\d+)? (holds|falls short))?$", flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("peer", "bar", "line"),
    [
        (9.0, 9.0, "gram/syn/scipy 9.00 9 holds"),
        (8.9951, 9.0, "gram/syn/scipy 9.00 9 holds"),
        (8.9949, 9.0, "gram/syn/scipy 8.99 9 falls short"),
        (1.26, 1.3, "gram/syn/scipy 1.26 1.3 falls short"),
        (0.5, None, "gram/syn/scipy 0.50"),
    ],
)
def test_a_line_judges_the_number_that_it_prints(peer: float, bar: float | None, line: str) -> None:
    assert Ratio(name="gram/syn/scipy", ours=1.0, peer=peer, bar=bar).line() == line


def test_the_report_says_what_the_lines_say(tmp_path: Path) -> None:
    ratios = [
        Ratio(name="a/b/c", ours=2.0, peer=5.0, bar=3.0),
        Ratio(name="a/b/d", ours=2.0, peer=5.0, bar=None),
    ]
    write_report(ratios, tmp_path / "new" / "ratios.json", toy=True)
    report = json.loads((tmp_path / "new" / "ratios.json").read_text())
    assert report["toy"] is True
    assert report["ratios"] == [
        {"name": "a/b/c", "ratio": 2.5, "bar": 3.0, "holds": False, "seconds": 2.0, "peer_seconds": 5.0},
        {"name": "a/b/d", "ratio": 2.5, "bar": None, "holds": None, "seconds": 2.0, "peer_seconds": 5.0},
    ]


def declared_benchmarks() -> set[str]:
    return {
        name
        for path in (ROOT / "benchmarks").glob("bench_*.py")
        for name in re.findall(r"^def bench_(\w+)", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    }


def test_the_readme_lists_every_benchmark() -> None:
    table, _, _ = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8").partition("## Inputs")
    assert declared_benchmarks() == set(re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE))


def test_every_benchmark_runs_at_toy_size(tmp_path: Path) -> None:
    report = tmp_path / "ratios.json"
    command = [sys.executable, "-m", "pytest", "benchmarks", "--toy", "--ratios", str(report)]
    run = subprocess.run(
        [*command, "-q", "-p", "no:cacheprovider"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    lines = [match[0] for match in LINE.finditer(run.stdout)]
    written = json.loads(report.read_text())["ratios"]
    assert [line.split()[0] for line in lines] == [ratio["name"] for ratio in written]
    assert {line.split("/")[0] for line in lines} == declared_benchmarks() != set()
