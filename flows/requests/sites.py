"""What a subspace, or components of a model, over several sites are asked with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from flows.options import settings_form, text_settings
from flows.requests.base import MECHANISM, AllowLargeDelta, PublishedName, RowPolicy
from flows.requests.tensor import NoiseVariance, WordsAtMost
from storage.errors import Invalid
from storage.options import Handling


def _kinds() -> Mapping[str, type[Any]]:
    from dpca_tasks.mechanisms.sites import METHODS, TENSOR_METHODS

    return {**METHODS, **TENSOR_METHODS}


def _methods() -> tuple[str, ...]:
    return tuple(sorted(_kinds()))


@dataclass(frozen=True, slots=True, kw_only=True)
class SitesRequest:
    """A request for k components over datasets of unlike populations, each charged in its own budget. Public in full.

    ``settings`` are the method's, as text.
    """

    publish: PublishedName
    method: Annotated[str, Field(description=MECHANISM.replace("Mechanism", "Method")), Handling(choices=_methods)]
    components: Annotated[int, Field(description="Number of components k.", ge=1)]
    epsilon: Annotated[float, Field(description="Privacy loss to spend of the budget of every site; positive.", gt=0)]
    delta: Annotated[float, Field(description="Failure probability of the guarantee; below 1/records.", gt=0, lt=1)]
    datasets: Annotated[
        str, Field(description="Names of the datasets, one a site: A,B,C; the newest snapshot of each is read.")
    ] = ""
    roster: Annotated[
        str | None, Field(description="The roster file of sites that are processes of their own, in place of datasets.")
    ] = None
    row_policy: RowPolicy = "clip"
    clip_norm: Annotated[
        float | None,
        Field(description="Bound on a record's norm at every site, from public knowledge; topics have none.", gt=0),
    ] = None
    model: Annotated[
        str | None,
        Field(
            description="For cape_agn, conv_agn and local_agn. topics: each record is a document, counts of words "
            "of one topic; "
            "mixture: each is a point, a centre and noise that is alike in all directions."
        ),
        Handling(choices=("topics", "mixture")),
    ] = None
    words_at_most: WordsAtMost = None
    noise_variance: NoiseVariance = None
    settings: Annotated[
        Mapping[str, str], Field(description="Parameters of the method."), Handling(form=settings_form(_kinds))
    ] = field(default_factory=dict)
    run_key: Annotated[str | None, Field(description="Names the joint release: same key, same release.")] = None
    allow_large_delta: AllowLargeDelta = False

    def __post_init__(self) -> None:
        """Take settings in each form that they arrive in."""
        object.__setattr__(self, "settings", text_settings(self.settings, of=self.method))
        if bool(self.datasets) == bool(self.roster):
            raise Invalid(
                "a joint release is over datasets of this home or over the sites of a roster; give --datasets A,B "
                "or --roster FILE, one of the two."
            )

    @property
    def bounds(self) -> dict[str, float]:
        """What is stated of a model beside its name."""
        found = {name: getattr(self, name) for name in ("words_at_most", "clip_norm", "noise_variance")}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the datasets, in order."""
        return tuple(name.strip() for name in self.datasets.split(",") if name.strip())
