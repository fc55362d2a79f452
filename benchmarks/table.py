"""``python -m benchmarks.table``: write the results of the last full run into the README's table."""

import json
from pathlib import Path
from typing import Any

REPORT = Path(".benchmarks/ratios.json")
README = Path(__file__).with_name("README.md")


def table(report: dict[str, Any]) -> str:
    """Return a report as a Markdown table, under a line that says where it was measured."""
    versions = ", ".join(f"{name} {number}" for name, number in report["versions"].items())
    machine = report["machine"]
    lines = [
        f"{machine['cores']} cores, {machine['processor']}; {versions}.",
        "",
        "| measured | number | bar | | ours, s | peer's, s |",
        "|---|--:|--:|---|--:|--:|",
    ]
    for ratio in report["ratios"]:
        bar, verdict = "", ""
        if ratio["bar"] is not None:
            bar = f"{ratio['direction']} {ratio['bar']:g}"
            verdict = "holds" if ratio["holds"] else "falls short"
        times = " | ".join("" if ratio[key] is None else f"{ratio[key]:.3g}" for key in ("seconds", "peer_seconds"))
        lines.append(f"| `{ratio['name']}` | {ratio['ratio']:.2f} | {bar} | {verdict} | {times} |")
    return "\n".join(lines) + "\n"


def rewritten(text: str, results: str, *, name: str = "results") -> str:
    """Return a text with its results between the two marks of a name replaced."""
    first, last = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    before, begin, rest = text.partition(first)
    _, end, after = rest.partition(last)
    if not (begin and end):
        raise SystemExit(
            f"{README.name} has no place for results; put in the lines {first.strip()} and {last.strip()}."
        )
    return f"{before}{begin}{results}{end}{after}"


def main() -> None:
    """Rewrite the README; a toy run has no results."""
    if not REPORT.is_file():
        raise SystemExit(f"{REPORT} is missing; run `make bench` first.")
    report = json.loads(REPORT.read_text())
    if report["toy"]:
        raise SystemExit(f"{REPORT} is of a run at toy size, which measures nothing; run `make bench`.")
    README.write_text(rewritten(README.read_text(encoding="utf-8"), table(report)), encoding="utf-8")


if __name__ == "__main__":
    main()
