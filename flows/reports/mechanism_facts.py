"""Facts of mechanisms, as ``dpca mechanism`` prints them.

The advice on a request is one sentence and one row for each mechanism. The explanation of a mechanism is taken from its
docstrings. The table of the true epsilon of published formulas has JSON facts (`truth_facts`) and printed cells
(`truth_cells`).

>>> from dpca_tasks.accounting.truth import cases_of, truth_of
>>> truth_cells(truth_of(cases_of(("wishart",))[0]))["true epsilon"]
'none'
"""

import inspect
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpca_tasks.accounting.truth import Truth
from dpca_tasks.advisor import Advice, cost_of, split_budget
from dpca_tasks.errors import DpcaError, InvalidInput
from dpca_tasks.mechanisms import completion, tensors
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem, Terms
from dpca_tasks.mechanisms.completion.ratings import RatingsProblem
from dpca_tasks.mechanisms.subspace import MECHANISMS
from dpca_tasks.mechanisms.tensors.tensor_releases import TensorProblem

COLUMNS = ("mechanism", "expected", "beyond_first", "random", "above_noise", "noise", "passes", "memory_mb", "time")

_USUAL = Problem(n_features=1_000, clip_norm=1.0, records_at_most=100_000, relation="zero_out")
_TARGET = PrivacyTarget(epsilon=1.0, delta=1e-6)
_COMPONENTS = 10
_FEW: dict[str, Any] = {"records_at_most": 1_000, "relation": "zero_out", "n_features": 20}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    """The mechanisms of a release family, with settings that build each of them and a problem that each can plan."""

    mechanisms: Mapping[str, type[Any]]
    settings: Mapping[str, Any]
    problem: Terms


_LISTED = {
    "subspace": _Listed(mechanisms=MECHANISMS, settings={"n_components": 2}, problem=Problem(clip_norm=1.0, **_FEW)),
    "completion": _Listed(
        mechanisms=completion.MECHANISMS,
        settings={"rank": 2},
        problem=RatingsProblem(low=1.0, high=5.0, ratings_per_user=10, **_FEW),
    ),
    "tensor": _Listed(
        mechanisms=tensors.MECHANISMS,
        settings={"components": 2},
        problem=TensorProblem(model="topics", words_at_most=10, **_FEW),
    ),
}
"""The mechanisms of each family, by the noun of the command whose ``fit`` runs them."""


def advice_facts(
    problem: Problem, target: PrivacyTarget, *, n_components: int, releases: int, ranked: Sequence[Advice]
) -> dict[str, Any]:
    """Return the advice on a request, with the ranking, the refusals, and the epsilon of each release."""
    gaussian, others = split_budget(target, releases=releases)
    refused = [name for name in MECHANISMS if name not in {advice.plan.mechanism for advice in ranked}]
    return {
        "advice": _sentence(ranked, n_components=n_components),
        "expect_noise": all(advice.expects_noise for advice in ranked),
        "spectrum": problem.spectrum or None,
        "releases": releases,
        "epsilon_each_gaussian": gaussian,
        "epsilon_each_other": others,
        "ranked": [advice_row(advice) for advice in ranked],
        "refused": {name: _refusal(name, problem, target, n_components) for name in refused},
    }


def advice_row(advice: Advice) -> dict[str, Any]:
    """Return the numbers of one ranked mechanism."""
    expected, cost = advice.expected, advice.cost
    return {
        "mechanism": advice.plan.mechanism,
        "epsilon": advice.plan.target.epsilon,
        "expected_captured_variance": expected.likely,
        "captured_variance_from": expected.captured[0],
        "captured_variance_to": expected.captured[1],
        "beyond_first_from": expected.beyond_first[0],
        "beyond_first_to": expected.beyond_first[1],
        "random": expected.random,
        "random_beyond_first": expected.random_beyond_first,
        "expect_noise": advice.expects_noise,
        "components_above_noise": advice.forecast.above_noise,
        "records_needed": advice.forecast.records_needed,
        "epsilon_needed": advice.epsilon_needed(),
        "passes": cost.passes,
        "memory_mb": cost.memory / 1e6,
        "time": cost.time,
    }


def advice_cells(row: dict[str, Any]) -> dict[str, Any]:
    """Return the table cells of one ranked mechanism."""
    return {
        "mechanism": row["mechanism"],
        "expected": _interval(row["captured_variance_from"], row["captured_variance_to"]),
        "beyond_first": _interval(row["beyond_first_from"], row["beyond_first_to"]),
        "random": f"{row['random']:.2f}",
        "above_noise": row["components_above_noise"],
        "noise": "expect noise" if row["expect_noise"] else "",
        "passes": f"{row['passes']:.3g}",
        "memory_mb": f"{row['memory_mb']:,.0f}",
        "time": row["time"],
    }


def explanation(name: str) -> dict[str, Any]:
    """Return the explanation of a mechanism from its docstrings; for subspaces, add the cost at 1,000 features.

    Raises
    ------
    InvalidInput
        If there is no such mechanism.
    """
    known = {each: family for family, listed in _LISTED.items() for each in listed.mechanisms}
    if name not in known:
        raise InvalidInput(f"mechanism {name!r} is unknown; choose one of {', '.join(sorted(known))}.")
    kind = _LISTED[known[name]].mechanisms[name]
    _, _, rest = _module(kind).partition("\n\n")
    document = inspect.cleandoc(kind.__doc__ or "")
    listed = _listed(known[name], name)
    return {
        "mechanism": name,
        "command": f"dpca {known[name]} fit",
        "what": listed["what"],
        "does": _line(document.partition("\n\n")[0]),
        "when": _line(rest),
        "guarantee": listed["guarantee"],
        **({"cost": _cost(name)} if known[name] == "subspace" else {}),
        "source": _line(_section(document, "References")),
    }


