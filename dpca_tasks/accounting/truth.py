"""Comparison of the privacy that published noise formulas claim with the privacy that they actually give.

>>> row = truth_of(cases_of(("analyze_gauss",))[0])
>>> row.settings.epsilon, round(row.upper, 4), row.verdict
(0.1, 0.0369, 'holds, 2.71 times less')

The settings are taken from the papers' experiments or statements.
"""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from dpca_tasks.accounting.epsilon_bracket import WITHIN
from dpca_tasks.accounting.published import FORMULAS, Bound, Settings
from dpca_tasks.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One case of the comparison: a formula, its settings, a description of the settings (``words``), and the delta.

    The delta of the comparison is the claimed delta by default.
    """

    formula: str
    words: str
    settings: Settings
    delta: float | None = None


RECORDS = {"a9a": 32_561, "MNIST": 60_000, "CIFAR-10": 50_000, "real-sim": 72_309}
"""Numbers of records of the datasets of Shang et al., which are also the numbers of steps."""
_A9A = Settings(epsilon=0.1, delta=1e-3, n_features=123, n_records=32_561, steps=32_561)


def _dp_spca() -> Iterator[Case]:
    def case(words: str, settings: Settings) -> Case:
        return Case(formula="dp_spca", words=words, settings=settings)

    half = replace(_A9A, mix=0.5)
    yield case("a9a, mu = 1/2", half)
    yield case("a9a, mu = 1/2, G taken as 1 where it is 2", replace(half, gradient=2.0))
    yield Case(formula="dp_spca", words="a9a, mu = 1/2, judged at a smaller delta", settings=half, delta=1e-6)
    yield case("a9a, mu = 1/2", replace(half, epsilon=1.0))
    yield case("a9a, mu = 1/10", replace(half, epsilon=1.0, mix=0.1))
    for epsilon in (0.1, 1.0):
        yield case("a9a, the mu of least noise that is allowed", replace(_A9A, epsilon=epsilon))
    for name in ("MNIST", "CIFAR-10", "real-sim"):
        yield case(f"{name}, mu = 1/2", replace(half, n_records=RECORDS[name], steps=RECORDS[name]))


def _dp_vrpca() -> Iterator[Case]:
    for epsilon, epochs in ((0.1, 1), (1.0, 1), (0.1, 30)):
        settings = replace(_A9A, epsilon=epsilon, epochs=epochs)
        yield Case(formula="dp_vrpca", words=f"a9a, m = {epochs}, every iterate seen", settings=settings)


def _gaussians() -> Iterator[Case]:
    for formula, words in (("analyze_gauss", "any d"), ("local_gaussian", "any d, of one report")):
        for epsilon, delta in ((0.1, 1e-3), (0.1, 1e-6), (1.0, 1e-3), (1.0, 1e-5), (5.0, 0.01), (10.0, 0.01)):
            yield Case(formula=formula, words=words, settings=Settings(epsilon=epsilon, delta=delta))
    replaced = Settings(epsilon=0.1, delta=1e-3, relation="replace_one")
    yield Case(formula="analyze_gauss", words="any d, a record replaced", settings=replaced)
    for epsilon in (0.1, 1.0):
        settings = replace(_A9A, epsilon=epsilon, relation="replace_one")
        yield Case(formula="mod_sulq", words="a9a, d = 123", settings=settings)


def _noisy_power() -> Iterator[Case]:
    for words, epsilon, d, k in (("a9a", 0.1, 123, 10), ("a9a", 1.0, 123, 10), ("real-sim", 0.1, 20_958, 300)):
        settings = Settings(epsilon=epsilon, delta=1e-3, n_features=d, n_components=k, steps=5)
        yield Case(formula="noisy_power", words=f"{words}, k = {k}, 5 steps, flat directions", settings=settings)


def _dps_pca() -> Iterator[Case]:
    for epsilon, delta in ((0.5, 0.3), (2.0, 0.3), (2.0, 0.01), (1.0, 1e-5)):
        settings = Settings(epsilon=epsilon, delta=delta, relation="replace_one", n_components=5, steps=10)
        yield Case(formula="dps_pca_of_one_owner", words="k = 5, 10 steps", settings=settings)


def _agn() -> Iterator[Case]:
    for formula in ("agn_of_topics", "agn_of_mixtures"):
        for epsilon in (0.1, 1.0, 5.0):
            settings = Settings(epsilon=epsilon, delta=0.01, relation="replace_one")
            yield Case(formula=formula, words="any D and K, a record replaced", settings=settings)


def _pure() -> Iterator[Case]:
    for epsilon in (0.1, 1.0):
        settings = Settings(epsilon=epsilon, n_features=123)
        yield Case(formula="wishart", words="any d", settings=settings)
        yield Case(formula="laplace", words="a9a, d = 123", settings=settings)
        yield Case(formula="exponential", words="any d and k", settings=replace(settings, relation="replace_one"))
        yield Case(formula="smooth_cauchy", words="d = 123, k = 1", settings=settings)


def _smooth() -> Iterator[Case]:
    for formula in ("smooth_gaussian", "smooth_gaussian_of_rows"):
        for epsilon, delta, d, k in ((0.1, 1e-3, 123, 1), (0.1, 1e-3, 123, 10), (0.5, 1e-6, 123, 1)):
            settings = Settings(epsilon=epsilon, delta=delta, n_features=d, n_components=k)
            yield Case(formula=formula, words=f"d = {d}, k = {k}", settings=settings)


def _wishart_of_many_degrees() -> Iterator[Case]:
    for epsilon, delta in ((0.1, 1e-3), (1.0, 1e-3), (0.1, 1e-6)):
        settings = replace(_A9A, epsilon=epsilon, delta=delta)
        yield Case(formula="wishart_of_many_degrees", words="a9a, d = 123", settings=settings)


def _elsewhere() -> Iterator[Case]:
    for epsilon in (1.0, 2.0, 5.0, 10.0, 20.0):
        settings = Settings(epsilon=epsilon, delta=1e-5, relation="zero_out", n_components=50, steps=5)
        yield Case(formula="dpals", words="50 items a user, 5 rounds", settings=settings)
    for epsilon in (1.0, 20.0):
        settings = Settings(epsilon=epsilon, delta=1e-5, relation="zero_out", steps=8)
        yield Case(formula="dpfw", words="8 rounds", settings=settings)
    for formula, requested in (("cape_of_least_noise", (1.0, 1e-5)), ("cape", (1.0, 0.01)), ("cape", (10.0, 0.01))):
        for colluders in (0, 3):
            settings = Settings(epsilon=requested[0], delta=requested[1], sites=10, colluders=colluders)
            yield Case(formula=formula, words=f"10 sites, {colluders} collude", settings=settings)
    settings = Settings(epsilon=1.0, delta=0.1, relation="replace_one", n_features=1000, n_components=5, steps=10)
    yield Case(formula="dps_pca", words="d = 1000, k = 5, two providers", settings=settings)
    for formula in ("diffprivlib_eigenvector", "opendp_eigenvector"):
        for d in (4, 10, 20, 123):
            settings = Settings(epsilon=1.0, relation="replace_one", n_features=d)
            yield Case(formula=formula, words=f"d = {d}, the low-level measurement", settings=settings)


CASES = (
    *_gaussians(),
    *_dp_spca(),
    *_dp_vrpca(),
    *_noisy_power(),
    *_dps_pca(),
    *_agn(),
    *_pure(),
    *_wishart_of_many_degrees(),
    *_smooth(),
    *_elsewhere(),
)
"""The rows of the comparison table, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """The claimed and the actual guarantee of a published noise formula for one case.

    Attributes
    ----------
    formula, words : str
        The name of the formula in `FORMULAS`, and a description of the settings.
    settings : Settings
        The settings, including the claimed epsilon.
    delta : float
        The delta of the comparison.
    lower, upper : float
        The lower and the upper bound of the true epsilon at delta; infinity means that there is no epsilon.
    bound : {"between", "at most", "at least"}
        Which bounds hold for the published mechanism: both, only the upper, or only the lower bound. The other bound
        holds only for the privacy event of the formula.
    broken : str or None
        The condition of the paper's claim that the settings break; None if they break none.
    noise : float
        The noise that the paper prints.
    measures, source : str
        What the noise measures, with its unit, and the paper.
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
        """The relative distance of the upper from the lower bound of epsilon; 0 if both bounds are 0."""
        if self.upper == self.lower:
            return 0.0
        return self.upper / self.lower - 1 if self.lower else math.inf

    @property
    def agrees(self) -> bool:
        """True if the relative distance of both bounds is at most `WITHIN`."""
        return self.width <= WITHIN

    @property
    def verdict(self) -> str:
        """The verdict on the paper's privacy claim, in words, such as ``holds exactly``."""
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
    """Return the cases of the given formulas, or all cases if none is given.

    Raises
    ------
    InvalidInput
        If a formula is not in `FORMULAS`.
    """
    for name in formulas:
        if name not in FORMULAS:
            raise InvalidInput(f"the formula {name!r} is unknown; use one of {', '.join(FORMULAS)}.")
    return tuple(case for case in CASES if not formulas or case.formula in formulas)


def truth_of(case: Case) -> Truth:
    """Compute the claimed and the actual guarantee for one case of the comparison."""
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
