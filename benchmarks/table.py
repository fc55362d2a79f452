"""``python -m benchmarks.table``: write the results of the last quiet and loaded runs into `benchmarks/README.md`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REPORTS = {run: Path(f".benchmarks/{run}.json") for run in ("quiet", "loaded")}
README = Path(__file__).with_name("README.md")


def table(reports: Mapping[str, dict[str, Any]]) -> str:
    """Return the reports of one or two runs as a Markdown table, below one line per run with its machine."""
    found = {run: {ratio["name"]: ratio for ratio in report["ratios"]} for run, report in reports.items()}
    rows = {name: ratio for ratios in reversed(found.values()) for name, ratio in ratios.items()}
    names = dict.fromkeys(name for ratios in found.values() for name in ratios)
    lines = [
        *(line for run, report in reports.items() for line in (heading(run, report), "")),
        f"| measured | {' | '.join(reports)} | bar | | ours, s | peer's, s |",
        f"|---|{'--:|' * len(reports)}--:|---|--:|--:|",
    ]
    for name in names:
        ratio, bar, verdict = rows[name], "", ""
        if ratio["bar"] is not None:
            bar = f"{ratio['direction']} {ratio['bar']:g}"
            verdict = "holds" if ratio["holds"] else "falls short"
        numbers = " | ".join(f"{ratios[name]['ratio']:.2f}" if name in ratios else "" for ratios in found.values())
        times = " | ".join("" if ratio[key] is None else f"{ratio[key]:.3g}" for key in ("seconds", "peer_seconds"))
        lines.append(f"| `{name}` | {numbers} | {bar} | {verdict} | {times} |")
    return "\n".join(lines) + "\n"


def heading(run: str, report: Mapping[str, Any]) -> str:
    """Return a line that describes a run: its machine, the load of the machine, and the package versions."""
    versions = ", ".join(f"{name} {number}" for name, number in report["versions"].items())
    machine = report["machine"]
    return (
        f"{run}: {machine['cores']} cores, {machine['processor']}, {machine['load']:.1f} processes at work when the "
        f"run began; {versions}."
    )


def rewritten(text: str, results: str, *, name: str = "results") -> str:
    """Return a text in which everything between ``<!-- name -->`` and ``<!-- end of name -->`` is replaced."""
    first, last = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    before, begin, rest = text.partition(first)
    _, end, after = rest.partition(last)
    if not (begin and end):
        raise SystemExit(
            f"{README.name} lacks the marks of the results; add the lines {first.strip()} and {last.strip()}."
        )
    return f"{before}{begin}{results}{end}{after}"


def main() -> None:
    """Rewrite `benchmarks/README.md` from the reports of the available runs, and refuse reports of toy runs."""
    reports = {run: json.loads(path.read_text()) for run, path in REPORTS.items() if path.is_file()}
    if not reports:
        raise SystemExit(f"{REPORTS['quiet']} is missing; run `make bench` first.")
    for run, report in reports.items():
        if report["toy"]:
            raise SystemExit(f"{REPORTS[run]} is from a run at toy size, which measures nothing; run `make bench`.")
    README.write_text(rewritten(README.read_text(encoding="utf-8"), table(reports)), encoding="utf-8")


if __name__ == "__main__":
    main()
