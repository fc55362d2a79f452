"""Release requests, one class for each family.

Each field declares its type, default, help text and bounds once. The flow of a family, its form and its command are
made from the fields of its request (see `flows.options`). A new option takes one field here and the line that uses it.
A request that breaks a rule of a field cannot be made. Its refusal is the same line at a terminal, in a form, from
Python and from a reservation.

Requests import no family and no numerical library, so that the command line prints its help at once.
"""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, ValidationInfo

from dpca.errors import Invalid
from flows.options import settings_form, text_settings
from storage.options import Handling, option_record

MECHANISM = "Mechanism: how noise is added."
NOT_IN_FORMS = ("i_know_this_is_not_private",)
"""Options that no flow takes, because a run that voids a budget must be confirmed by a user at a terminal."""
NOT_IN_LOOPS = (*NOT_IN_FORMS, "run_key", "resume", "unattended")
"""Options of a request or an ingest that users of a refresh cannot give, because the refresh sets or excludes them."""

type Mechanisms = tuple[Mapping[str, type[Any]], Mapping[str, type[Any]]]
"""The private mechanisms of a family and its reference mechanisms, by name."""


def _subspaces() -> Mechanisms:
    from dpca_tasks.mechanisms.subspace import MECHANISMS, REFERENCES

    return MECHANISMS, REFERENCES


def _completions() -> Mechanisms:
    from dpca_tasks.mechanisms.completion import MECHANISMS, REFERENCES

    return MECHANISMS, REFERENCES


def _tensors() -> Mechanisms:
    from dpca_tasks.mechanisms.tensors import MECHANISMS, REFERENCES

    return MECHANISMS, REFERENCES


def _moments() -> Mechanisms:
    from dpca_tasks.mechanisms.moments import MECHANISMS

    return MECHANISMS, {}


def _methods() -> Mechanisms:
    from dpca_tasks.mechanisms.sites import METHODS, TENSOR_METHODS

    return {**METHODS, **TENSOR_METHODS}, {}


def _one_of(load: Callable[[], Mechanisms], *others: str) -> Handling:
    """Return the handling of a mechanism option: any mechanism of the family is valid, forms offer private ones."""

    def choices() -> tuple[str, ...]:
        private, references = load()
        return (*others, *sorted({*private, *references}))

    return Handling(choices=choices, form=lambda: {"enum": [*others, *sorted(load()[0])]})


def _settings_of(load: Callable[[], Mechanisms]) -> Handling:
    return Handling(form=settings_form(lambda: load()[0]))


def _as_text(given: Any, info: ValidationInfo) -> dict[str, str]:
    return text_settings(given, of=info.data.get("mechanism") or info.data.get("method", ""))


PublishedName = Annotated[
    str,
    Field(
        description="Name under which each release is published as a new version.", pattern="^[a-z][a-z0-9._-]{0,99}$"
    ),
]
AllowLargeDelta = Annotated[
    bool,
    Field(description="Accept a delta that is not below 1/records."),
    Handling(is_offered=False),
]
Settings = Annotated[Mapping[str, str], BeforeValidator(_as_text), Field(description="Parameters of the mechanism.")]
"""Settings of the mechanism or method; this field must come after the field ``mechanism`` or ``method``."""
RowPolicy = Annotated[
    str,
    Field(description="clip: scale long records down to the clip norm; normalise: scale all records to the clip norm."),
    Handling(choices=("clip", "normalise")),
]

SchemaConstraints = Annotated[
    bool,
    Field(
        description="Remove noise that contradicts the schema, at no charge: a row has at most one feature of a "
        "categorical column."
    ),
]


