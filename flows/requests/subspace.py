"""What a private subspace is asked with."""

from dataclasses import dataclass
from typing import Annotated

from flows.requests.base import MECHANISM, Request
from storage.options import Meaning


def _mechanisms() -> tuple[str, ...]:
    from dpca_tasks.mechanisms.subspace import MECHANISMS, REFERENCES

    return tuple(sorted({**MECHANISMS, **REFERENCES}))


@dataclass(frozen=True, slots=True, kw_only=True)
class SubspaceRequest(Request):
    """A request for k components.

    ``clip_norm`` is a number, or ``quantile:0.9`` to choose it privately.
    """

    family = "subspace"

    components: Annotated[int, Meaning("Number of components k.", minimum=1)]
    clip_norm: Annotated[
        float | str,
        Meaning("Bound on a record's norm, from public knowledge; or quantile:0.9, chosen privately."),
    ]
    mechanism: Annotated[str, Meaning(MECHANISM, choices=_mechanisms)] = "analyze_gauss"
    row_policy: Annotated[
        str,
        Meaning(
            "clip: scale long records down to the clip norm; normalise: scale all records to it.",
            choices=("clip", "normalise"),
        ),
    ] = "clip"
    center: Annotated[
        str,
        Meaning(
            "none: around the origin; private: around a mean that is released too.",
            choices=("none", "private"),
        ),
    ] = "none"
