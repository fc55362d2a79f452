"""The request for the components of a mixture: its options, declared once. See `flows.requests.base`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from flows.options import private_words, settings_meaning
from flows.requests.base import Request
from storage.options import Meaning


def _private() -> Mapping[str, type[Any]]:
    from dpca_tasks.mechanisms.tensors import MECHANISMS

    return MECHANISMS


def _mechanisms() -> tuple[str, ...]:
    from dpca_tasks.mechanisms.tensors import MECHANISMS, REFERENCES

    return tuple(sorted({**MECHANISMS, **REFERENCES}))


WordsAtMost = Annotated[
    int | None,
    Meaning("topics: how many words of one document are counted at most, from public knowledge.", above=2),
]
NoiseVariance = Annotated[
    float | None,
    Meaning(
        "mixture: variance of the noise around centres in each column, from public knowledge; by default it "
        "follows from what is released.",
        minimum=0,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRequest(Request):
    """A request for topics of documents, or for the centres of a mixture of points."""

    family = "tensor"

    model: Annotated[
        str,
        Meaning(
            "topics: each record is a document, counts of words of one topic; mixture: each is a point, a centre and "
            "noise that is alike in all directions.",
            choices=("topics", "mixture"),
        ),
    ]
    components: Annotated[int, Meaning("Number of components K, below the number of columns.", minimum=1)]
    mechanism: Annotated[
        str,
        Meaning(
            "agn: Gaussian noise; avn: pure, delta 0, with far more noise; otd: without privacy, to compare with.",
            choices=_mechanisms,
            form=private_words(_private),
        ),
    ] = "agn"
    settings: Annotated[Mapping[str, str], settings_meaning(_private)] = field(default_factory=dict)
    words_at_most: WordsAtMost = None
    clip_norm: Annotated[
        float | None,
        Meaning("mixture: bound on a point's norm, from public knowledge; longer ones are clipped.", above=0),
    ] = None
    noise_variance: NoiseVariance = None
    component_length: Annotated[
        float | None,
        Meaning(
            "Euclidean length of a component, from public knowledge, for the forecast of a dry run alone; by default "
            "topics share the words evenly, and centres lie as far out as the clip norm allows for.",
            above=0,
        ),
    ] = None