@option_record
class Request:
    """Fields of every release request, which determine the release and its published name.

    All fields are public. ``settings`` are the settings of the mechanism as text, given as a mapping, pairs, the parts
    of a form, or None for no settings. A family with settings declares the field again, for its form. A reference
    mechanism (without privacy, for comparison) has neither epsilon nor delta, and is refused unless
    ``i_know_this_is_not_private`` is set.
    """

    family: ClassVar[str]

    dataset: Annotated[
        str,
        Field(description="Name of the dataset; the release reads its newest snapshot.", min_length=1),
        Handling(is_argument=True),
    ]
    publish: PublishedName
    mechanism: Annotated[str, Field(description=MECHANISM)]
    epsilon: Annotated[
        float | None, Field(description="Privacy loss of each run, charged to the population's budget; positive.", gt=0)
    ]
    delta: Annotated[
        float | None,
        Field(
            description="Failure probability of the guarantee; below 1/records, and 0 for pure mechanisms.", ge=0, lt=1
        ),
    ]
    settings: Annotated[Settings, Handling(is_offered=False)] = field(default_factory=dict)
    run_key: Annotated[
        str | None,
        Field(
            description="Key of the release: the same key means the same release. Without a key, each slot of "
            "a schedule is a separate release."
        ),
    ] = None
    allow_large_delta: AllowLargeDelta = False
    i_know_this_is_not_private: Annotated[
        bool,
        Field(
            description="Accept a mechanism that is not private. The release is marked as not private, and its "
            "budget admits no private release afterwards."
        ),
    ] = False


@option_record
class SubspaceRequest(Request):
    """A request for k components.

    ``clip_norm`` is a number, or ``quantile:0.9`` to choose it privately.
    """

    family = "subspace"

    components: Annotated[
        Annotated[int, Field(ge=1)] | str,
        Field(description="Number of components k, or auto: all components above the noise."),
    ]
    clip_norm: Annotated[
        float | str,
        Field(
            description="Bound on a record's norm, from public knowledge; or quantile:0.9, chosen privately "
            "from the data."
        ),
    ]
    mechanism: Annotated[
        str,
        Field(
            description="Mechanism: how noise is added; auto: the highest expected captured variance, by "
            "public facts and the spectrum."
        ),
        _one_of(_subspaces, "auto"),
    ] = "analyze_gauss"
    settings: Annotated[Settings, _settings_of(_subspaces)] = field(default_factory=dict)
    row_policy: RowPolicy = "clip"
    center: Annotated[
        str,
        Field(description="none: components around the origin; private: around a mean, which is also released."),
        Handling(choices=("none", "private")),
    ] = "none"
    rounds: Annotated[
        Annotated[int, Field(ge=1, le=3)] | str,
        Field(
            description="Number of rounds of analyze_gauss that share the budget, 1 to 3: later rounds need less "
            "noise; auto: by public facts."
        ),
    ] = "auto"
    like: Annotated[
        str | None,
        Field(
            description="An earlier release of the same columns, as NAME@VERSION or NAME@ALIAS: its directions and "
            "mean are known at the start, and the whole budget goes into one round of analyze_gauss. none: no such "
            "start. Default: the champion of the name in scheduled runs and loops, else none.",
            min_length=1,
        ),
    ] = None
    like_public: Annotated[
        str | None,
        Field(
            description="Public rows of the same columns, instead of like, in a file or in a dataset that was "
            "ingested with --public: their directions and mean are known at the start, and no budget is charged.",
            min_length=1,
        ),
    ] = None
    refine: Annotated[
        str | None,
        Field(
            description="Denoise the components at no charge: none, eb, spikes, all, or auto (the one with the "
            "best score). Default: auto if the matrix is formed, else none."
        ),
        Handling(choices=("auto", "none", "eb", "spikes", "all")),
    ] = None
    schema_constraints: SchemaConstraints = True
    keep_matrix: Annotated[
        float,
        Field(description="Maximum size in megabytes of a released matrix that the artifact keeps for refits.", ge=0),
    ] = 32.0
    require_share: Annotated[
        float | None,
        Field(
            description="Publish only if the lower bound of the captured variance, relative to the best k "
            "components, reaches this; otherwise the release is charged and kept unpublished.",
            gt=0,
            le=1,
        ),
    ] = None
    hold_if_rejected: Annotated[
        float | None,
        Field(
            description="Count rejected records with noise, within epsilon; refresh holds a release that lost "
            "a larger share of its records.",
            ge=0,
            lt=1,
        ),
    ] = None
    spectrum: Annotated[
        str | None,
        Field(
            description="Shares of variance of the components, from public knowledge, for forecasts and "
            "mechanism=auto: 0.3,0.1,0.05, or decay:A for shares proportional to j^-A, or flat."
        ),
    ] = None
    on_noise: Annotated[
        str,
        Field(
            description="warn or refuse a release if, by public facts, all its components will be noise; "
            "refusing charges nothing."
        ),
        Handling(choices=("warn", "refuse")),
    ] = "warn"