def listing() -> list[dict[str, Any]]:
    """Return one row for each mechanism of every family."""
    return [_listed(family, name) for family, listed in _LISTED.items() for name in sorted(listed.mechanisms)]


def _listed(family: str, name: str) -> dict[str, Any]:
    listed = _LISTED[family]
    kind = listed.mechanisms[name]
    guarantee, what = _guarantee(kind, listed), _line(_module(kind).partition("\n\n")[0])
    return {"mechanism": name, "family": family, "guarantee": guarantee, "what": what}


def _module(kind: type[Any]) -> str:
    return inspect.cleandoc(sys.modules[kind.__module__].__doc__ or "")


def _guarantee(kind: Any, listed: _Listed) -> str:
    """Return the kind of guarantee, pure epsilon or (epsilon, delta); a mechanism that can plan delta 0 is pure."""
    try:
        kind(**listed.settings).plan(listed.problem, PrivacyTarget(epsilon=1.0, delta=0.0))
    except DpcaError:
        return "(epsilon, delta), delta above 0"
    return "pure epsilon, even if a delta is given"


def _cost(name: str) -> str:
    kind = MECHANISMS[name]
    insisted = {"allow_uncertified": True} if getattr(kind, "needs_gap", False) else {}
    mechanism = kind(n_components=_COMPONENTS, **insisted)
    return f"{cost_of(mechanism, mechanism.plan(_USUAL, _TARGET))} at 1,000 features and 10 components"


def _refusal(name: str, problem: Problem, target: PrivacyTarget, n_components: int) -> str:
    try:
        MECHANISMS[name](n_components=n_components).plan(problem, target)
    except DpcaError as error:
        return str(error)
    return "it refuses the part of the budget that is available for one release"


def _sentence(ranked: Sequence[Advice], *, n_components: int) -> str:
    if not ranked:
        return "every mechanism refuses this request; for the reasons, see the list under `refused`."
    best = ranked[0]
    name, expected = best.plan.mechanism, best.expected
    if not all(advice.expects_noise for advice in ranked):
        found = _interval(*expected.captured)
        declared = "" if best.forecast.problem.spectrum else ", at most: no spectrum is declared"
        return (
            f"use {name}: it is expected to capture {found} of the variance that the best "
            f"{n_components} components capture{declared}; random ones capture {expected.random:.2f}."
        )
    needed = {advice.plan.mechanism: advice.epsilon_needed() for advice in ranked}
    works = {each: epsilon for each, epsilon in needed.items() if epsilon is not None and math.isfinite(epsilon)}
    noise = (
        "expect noise: no mechanism is expected to capture much more than random directions, "
        f"which capture {expected.random:.3g} of the variance that the best {n_components} components capture"
    )
    if math.isinf(best.forecast.records_needed) or expected.random * _HOPELESS > 1.0:
        return f"{noise}; with the declared spectrum, a larger epsilon or more records would not help."
    least = min(works, key=lambda each: works[each], default=None)
    records = math.ceil(min(advice.forecast.records_needed for advice in ranked))
    needs = f"{records:,} records at the clip norm"
    if least is not None:
        needs += f" or epsilon {works[least]:.3g} with {least}"
    return f"{noise}; component {n_components} can be above the noise with {needs}."


_HOPELESS = 1.25  # give no advice if random directions capture more than 1 / 1.25 of what the best directions capture


def _interval(low: float, high: float) -> str:
    return f"{low:.2f}" if high - low < 0.01 else f"{low:.2f} to {high:.2f}"


def _section(document: str, title: str) -> str:
    found = re.search(rf"^{title}\n-+\n(.*?)(?=^\w[^\n]*\n-+\n|\Z)", document, flags=re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def _line(text: str) -> str:
    return " ".join(text.replace("``", "").split())


TRUTH_COLUMNS = ("formula", "settings", "relation", "claimed", "delta", "true epsilon", "verdict", "condition broken")


def truth_facts(row: Truth) -> dict[str, Any]:
    """Return all facts of a row of the table; a formula that gives no guarantee has an infinite true epsilon."""
    return {
        "formula": row.formula,
        "case": row.words,
        "relation": row.settings.relation,
        "claimed_epsilon": row.settings.epsilon,
        "delta": row.delta,
        "true_epsilon_at_least": row.lower,
        "true_epsilon_at_most": row.upper,
        "relative_width": row.width,
        "agrees": row.agrees,
        "bound": row.bound,
        "verdict": row.verdict,
        "condition_broken": row.broken,
        "noise": row.noise,
        "measures": row.measures,
        "source": row.source,
    }


def truth_cells(row: Truth) -> dict[str, str]:
    """Return the table cells of a row; of the two bounds on the true epsilon, only the relevant bounds are shown.

    ``row.bound`` selects the bound that decides on the published claim.
    """
    match row.bound:
        case _ if math.isinf(row.lower):
            true = "none"
        case "at most":
            true = f"at most {row.upper:.4g}"
        case "at least":
            true = f"at least {row.lower:.4g}"
        case _ if math.isinf(row.upper):
            true = f"at least {row.lower:.4g}"
        case _ if f"{row.lower:.4g}" == f"{row.upper:.4g}":
            true = f"{row.upper:.4g}"
        case _:
            true = f"{row.lower:.4g} to {row.upper:.4g}"
    values = (row.formula, row.words, row.settings.relation, f"{row.settings.epsilon:g}", f"{row.delta:g}", true)
    return dict(zip(TRUTH_COLUMNS, (*values, row.verdict, row.broken or "-"), strict=True))
