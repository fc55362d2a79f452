"""What a release of any family is asked with: each field states its type, default, help text and bounds once.

The flow of a family, its form and its command are made from the fields of its request, see
`flows.options`; a new option is one field here and the line that uses it. Requests load no
numerical library, so that the command line explains itself at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from pydantic import Field

from flows.options import text_settings
from storage.options import Handling

MECHANISM = "Mechanism: how noise is added."
NO_FORM_ASKS = ("i_know_this_is_not_private",)
"""Options that no flow takes: what voids a budget is insisted on at a terminal, by somebody who waits."""
NO_LOOP_ASKS = (*NO_FORM_ASKS, "run_key", "resume", "unattended")
"""Options of a request or an ingest that a loop sets for each arrival, or never sets."""

PublishedName = Annotated[
    str, Field(description="Name under which each release becomes a version.", pattern="^[a-z][a-z0-9._-]{0,99}$")
]
AllowLargeDelta = Annotated[
    bool,
    Field(description="Insist on a delta that is not below one over the number of records."),
    Handling(is_offered=False),
]
RowPolicy = Annotated[
    str,
    Field(description="clip: scale long records down to the clip norm; normalise: scale all records to it."),
    Handling(choices=("clip", "normalise")),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What determines a release of any family, and under which name it appears. Public in full.

    ``settings`` are the mechanism's, as text: given as a mapping, pairs, the parts of a form, or None for none. A
    family with settings declares them again, for its form. A reference mechanism has neither epsilon nor delta, and is
    refused unless ``i_know_this_is_not_private``.
    """

    family: ClassVar[str]

    dataset: Annotated[
        str,
        Field(description="Name of the dataset; its newest snapshot is read.", min_length=1),
        Handling(is_argument=True),
    ]
    publish: PublishedName
    mechanism: Annotated[str, Field(description=MECHANISM)]
    epsilon: Annotated[
        float | None, Field(description="Privacy loss to spend of the population's budget, each run; positive.", gt=0)
    ]
    delta: Annotated[
        float | None,
        Field(description="Failure probability of the guarantee; below 1/records, 0 for pure mechanisms.", ge=0, lt=1),
    ]
    settings: Annotated[
        Mapping[str, str], Field(description="Parameters of the mechanism."), Handling(is_offered=False)
    ] = field(default_factory=dict)
    run_key: Annotated[
        str | None,
        Field(
            description="Names the release: same key, same release. Without it, each slot of a schedule is one of "
            "its own."
        ),
    ] = None
    allow_large_delta: AllowLargeDelta = False
    i_know_this_is_not_private: Annotated[
        bool,
        Field(
            description="Insist on a mechanism that is not private: marked so for ever, and no private one is "
            "admitted after it."
        ),
    ] = False

    def __post_init__(self) -> None:
        """Take settings in each form that they arrive in."""
        object.__setattr__(self, "settings", text_settings(self.settings, of=self.mechanism))