_MECHANISM = (
    "dpals: private alternating least squares; one_shot: eigenvectors of one noisy moment; "
    "dpfw: private Frank-Wolfe; dpsvd: singular vectors of weighted rows; item_means: only offsets of "
    "items, for few users; als and ials: without privacy, for comparison; auto: the best expected "
    "prediction, by public facts."
)


@option_record
class CompletionRequest(Request):
    """A request for item embeddings."""

    family = "completion"

    rank: Annotated[int, Field(description="Number of factors of an item, below the number of items.", ge=1)]
    ratings_between: Annotated[
        str, Field(description="Public range A:B of ratings, such as 1:5; other ratings are clipped to it.")
    ]
    ratings_per_user: Annotated[int, Field(description="Maximum number of ratings counted for one user; public.", ge=1)]
    mechanism: Annotated[str, Field(description=_MECHANISM), _one_of(_completions, "auto")] = "dpals"
    settings: Annotated[Settings, _settings_of(_completions)] = field(default_factory=dict)
    signal: Annotated[
        float | None,
        Field(
            description="Share of the variance of ratings, after offsets, that factors explain, from public "
            "knowledge; only for advice and mechanism=auto. Default: half.",
            gt=0,
            le=1,
        ),
    ] = None


WordsAtMost = Annotated[
    int | None,
    Field(description="topics: maximum number of words counted in one document, from public knowledge.", gt=2),
]
NoiseVariance = Annotated[
    float | None,
    Field(
        description="mixture: variance of the noise around centres in each column, from public knowledge; "
        "by default estimated from the release.",
        ge=0,
    ),
]


@option_record
class TensorRequest(Request):
    """A request for topics of documents, or for the centres of a mixture of points."""

    family = "tensor"

    model: Annotated[
        str,
        Field(
            description="topics: each record is a document, as word counts of one topic; mixture: each record "
            "is a point, a centre plus noise that is equal in all directions."
        ),
        Handling(choices=("topics", "mixture")),
    ]
    components: Annotated[int, Field(description="Number of components K, below the number of columns.", ge=1)]
    mechanism: Annotated[
        str,
        Field(
            description="agn: Gaussian noise; avn: pure, delta 0, with far more noise; otd: without privacy, "
            "for comparison."
        ),
        _one_of(_tensors),
    ] = "agn"
    settings: Annotated[Settings, _settings_of(_tensors)] = field(default_factory=dict)
    words_at_most: WordsAtMost = None
    clip_norm: Annotated[
        float | None,
        Field(description="mixture: bound on a point's norm, from public knowledge; longer points are clipped.", gt=0),
    ] = None
    noise_variance: NoiseVariance = None
    component_length: Annotated[
        float | None,
        Field(
            description="Euclidean length of a component, from public knowledge, only for the forecast of a "
            "dry run. By default topics share the words evenly, and centres are at the largest distance that the "
            "clip norm allows.",
            gt=0,
        ),
    ] = None


@option_record
class MomentRequest(Request):
    """A request for a second moment, from which models are derived at no further charge."""

    family = "moment"

    clip_norm: Annotated[float, Field(description="Bound on a record's norm, from public knowledge.", gt=0)]
    mechanism: Annotated[
        str, Field(description="gaussian_moment: one noisy second moment, in one round."), _one_of(_moments)
    ] = "gaussian_moment"
    row_policy: RowPolicy = "clip"
    center: Annotated[
        str,
        Field(
            description="private: release mean and count too, for covariances and intercepts, at a third more noise; "
            "none: the second moment alone."
        ),
        Handling(choices=("private", "none")),
    ] = "private"
    schema_constraints: SchemaConstraints = True


SUBSPACE_MECHANISMS, COMPLETION_MECHANISMS = ("captured_share",), ("prediction_error",)


