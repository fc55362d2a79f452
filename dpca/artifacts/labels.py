"""Labels and short explanations of the facts that describe the quality of a release, for web pages, commands and docs.

>>> label("cv_low")
'captured variance, lower bound'
"""

import math
from collections.abc import Mapping
from typing import Any

LABELS: Mapping[str, tuple[str, str]] = {
    "above_noise": (
        "components above the noise",
        "number of components that noise alone exceeds less than once in 100 releases",
    ),
    "share": ("share of all variance", "variance in the subspace divided by all variance, estimated without the noise"),
    "share_low": ("share of all variance, lower bound", "holds in 95 of 100 releases"),
    "share_low_of_all": (
        "share of all variance of all records, lower bound",
        "counts every record in full, even if the last round clipped it",
    ),
    "in_rounds": ("rounds", "number of rounds, their shares of the budget, and the map and clipping of each round"),
    "cv": ("captured variance", "variance in the subspace divided by the most that as many components could have"),
    "cv_low": ("captured variance, lower bound", "holds in 95 of 100 releases"),
    "captured": ("variance in the subspace", "estimated without the noise, in squared data units summed over records"),
    "captured_low": ("variance in the subspace, lower bound", "holds in 95 of 100 releases"),
    "noise_std": ("noise, standard deviation", "of an entry off the diagonal of the released matrix"),
    "noise_edge": ("noise edge", "noise alone has a larger eigenvalue less than once in 100 releases"),
    "refined_by": (
        "refined by",
        "the method that removed noise from the eigenvectors after the release, if any",
    ),
    "failed": ("failed", "noise outweighs the components, which may be random"),
    "eigengap_bound": ("eigengap, lower bound", "released with noise"),
    "rejected_share": ("rejected records", "share of the records of the dataset that an ingest rejected, with noise"),
    "rejected_share_std": ("rejected records, standard deviation", "of the noise of that share"),
    "requested": ("components requested", "number in the request"),
    "found": ("components found", "number that was released"),
    "above": ("components above the noise", "number of eigenvalues of the released second moment above its noise"),
    "drift": ("drift", "test of whether the newest records have other directions than earlier ones"),
    "share_std": ("share of all variance, standard deviation", "of the noise of the estimate"),
    "share_beyond_first": (
        "share beyond the first component",
        "variance in the other components divided by the variance outside the first",
    ),
    "share_beyond_first_std": ("share beyond the first component, standard deviation", "of the noise of the estimate"),
    "reconstruction_error": ("variance outside the subspace", "estimated, in squared data units summed over records"),
    "reconstruction_error_std": ("variance outside the subspace, standard deviation", "of the noise of the estimate"),
    "total_variance": ("all variance", "estimated, in squared data units summed over records"),
    "total_variance_std": ("all variance, standard deviation", "of the noise of the estimate"),
    "users": ("users", "number of users that were evaluated, with noise"),
    "users_std": ("users, standard deviation", "of the noise of that number"),
    "floor": ("noise of the second moment", "eigenvalues of the released second moment below it are noise"),
    "recall_std": ("recall, standard deviation", "of the noise of the estimate"),
    "ndcg_std": ("NDCG, standard deviation", "of the noise of the estimate"),
    "rmse": ("root mean squared error", "of predicted ratings that were held out"),
    "rmse_std": ("root mean squared error, standard deviation", "of the noise of the estimate"),
    "recall": ("recall", "share of the held-out items among the recommended ones"),
    "ndcg": ("NDCG", "quality of the order of recommended items, 1 is best"),
}
"""The label of each fact, and its meaning in one clause, by the fact's name."""


def label(name: str) -> str:
    """Return the label of a fact. Without a label, return the fact's name with spaces for underscores."""
    return LABELS[name][0] if name in LABELS else name.replace("_", " ")


def meaning(name: str) -> str:
    """Return the meaning of a fact in one clause, or an empty text if the table has no such fact."""
    return LABELS[name][1] if name in LABELS else ""


def formatted(value: Any, *, name: str = "") -> str:
    """Format the value of a fact for display.

    A boolean is shown as yes or no, a float with three significant digits, and None as a dash. A float of at least
    1000 is shown without decimals. A fact whose name ends in ``_low`` is a lower bound, so its value is rounded down.
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        shown = rounded_down(value, digits=3) if name.endswith("_low") else value
        return f"{shown:,.0f}" if abs(shown) >= 1000 else f"{shown:.3g}"
    return "-" if value is None else str(value)


def rounded_down(value: float, *, digits: int) -> float:
    """Round a number down to `digits` significant digits."""
    if value == 0.0 or not math.isfinite(value):
        return value
    unit = 10.0 ** (math.floor(math.log10(abs(value))) + 1 - digits)
    return math.floor(value / unit) * unit
