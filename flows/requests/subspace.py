"""What a private subspace is asked with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from flows.options import private_words, settings_form
from flows.requests.base import Request, RowPolicy
from storage.options import Handling


def _private() -> Mapping[str, type[Any]]:
    from dpca_tasks.mechanisms.subspace import MECHANISMS

    return MECHANISMS


def _mechanisms() -> tuple[str, ...]:
    from dpca_tasks.mechanisms.subspace import MECHANISMS, REFERENCES

    return ("auto", *sorted({**MECHANISMS, **REFERENCES}))


@dataclass(frozen=True, slots=True, kw_only=True)
class SubspaceRequest(Request):
    """A request for k components.

    ``clip_norm`` is a number, or ``quantile:0.9`` to choose it privately.
    """

    family = "subspace"

    components: Annotated[
        int | str, Field(description="Number of components k, or auto: as many as stand above the noise.", ge=1)
    ]
    clip_norm: Annotated[
        float | str,
        Field(description="Bound on a record's norm, from public knowledge; or quantile:0.9, chosen privately."),
    ]
    mechanism: Annotated[
        str,
        Field(
            description="Mechanism: how noise is added; auto: what is expected to capture most, by public facts "
            "and the spectrum."
        ),
        Handling(choices=_mechanisms, form=private_words(_private, "auto")),
    ] = "analyze_gauss"
    settings: Annotated[
        Mapping[str, str], Field(description="Parameters of the mechanism."), Handling(form=settings_form(_private))
    ] = field(default_factory=dict)
    row_policy: RowPolicy = "clip"
    center: Annotated[
        str,
        Field(description="none: around the origin; private: around a mean that is released too."),
        Handling(choices=("none", "private")),
    ] = "none"
    refine: Annotated[
        str | None,
        Field(
            description="Denoise the components, free: none, eb, spikes, all, or auto, the best of them by its "
            "score. By default "
            "auto where the matrix is formed, else none."
        ),
        Handling(choices=("auto", "none", "eb", "spikes", "all")),
    ] = None
    keep_matrix: Annotated[
        float, Field(description="Megabytes up to which the artifact keeps the released matrix, for refits.", ge=0)
    ] = 32.0
    require_share: Annotated[
        float | None,
        Field(
            description="Publish only if the lower bound of the captured variance, over the best that k could "
            "hold, reaches this; "
            "else it is kept and charged.",
            gt=0,
            le=1,
        ),
    ] = None
    hold_if_rejected: Annotated[
        float | None,
        Field(
            description="Count rejected records with noise, within epsilon; refresh holds a release that lost a "
            "larger share.",
            ge=0,
            lt=1,
        ),
    ] = None
    spectrum: Annotated[
        str | None,
        Field(
            description="Parts of all variance that the components hold, from public knowledge, for forecasts and "
            "mechanism=auto: "
            "0.3,0.1,0.05, or decay:A for parts like j^-A, or flat."
        ),
    ] = None
    on_noise: Annotated[
        str,
        Field(
            description="warn or refuse a release whose components will all be noise, as far as public facts "
            "tell; refusing "
            "charges nothing."
        ),
        Handling(choices=("warn", "refuse")),
    ] = "warn"
