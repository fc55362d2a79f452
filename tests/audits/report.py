"""Fixture that audits a mechanism, and the table of audit results that ``make audit`` prints."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from dpca_tasks.audit.trials import Finding, audit_mechanism

COLUMNS = ("mechanism", "relation", "epsilon", "delta", "bound", "trials")
Attack = Callable[..., Finding]


@pytest.fixture
def attack(record_property: Callable[[str, object], None]) -> Attack:
    """Return a function that audits a mechanism and records the finding for the table at the end of the run."""

    def audit(mechanism: Any, **settings: Any) -> Finding:
        finding = audit_mechanism(mechanism, **settings)
        record_property("finding", dataclasses.asdict(finding))
        return finding

    return audit


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print one row for each finding if audits were selected."""
    if "audit" not in config.option.markexpr.split():
        return
    rows = [("test", *COLUMNS, "outcome")]
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, found in report.user_properties:
                if name == "finding" and report.when == "call":
                    values = [
                        f"{found[column]:.3g}" if isinstance(found[column], float) else str(found[column])
                        for column in COLUMNS
                    ]
                    rows.append((report.nodeid.rpartition("::")[2].removeprefix("test_"), *values, outcome))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    terminalreporter.section("audits")
    for row in rows:
        terminalreporter.line("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
