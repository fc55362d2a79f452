"""What a stream is opened with; all of it is fixed for the stream's life."""

from dataclasses import dataclass
from typing import Annotated

from flows.requests.base import AllowLargeDelta, PublishedName, RowPolicy
from storage.options import Meaning


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRequest:
    """A request for a stream of subspaces: one private release, from which every slot of a schedule has a version."""

    dataset: Annotated[
        str, Meaning("Name of the dataset; each tick reads its newest snapshot.", min_length=1, is_argument=True)
    ]
    population: Annotated[str, Meaning("The people behind the dataset, whose budget pays once for all ticks.")]
    publish: PublishedName
    epsilon: Annotated[float, Meaning("Privacy loss of all ticks together; positive.", above=0)]
    delta: Annotated[
        float, Meaning("Failure probability of the guarantee; below 1/records, and positive.", above=0, below=1)
    ]
    clip_norm: Annotated[
        float, Meaning("Bound on the norm of all that a record holds on a night, from public knowledge.", above=0)
    ]
    components: Annotated[int, Meaning("Number of components k.", minimum=1)]
    ticks: Annotated[
        int | None, Meaning("Number of ticks; needed for sqrt. The others are charged once for any number.", minimum=1)
    ] = None
    strategy: Annotated[
        str,
        Meaning(
            "How old data is weighted: sqrt for a known number of ticks, power for an open end, decay, window; auto: "
            "decay with a window or half-life, else sqrt with a number of ticks, else power.",
            choices=("auto", "sqrt", "power", "decay", "window"),
        ),
    ] = "auto"
    window: Annotated[int | None, Meaning("Estimate what arrived in the last so many ticks alone.", minimum=1)] = None
    half_life: Annotated[float | None, Meaning("Estimate with weights that halve in so many ticks.", above=0)] = None
    instalment: Annotated[
        int | None, Meaning("Charge only so many of the ticks now; stream extend pays for the rest.", minimum=1)
    ] = None
    schedule: Annotated[
        str,
        Meaning(
            "What a slot is: ticks that start on the same day, or in the same week or month, of the schedule's time "
            "zone are one, or in the same hour of UTC.",
            choices=("hourly", "daily", "weekly", "monthly"),
        ),
    ] = "daily"
    align: Annotated[
        str,
        Meaning(
            "procrustes: turn components toward those of the tick before, so that coordinates do not jump; signs: only "
            "choose their signs; none: as they are.",
            choices=("procrustes", "signs", "none"),
        ),
    ] = "procrustes"
    row_policy: RowPolicy = "clip"
    center: Annotated[
        str,
        Meaning("none: around the origin; private: around a mean that is estimated too.", choices=("none", "private")),
    ] = "none"
    refine: Annotated[
        str,
        Meaning(
            "Denoise the components of each estimate, free: none, eb, spikes, all, or auto, the best of them.",
            choices=("auto", "none", "eb", "spikes", "all"),
        ),
    ] = "auto"
    allow_large_delta: AllowLargeDelta = False
