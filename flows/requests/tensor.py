"""The request for the components of a mixture: its options, declared once. See `flows.requests.base`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from flows.options import private_words, settings_form
from flows.requests.base import Request
from storage.options import Handling


def _private() -> Mapping[str, type[Any]]:
    from dpca_tasks.mechanisms.tensors import MECHANISMS

    return MECHANISMS


def _mechanisms() -> tuple[str, ...]:
    from dpca_tasks.mechanisms.tensors import MECHANISMS, REFERENCES

    return tuple(sorted({**MECHANISMS, **REFERENCES}))


WordsAtMost = Annotated[
    int | None,
    Field(description="topics: how many words of one document are counted at most, from public knowledge.", gt=2),
]
NoiseVariance = Annotated[
    float | None,
    Field(
        description="mixture: variance of the noise around centres in each column, from public knowledge; by "
        "default it "
        "follows from what is released.",
        ge=0,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRequest(Request):
    """A request for topics of documents, or for the centres of a mixture of points."""

    family = "tensor"

    model: Annotated[
        str,
        Field(
            description="topics: each record is a document, counts of words of one topic; mixture: each is a "
            "point, a centre and "
            "noise that is alike in all directions."
        ),
        Handling(choices=("topics", "mixture")),
    ]
    components: Annotated[int, Field(description="Number of components K, below the number of columns.", ge=1)]
    mechanism: Annotated[
        str,
        Field(
            description="agn: Gaussian noise; avn: pure, delta 0, with far more noise; otd: without privacy, to "
            "compare with."
        ),
        Handling(choices=_mechanisms, form=private_words(_private)),
    ] = "agn"
    settings: Annotated[
        Mapping[str, str], Field(description="Parameters of the mechanism."), Handling(form=settings_form(_private))
    ] = field(default_factory=dict)
    words_at_most: WordsAtMost = None
    clip_norm: Annotated[
        float | None,
        Field(description="mixture: bound on a point's norm, from public knowledge; longer ones are clipped.", gt=0),
    ] = None
    noise_variance: NoiseVariance = None
    component_length: Annotated[
        float | None,
        Field(
            description="Euclidean length of a component, from public knowledge, for the forecast of a dry run "
            "alone; by default "
            "topics share the words evenly, and centres lie as far out as the clip norm allows for.",
            gt=0,
        ),
    ] = None
