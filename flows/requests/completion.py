"""The request for item embeddings: its options, declared once. See `flows.requests.base`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from flows.options import private_words, settings_form
from flows.requests.base import Request
from storage.options import Handling

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

    rank: Annotated[int, Field(description="Number of factors of an item, below the number of items.", ge=1)]
    ratings_between: Annotated[
        str, Field(description="Public range A:B of ratings, such as 1:5; others are clipped to it.")
    ]
    ratings_per_user: Annotated[
        int, Field(description="How many ratings of one user are counted at most; public.", ge=1)
    ]
    mechanism: Annotated[
        str, Field(description=_MECHANISM), Handling(choices=_mechanisms, form=private_words(_private, "auto"))
    ] = "dpals"
    settings: Annotated[
        Mapping[str, str], Field(description="Parameters of the mechanism."), Handling(form=settings_form(_private))
    ] = field(default_factory=dict)
    signal: Annotated[
        float | None,
        Field(
            description="Part of the variance of ratings without offsets that factors explain, from public "
            "knowledge, for advice "
            "and mechanism=auto alone; half by default.",
            gt=0,
            le=1,
        ),
    ] = None