@option_record
class Evaluated:
    """Field of the release to evaluate, in a separate base class so that commands take it before the dataset."""

    artifact: Annotated[
        str,
        Field(description="The release to evaluate: NAME, NAME@VERSION or NAME@ALIAS.", min_length=1),
        Handling(is_argument=True),
    ]


@option_record
class EvaluationRequest(Request, Evaluated):
    """A request for a private estimate of the quality of a release."""

    publish: Annotated[
        str,
        Field(description="Name under which each estimate is published as a new version; by default NAME.evaluation."),
    ] = ""

    def __post_init__(self) -> None:
        """Name the estimate after the evaluated release, unless ``publish`` is set."""
        if not self.publish:
            object.__setattr__(self, "publish", f"{self.artifact.partition('@')[0]}.evaluation")


@option_record
class SubspaceEvaluationRequest(EvaluationRequest):
    """A request for a private estimate of the variance that a subspace captures."""

    family = "subspace_evaluation"

    mechanism: Annotated[
        str,
        Field(description="captured_share: three noisy sums of squares, charged as one event."),
        Handling(choices=SUBSPACE_MECHANISMS),
    ] = "captured_share"
    delta: Annotated[
        float,
        Field(description="Failure probability of the guarantee; below 1/records. 0 uses Laplace noise.", ge=0, lt=1),
    ] = 0.0


@option_record
class CompletionEvaluationRequest(EvaluationRequest):
    """A request for a private estimate of how well item embeddings predict."""

    family = "completion_evaluation"

    mechanism: Annotated[
        str,
        Field(description="prediction_error: squared errors, Recall and NDCG, charged as one event."),
        Handling(choices=COMPLETION_MECHANISMS),
    ] = "prediction_error"
    count: Annotated[int, Field(description="Number of recommended items: the k of Recall@k and NDCG@k.", ge=1)] = 20


@option_record
class StreamRequest:
    """A request for a stream of subspaces: one private release with a version for every slot of a schedule."""

    dataset: Annotated[
        str,
        Field(description="Name of the dataset; each tick (version) reads its newest snapshot.", min_length=1),
        Handling(is_argument=True),
    ]
    population: Annotated[
        str, Field(description="The people behind the dataset, whose budget is charged once for all ticks.")
    ]
    publish: PublishedName
    epsilon: Annotated[float, Field(description="Privacy loss of all ticks together; positive.", gt=0)]
    delta: Annotated[
        float, Field(description="Failure probability of the guarantee; below 1/records, and positive.", gt=0, lt=1)
    ]
    clip_norm: Annotated[
        float,
        Field(description="Bound on the norm of all data of one record at any tick, from public knowledge.", gt=0),
    ]
    components: Annotated[int, Field(description="Number of components k.", ge=1)]
    ticks: Annotated[
        int | None,
        Field(
            description="Number of ticks (versions); required by sqrt. The other strategies have the same charge for "
            "any number.",
            ge=1,
        ),
    ] = None
    strategy: Annotated[
        str,
        Field(
            description="Weights of old data: sqrt for a known number of ticks, power for an unknown number, "
            "decay, window; auto: decay with a window or half-life, else sqrt with a number of ticks, else power."
        ),
        Handling(choices=("auto", "sqrt", "power", "decay", "window")),
    ] = "auto"
    window: Annotated[int | None, Field(description="Estimate only the data of the last N ticks.", ge=1)] = None
    half_life: Annotated[float | None, Field(description="Estimate with weights that halve every N ticks.", gt=0)] = (
        None
    )
    instalment: Annotated[
        int | None, Field(description="Charge only the first N ticks now; stream extend charges further ticks.", ge=1)
    ] = None
    schedule: Annotated[
        str,
        Field(
            description="Length of a slot. Runs within the same day, week or month of the schedule's time "
            "zone, or the same hour of UTC, are one tick."
        ),
        Handling(choices=("hourly", "daily", "weekly", "monthly")),
    ] = "daily"
    align: Annotated[
        str,
        Field(
            description="procrustes: rotate components toward those of the previous tick, for stable "
            "coordinates; signs: match only their signs; none: no alignment."
        ),
        Handling(choices=("procrustes", "signs", "none")),
    ] = "procrustes"
    row_policy: RowPolicy = "clip"
    center: Annotated[
        str,
        Field(description="none: components around the origin; private: around a mean, which is also estimated."),
        Handling(choices=("none", "private")),
    ] = "none"
    refine: Annotated[
        str,
        Field(
            description="Denoise the components of each estimate at no charge: none, eb, spikes, all, or auto "
            "(the one with the best score)."
        ),
        Handling(choices=("auto", "none", "eb", "spikes", "all")),
    ] = "auto"
    schema_constraints: SchemaConstraints = True
    like: Annotated[
        str | None,
        Field(
            description="An earlier release of the same columns, as NAME@VERSION or NAME@ALIAS: its directions and "
            "mean are known at the first tick, so the ticks need less noise.",
            min_length=1,
        ),
    ] = None
    maps: Annotated[
        str,
        Field(
            description="first: all ticks use the directions known at the first tick, if like names a release; "
            "doubling: ticks 2, 4, 8, ... use those of the ticks before."
        ),
        Handling(choices=("first", "doubling")),
    ] = "first"
    allow_large_delta: AllowLargeDelta = False


