"""Violations found in a simulated history, by the name of the check that reports them."""

from dataclasses import dataclass
from typing import Literal

Check = Literal[
    "processes end",
    "errors are known",
    "errors are one line",
    "locks open",
    "requests finish",
    "equal requests",
    "order of charges",
    "budget holds",
    "noise is charged",
    "one answer a step",
    "charged once",
    "sums are secret",
    "keys are secret",
    "versions stay",
    "versions are recorded",
    "recorded before shown",
    "versions are counted",
    "pointers agree",
    "aliases are promoted",
    "releases finish",
    "artifacts stand",
    "locked for cause",
    "keys are kept",
    "nothing is left",
]


@dataclass(frozen=True, slots=True)
class Violation:
    """One violation: the check that found it, and a description."""

    check: Check
    reported: str

    def __str__(self) -> str:
        """Format the violation as one line."""
        return f"{self.check}: {self.reported}"
