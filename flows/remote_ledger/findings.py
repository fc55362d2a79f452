"""What `dpca doctor` finds of a ledger that another process holds: whether it answers, to whom, and when."""

import time
from collections.abc import Iterator
from importlib.metadata import version

from flows.parties.certificates import days_left
from flows.remote_ledger.workspaces import Apart, remote_ledger
from flows.reports.findings import Finding

CLOCK_SKEW = 5.0
"""Seconds that two clocks may differ."""
RENEW = 30
"""Days before the end of a certificate from which it is noted."""


def check_remote_ledger() -> Iterator[Finding]:
    """Ask the ledger of ``DPCA_LEDGER_URL`` who it is, and who asks it.

    Raises
    ------
    Unavailable
        When it does not answer.
    Refused
        When it and this process do not accept each other's certificates.
    """
    apart = remote_ledger()
    if apart is None:
        return
    before = time.time()
    said = apart.connection.ask("identify")
    skew = max(before - said["time"], said["time"] - time.time(), 0.0)
    yield Finding(check="ledger", verdict="ok", found=f"{apart.url} answers, ledger {said['ledger'][:8]}")
    yield _certificates(apart, f"{said['role']} of {', '.join(said['populations']) or 'no population'}")
    ours, theirs = version("dpca-pipeline"), said["version"]
    yield Finding(
        check="ledger's version",
        verdict="ok" if ours == theirs else "fix",
        found=f"dpca {theirs} there, {ours} here",
        advice="" if ours == theirs else "install one version on both sides: artifacts are compared field by field",
    )
    yield Finding(
        check="clock",
        verdict="ok" if skew <= CLOCK_SKEW else "fix",
        found=f"{skew:.0f} s apart from the ledger's",
        advice="" if skew <= CLOCK_SKEW else "start a time service: schedule slots and certificates go by the clock",
    )


def _certificates(apart: Apart, role: str) -> Finding:
    ours, theirs = days_left(apart.certificate), days_left(apart.pinned)
    soon = min(ours, theirs) < RENEW
    return Finding(
        check="certificate",
        verdict="note" if soon else "ok",
        found=f"{role}; ours ends in {ours:.0f} days, the ledger's in {theirs:.0f}",
        advice="make a new one with dpca ledger key, and exchange it before" if soon else "",
    )
