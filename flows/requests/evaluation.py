"""The requests for private estimates of how good a release is: their options, declared once."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from flows.requests.base import Request
from storage.options import Handling

SUBSPACE_MECHANISMS, COMPLETION_MECHANISMS = ("captured_share",), ("prediction_error",)


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """What is evaluated. It is a base of its own, so that commands take it before the dataset."""

    artifact: Annotated[
        str,
        Field(description="The release to evaluate: NAME, NAME@VERSION or NAME@ALIAS.", min_length=1),
        Handling(is_argument=True),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequest(Request, Evaluated):
    """A request for a private estimate of how good a release is."""

    publish: Annotated[
        str, Field(description="Name under which each estimate becomes a version; by default NAME.evaluation.")
    ] = ""

    def __post_init__(self) -> None:
        """Name the estimate after what is evaluated, where it has no name of its own."""
        Request.__post_init__(self)
        if not self.publish:
            object.__setattr__(self, "publish", f"{self.artifact.partition('@')[0]}.evaluation")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubspaceEvaluationRequest(EvaluationRequest):
    """A request for a private estimate of the variance that a subspace holds."""

    family = "subspace_evaluation"

    mechanism: Annotated[
        str,
        Field(description="captured_share: three noisy sums of squares, one event."),
        Handling(choices=SUBSPACE_MECHANISMS),
    ] = "captured_share"
    delta: Annotated[
        float,
        Field(description="Failure probability of the guarantee; below 1/records. 0 takes Laplace noise.", ge=0, lt=1),
    ] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionEvaluationRequest(EvaluationRequest):
    """A request for a private estimate of how well item embeddings predict."""

    family = "completion_evaluation"

    mechanism: Annotated[
        str,
        Field(description="prediction_error: squared errors, Recall and NDCG, one event."),
        Handling(choices=COMPLETION_MECHANISMS),
    ] = "prediction_error"
    count: Annotated[int, Field(description="How many items are recommended: the k of Recall@k and NDCG@k.", ge=1)] = 20