@option_record
class SitesRequest:
    """A request for k components over datasets of different populations, each charged to its own budget.

    All fields are public. ``settings`` are the settings of the method as text.
    """

    publish: PublishedName
    method: Annotated[str, Field(description=MECHANISM.replace("Mechanism", "Method")), _one_of(_methods)]
    components: Annotated[int, Field(description="Number of components k.", ge=1)]
    epsilon: Annotated[float, Field(description="Privacy loss charged to the budget of every site; positive.", gt=0)]
    delta: Annotated[float, Field(description="Failure probability of the guarantee; below 1/records.", gt=0, lt=1)]
    datasets: Annotated[
        str, Field(description="Names of the datasets, one for each site: A,B,C; each site reads its newest snapshot.")
    ] = ""
    roster: Annotated[
        str | None, Field(description="The roster file of sites that run as separate processes, instead of --datasets.")
    ] = None
    row_policy: RowPolicy = "clip"
    clip_norm: Annotated[
        float | None,
        Field(description="Bound on a record's norm at every site, from public knowledge; not for topics.", gt=0),
    ] = None
    model: Annotated[
        str | None,
        Field(
            description="For cape_agn, conv_agn and local_agn. topics: each record is a document, as word "
            "counts of one topic; mixture: each record is a point, a centre plus noise that is equal in all "
            "directions."
        ),
        Handling(choices=("topics", "mixture")),
    ] = None
    words_at_most: WordsAtMost = None
    noise_variance: NoiseVariance = None
    rounds: Annotated[
        Annotated[int, Field(ge=1, le=3)] | str,
        Field(
            description="Number of rounds of cape_pca that share the budget, 1 to 3: later rounds need less noise. "
            "auto: by public facts for --datasets, and 1 for --roster, where each round needs every site again."
        ),
    ] = "auto"
    like: Annotated[
        str | None,
        Field(
            description="An earlier release of the same columns, as NAME@VERSION, from the registry of this home: its "
            "directions are known at the start, and the whole budget goes into one round of cape_pca.",
            min_length=1,
        ),
    ] = None
    settings: Annotated[Settings, Field(description="Parameters of the method."), _settings_of(_methods)] = field(
        default_factory=dict
    )
    run_key: Annotated[
        str | None, Field(description="Key of the joint release: the same key means the same release.")
    ] = None
    allow_large_delta: AllowLargeDelta = False

    def __post_init__(self) -> None:
        """Refuse a request that names both datasets and a roster (the file of remote sites), or neither."""
        if bool(self.datasets) == bool(self.roster):
            raise Invalid(
                "a joint release reads either datasets of this home or the sites of a roster; give one "
                "of --datasets A,B and --roster FILE."
            )

    @property
    def bounds(self) -> dict[str, float]:
        """The bounds that are set among ``words_at_most``, ``clip_norm`` and ``noise_variance``, by name."""
        found = {name: getattr(self, name) for name in ("words_at_most", "clip_norm", "noise_variance")}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the datasets, in order."""
        return tuple(name.strip() for name in self.datasets.split(",") if name.strip())
