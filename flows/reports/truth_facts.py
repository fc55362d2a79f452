"""The table of truth as it is printed: facts for machines, cells for readers.

>>> from dpca_tasks.accounting.truth import cases_of, truth_of
>>> truth_cells(truth_of(cases_of(("wishart",))[0]))["true epsilon"]
'none'
"""

import math
from typing import Any

from dpca_tasks.accounting.truth import Truth

COLUMNS = ("formula", "settings", "relation", "claimed", "delta", "true epsilon", "verdict", "condition broken")


def truth_facts(row: Truth) -> dict[str, Any]:
    """Return all that is known of a row; an epsilon that does not exist is infinite."""
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
    """Return what a reader sees of a row; only the end of the bracket that is about what was published."""
    match row.bound:
        case _ if math.isinf(row.lower):
            true = "none"
        case "at most":
            true = f"at most {row.upper:.4g}"
        case "at least":
            true = f"at least {row.lower:.4g}"
        case _ if f"{row.lower:.4g}" == f"{row.upper:.4g}":
            true = f"{row.upper:.4g}"
        case _:
            true = f"{row.lower:.4g} to {row.upper:.4g}"
    values = (row.formula, row.words, row.settings.relation, f"{row.settings.epsilon:g}", f"{row.delta:g}", true)
    return dict(zip(COLUMNS, (*values, row.verdict, row.broken or "-"), strict=True))
