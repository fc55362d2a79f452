"""What a command that spends says: the question before it charges, its outcome in one line, that of a closed loop."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

_DIGITS = 4


def outcome_line(report: Mapping[str, Any]) -> str:
    """Say what became of a request: what was released, how good it is, and what is left of the budget.

    Parameters
    ----------
    report : Mapping
        Public facts, as `flows.releases.publish.release_facts` returns them.
    """
    made = "released before, nothing spent:" if report["reused"] else "released"
    private = "" if report["private"] else ", NOT PRIVATE"
    said = str(report.get("verdict") or ("FAILED" if report.get("failed") else "")).rstrip(".")
    parts = (f"{made} {report['artifact']}{private}{_promise(report)}", said, _left(report))
    return "; ".join(part for part in parts if part) + "."


def joint_line(report: Mapping[str, Any]) -> str:
    """Say what became of a joint release, and what is left of each budget that this ledger has.

    ``report`` are public facts, as `flows.releases.site_statements.joint_facts` returns them.
    """
    made = "released before, nothing spent:" if report["reused"] else "released"
    said = str(report.get("verdict") or "").rstrip(".")
    left = (_left(site) for site in report["sites"] if "remaining" in site)
    return "; ".join(part for part in (f"{made} {report['artifact']}{_promise(report)}", said, *left) if part) + "."


def stream_line(facts: Mapping[str, Any]) -> str:
    """Say how many ticks of a stream are paid for, and what is left of its budget.

    ``facts`` are public, as `flows.releases.stream_acts.open_stream` returns them.
    """
    paid = f"{facts['ticks']} ticks of {facts['stream']!r} are paid for{_promise(facts)}, {facts['left']} to come"
    return f"{paid}; {_left(facts)}."


def spending(cost: str, *, remaining: float, after: float) -> str:
    """Say what is left of a budget now and after a cost."""
    return f"{cost}, of which epsilon {rounded_down(remaining)} is left now and {rounded_down(after)} after"


def rounded_down(epsilon: float) -> str:
    """Write what is left in four digits, never more than there is."""
    if not 0.0 < epsilon < math.inf:
        return "0" if epsilon <= 0.0 else "inf"
    unit = 10.0 ** (math.floor(math.log10(epsilon)) + 1 - _DIGITS)
    return f"{math.floor(epsilon / unit * (1.0 + 1e-12)) * unit:.{_DIGITS}g}"


def _promise(report: Mapping[str, Any]) -> str:
    """Return the guarantee of a release in one sentence, where it has one."""
    stated = report.get("statement")
    return f" with {stated}" if stated and report.get("private", True) else ""


def _left(facts: Mapping[str, Any]) -> str:
    return f"epsilon {rounded_down(facts['remaining'])} of budget {facts['population']!r} is left"


@dataclass(slots=True, kw_only=True)
class RefreshOutcome:
    """What became of the arrivals of a run so far.

    ``left`` are those that wait on.
    """

    published: str
    decisions: list[dict[str, Any]] = field(default_factory=list)
    set_aside: int = 0
    kept_back: int = 0
    refused: int = 0
    left: int = 0

    def end(self, how: Literal["set_aside", "kept_back", "refused"], count: int = 1) -> None:
        """Count arrivals that ended so."""
        setattr(self, how, getattr(self, how) + count)
        self.left -= count

    def report(self) -> dict[str, Any]:
        """Return it as public facts: the outcome in one line, then all of it."""
        made = Counter(decision["decision"] for decision in self.decisions)
        counts = {"promoted": made["promoted"], "held": made["held"]}
        counts |= {name: getattr(self, name) for name in ("kept_back", "refused", "set_aside", "left")}
        said = [f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count]
        return {
            "outcome": ", ".join(said) or "nothing arrived",
            **counts,
            "published": self.published,
            "decisions": self.decisions,
        }
