"""What a check of an installation found, and how to fix it."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "note", "fix"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check found: ``ok``; a ``note``, with which runs succeed; or something to ``fix``."""

    check: str
    verdict: Verdict
    found: str
    advice: str = ""
