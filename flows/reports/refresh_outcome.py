"""What one run of the closed loop made of the files that arrived, as public facts."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal


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
