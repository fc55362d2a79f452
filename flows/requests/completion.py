"""The request for item embeddings: its options, declared once. See `flows.requests.base`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from flows.options import private_words, settings_meaning
from flows.requests.base import Request
from storage.options import Meaning

_MECHANISM = (
    "dpals: private alternating least squares; one_shot: eigenvectors of one noisy moment; dpfw: private "
    "Frank-Wolfe; dpsvd: singular vectors of weighted rows; item_means: offsets of items alone, for few users; als "
    "and ials: without privacy, to compare with; auto: what is expected to predict best, by public facts."
)


def _private() -> Mapping[str, type[Any]]:
    from dpca_tasks.mechanisms.completion import MECHANISMS

    return MECHANISMS


def _mechanisms() -> tuple[str, ...]:
    from dpca_tasks.mechanisms.completion import MECHANISMS, REFERENCES

    return ("auto", *sorted({**MECHANISMS, **REFERENCES}))


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest(Request):
    """A request for item embeddings."""

    family = "completion"

    rank: Annotated[int, Meaning("Number of factors of an item, below the number of items.", minimum=1)]
    ratings_between: Annotated[str, Meaning("Public range A:B of ratings, such as 1:5; others are clipped to it.")]
    ratings_per_user: Annotated[int, Meaning("How many ratings of one user are counted at most; public.", minimum=1)]
    mechanism: Annotated[str, Meaning(_MECHANISM, choices=_mechanisms, form=private_words(_private, "auto"))] = "dpals"
    settings: Annotated[Mapping[str, str], settings_meaning(_private)] = field(default_factory=dict)
    signal: Annotated[
        float | None,
        Meaning(
            "Part of the variance of ratings without offsets that factors explain, from public knowledge, for advice "
            "and mechanism=auto alone; half by default.",
            above=0,
            maximum=1,
        ),
    ] = None
