"""What a private subspace is asked with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from flows.options import private_words, settings_meaning
from flows.requests.base import Request, RowPolicy
from storage.options import Meaning


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
        int | str, Meaning("Number of components k, or auto: as many as stand above the noise.", minimum=1)
    ]
    clip_norm: Annotated[
        float | str,
        Meaning("Bound on a record's norm, from public knowledge; or quantile:0.9, chosen privately."),
    ]
    mechanism: Annotated[
        str,
        Meaning(
            "Mechanism: how noise is added; auto: what is expected to capture most, by public facts and the spectrum.",
            choices=_mechanisms,
            form=private_words(_private, "auto"),
        ),
    ] = "analyze_gauss"
    settings: Annotated[Mapping[str, str], settings_meaning(_private)] = field(default_factory=dict)
    row_policy: RowPolicy = "clip"
    center: Annotated[
        str,
        Meaning(
            "none: around the origin; private: around a mean that is released too.",
            choices=("none", "private"),
        ),
    ] = "none"
    refine: Annotated[
        str | None,
        Meaning(
            "Denoise the components, free: none, eb, spikes, all, or auto, the best of them by its score. By default "
            "auto where the matrix is formed, else none.",
            choices=("auto", "none", "eb", "spikes", "all"),
        ),
    ] = None
    keep_matrix: Annotated[
        float, Meaning("Megabytes up to which the artifact keeps the released matrix, for refits.", minimum=0)
    ] = 32.0
    require_share: Annotated[
        float | None,
        Meaning(
            "Publish only if the lower bound of the captured variance, over the best that k could hold, reaches this; "
            "else it is kept and charged.",
            above=0,
            maximum=1,
        ),
    ] = None
    hold_if_rejected: Annotated[
        float | None,
        Meaning(
            "Count rejected records with noise, within epsilon; refresh holds a release that lost a larger share.",
            minimum=0,
            below=1,
        ),
    ] = None
    spectrum: Annotated[
        str | None,
        Meaning(
            "Parts of all variance that the components hold, from public knowledge, for forecasts and mechanism=auto: "
            "0.3,0.1,0.05, or decay:A for parts like j^-A, or flat."
        ),
    ] = None
    on_noise: Annotated[
        str,
        Meaning(
            "warn or refuse a release whose components will all be noise, as far as public facts tell; refusing "
            "charges nothing.",
            choices=("warn", "refuse"),
        ),
    ] = "warn"
