"""What a stream is opened with; all of it is fixed for the stream's life."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from flows.requests.base import AllowLargeDelta, PublishedName, RowPolicy
from storage.options import Handling


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRequest:
    """A request for a stream of subspaces: one private release, from which every slot of a schedule has a version."""

    dataset: Annotated[
        str,
        Field(description="Name of the dataset; each tick reads its newest snapshot.", min_length=1),
        Handling(is_argument=True),
    ]
    population: Annotated[
        str, Field(description="The people behind the dataset, whose budget pays once for all ticks.")
    ]
    publish: PublishedName
    epsilon: Annotated[float, Field(description="Privacy loss of all ticks together; positive.", gt=0)]
    delta: Annotated[
        float, Field(description="Failure probability of the guarantee; below 1/records, and positive.", gt=0, lt=1)
    ]
    clip_norm: Annotated[
        float,
        Field(description="Bound on the norm of all that a record holds on a night, from public knowledge.", gt=0),
    ]
    components: Annotated[int, Field(description="Number of components k.", ge=1)]
    ticks: Annotated[
        int | None,
        Field(description="Number of ticks; needed for sqrt. The others are charged once for any number.", ge=1),
    ] = None
    strategy: Annotated[
        str,
        Field(
            description="How old data is weighted: sqrt for a known number of ticks, power for an open end, "
            "decay, window; auto: "
            "decay with a window or half-life, else sqrt with a number of ticks, else power."
        ),
        Handling(choices=("auto", "sqrt", "power", "decay", "window")),
    ] = "auto"
    window: Annotated[int | None, Field(description="Estimate what arrived in the last so many ticks alone.", ge=1)] = (
        None
    )
    half_life: Annotated[
        float | None, Field(description="Estimate with weights that halve in so many ticks.", gt=0)
    ] = None
    instalment: Annotated[
        int | None, Field(description="Charge only so many of the ticks now; stream extend pays for the rest.", ge=1)
    ] = None
    schedule: Annotated[
        str,
        Field(
            description="What a slot is: ticks that start on the same day, or in the same week or month, of the "
            "schedule's time "
            "zone are one, or in the same hour of UTC."
        ),
        Handling(choices=("hourly", "daily", "weekly", "monthly")),
    ] = "daily"
    align: Annotated[
        str,
        Field(
            description="procrustes: turn components toward those of the tick before, so that coordinates do not "
            "jump; signs: only "
            "choose their signs; none: as they are."
        ),
        Handling(choices=("procrustes", "signs", "none")),
    ] = "procrustes"
    row_policy: RowPolicy = "clip"
    center: Annotated[
        str,
        Field(description="none: around the origin; private: around a mean that is estimated too."),
        Handling(choices=("none", "private")),
    ] = "none"
    refine: Annotated[
        str,
        Field(
            description="Denoise the components of each estimate, free: none, eb, spikes, all, or auto, the best "
            "of them."
        ),
        Handling(choices=("auto", "none", "eb", "spikes", "all")),
    ] = "auto"
    allow_large_delta: AllowLargeDelta = False
