"""The truth about printed formulas: what noise really gives at its paper's own settings, beside what is claimed.

>>> row = truth_of(cases_of(("analyze_gauss",))[0])
>>> row.settings.epsilon, round(row.upper, 4), row.verdict
(0.1, 0.0369, 'holds, 2.71 times less')
"""

import math
from collections.abc import Collection
from dataclasses import dataclass

from dpca_tasks.accounting.epsilon_bracket import WITHIN
from dpca_tasks.accounting.formula import Bound, Settings
from dpca_tasks.accounting.published import FORMULAS
from dpca_tasks.accounting.published_settings import CASES, Case
from dpca_tasks.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """A formula at some settings: what is claimed and what is true.

    Attributes
    ----------
    formula, words : str
        The row of `FORMULAS`, and its settings in words.
    settings : Settings
        Among them the epsilon that is claimed.
    delta : float
        Where it is judged.
    lower, upper : float
        Between what the least true epsilon lies, at delta; infinity: there is none.
    bound : {"between", "at most", "at least"}
        Which ends are about what was published; the other end of a bound is about its event alone.
    broken : str or None
        The condition of the claim that the settings break.
    noise : float
        The printed noise.
    measures, source : str
        Its unit, and where it is printed.
    """

    formula: str
    words: str
    settings: Settings
    delta: float
    lower: float
    upper: float
    bound: Bound
    broken: str | None
    noise: float
    measures: str
    source: str

    @property
    def width(self) -> float:
        """How far the upper end is above the lower one, relative to it; 0 where delta alone covers the event."""
        if self.upper == self.lower:
            return 0.0
        return self.upper / self.lower - 1 if self.lower else math.inf

    @property
    def agrees(self) -> bool:
        """Whether both ends are as near as the table promises."""
        return self.width <= WITHIN

    @property
    def verdict(self) -> str:
        """What the truth makes of the claim, in words."""
        claimed = self.settings.epsilon
        if math.isinf(self.lower):
            return "no epsilon at this delta"
        if self.lower > claimed and self.bound != "at most":
            return f"{self.lower / claimed:.3g} times what is claimed"
        if self.bound == "at least":
            return "no more is known"
        if self.upper == 0:
            return "holds, by delta alone"
        if self.upper <= claimed:
            return "holds exactly" if self.lower == claimed else f"holds, {claimed / self.upper:.3g} times less"
        return "not shown"


def cases_of(formulas: Collection[str] = ()) -> tuple[Case, ...]:
    """Return the cases of some formulas, or all.

    Raises
    ------
    InvalidInput
        If a formula is not in the table.
    """
    for name in formulas:
        if name not in FORMULAS:
            raise InvalidInput(f"the formula {name!r} is not in the table; use one of {', '.join(FORMULAS)}.")
    return tuple(case for case in CASES if not formulas or case.formula in formulas)


def truth_of(case: Case) -> Truth:
    """Compute a row of the table."""
    row, settings = FORMULAS[case.formula], case.settings
    delta = settings.delta if case.delta is None else case.delta
    found = row.bracket(settings, delta=delta)
    return Truth(
        formula=case.formula,
        words=case.words,
        settings=settings,
        delta=delta,
        lower=found.lower,
        upper=found.upper,
        bound=row.bound,
        broken=row.broken(settings),
        noise=row.noise(settings),
        measures=row.measures,
        source=row.source,
    )
