"""What each mechanism may be set to: a help text and bounds, once, for the forms in which settings have types.

Names, types and defaults are those of the mechanism's own fields. A form has one part a mechanism, ``settings`` =
``{"dp_spca": {"rate": 0.2}}``; a command line, and deployments made before there were parts, give text, ``{"rate":
"0.2"}``. A request keeps text, whichever it was given.

>>> text_settings({"dp_spca": {"rate": 0.2, "mu": None}, "noisy_power": {}}, of="dp_spca")
{'rate': '0.2'}
>>> text_settings([("rate", "0.2")], of="dp_spca")
{'rate': '0.2'}
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from storage.errors import Invalid
from storage.options import Meaning

type Given = Mapping[str, Any] | Iterable[tuple[str, Any]] | None
type Kinds = Callable[[], Mapping[str, type[Any]]]
"""Returns the classes of mechanisms by name; a function, so that they are loaded for forms alone."""

STATED_APART = ("n_components", "rank", "components")
"""Fields of mechanisms that a request has options of its own for."""
NOT_OFFERED = ("allow_uncertified",)
"""Fields that weaken a guarantee, which no form offers: they are insisted on as text."""

_COLLUDERS = Meaning("Sites that may tell all they know; below a third of the others by default.", minimum=0)
_DROPOUTS = Meaning("Further sites whose noise may be missing.", minimum=0)
_OVERSAMPLING = Meaning("Directions carried along beyond those asked for.", minimum=0)
_CALIBRATION = Meaning("tight: the least noise with the guarantee; paper: as printed, where that is proved.")
_SHARE = "The share of the squared loss for "

SETTINGS: Mapping[str, Meaning] = {
    "averaging": Meaning("The second half's projectors, or the last product alone, as published."),
    "burn_in": Meaning("Products that do not enter the average of directions.", minimum=0),
    "calibration": _CALIBRATION,
    "centre": Meaning("What is publicly known to be an average rating; the middle of the range by default."),
    "clip": Meaning("Bring each user's factor to its norm, or clip longer ones, with weights or as published."),
    "coins": Meaning("Whether choices by chance are made once a release, or anew in every round."),
    "colluders": _COLLUDERS,
    "diagonal_passes": Meaning("How often the moment's diagonal is replaced after the release.", minimum=0),
    "dropouts": _DROPOUTS,
    "epochs": Meaning("Epochs, each with one full release.", minimum=1),
    "form": Meaning("How the release is computed or cut up; see the mechanism's page."),
    "frequent": Meaning("The share of items that get factors, those counted most.", above=0, maximum=1),
    "growth": Meaning("How much more of the squared loss the last round gets than the first.", above=0),
    "inner_steps": Meaning("Steps in an epoch.", minimum=2),
    "integrated_time": Meaning("The number of steps times the step size.", above=0),
    "item_ridge": Meaning("The ridge of items' regressions, in multiples of the noise's norm.", above=0),
    "iterations": Meaning("Noisy products; noise grows like the square root of their number.", minimum=1),
    "message_clip": Meaning("Bound of a record's message in squared clip norms; 1 clips nothing.", above=0, maximum=1),
    "mu": Meaning("The free mu of the printed noise, for calibration=paper.", above=0, below=1),
    "noise": Meaning("The law of the noise."),
    "nuclear_norm": Meaning("Bound of the prediction's nuclear norm, relative to a matrix of this rank.", above=0),
    "offsets": Meaning("Whether noisy offsets of items are taken off first."),
    "orthonormal": Meaning("Whether factors of items are made orthonormal after each round."),
    "oversampling": _OVERSAMPLING,
    "passes": Meaning("Passes over the rows, fixed before any is read.", minimum=1),
    "point_factor": Meaning("mixture: the clip norm over the root mean square of points.", minimum=1),
    "pooled": Meaning("The statistics of how many last rounds are averaged.", minimum=1),
    "private_centre": Meaning("Whether a released mean is the centre, where none is declared."),
    "rate": Meaning("The probability with which a record is in a batch.", above=0, maximum=1),
    "rating_clip": Meaning("Bound of what is left of a rating; follows from epsilon by default.", above=0),
    "rounds": Meaning("Rounds, fixed before any row is read.", minimum=1),
    "row_norm": Meaning("The norm that a row of centred ratings is clipped to, in multiples of their spread.", above=0),
    "rows_kept": Meaning("The number of features that may have a part in the components.", minimum=1),
    "sampler": Meaning("peeling: exact draws, one after the other; gibbs is not certified."),
    "sampling": Meaning("Of more ratings than are counted: those of rare items, a random choice, or weights."),
    "scaling": Meaning("Bring every user's row to one norm, or scale down longer ones alone."),
    "score_factor": Meaning("mixture: the bound of a point's scores over their root mean square.", minimum=1),
    "share": Meaning("The share of the squared loss for full releases.", above=0, below=1),
    "split": Meaning("The share of the loss for the second moment.", above=0, below=1),
    "spread": Meaning("The public std of centred ratings; a quarter of their range by default.", above=0),
    "start": Meaning("Random factors, which cost nothing, or eigenvectors of a noisy moment."),
    "start_share": Meaning(f"{_SHARE}the moment of start=analyze_gauss.", above=0, below=1),
    "steps": Meaning("Batches in all.", minimum=1),
    "totals_share": Meaning(f"{_SHARE}counts and offsets.", above=0, below=1),
    "unobserved": Meaning("The weight of every pair of a user and an item, rated or not; 0 for ratings.", minimum=0),
    "user_means": Meaning("Whether a user's own mean is taken off that user's ratings."),
    "user_norm": Meaning("The norm that a user's factor is brought to.", above=0),
    "user_prior": Meaning("How many ratings at the centre that mean counts in.", minimum=0),
    "user_ridge": Meaning("The ridge of users' regressions.", above=0),
}
"""Help and bounds by the name of a setting, which means the same in each mechanism that has it."""

_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def settings_meaning(kinds: Kinds, help: str = "Parameters of the mechanism.") -> Meaning:  # noqa: A002
    """Return the meaning of an option for the settings of mechanisms of these kinds."""
    return Meaning(help, form=lambda: _parts(kinds()))


def private_words(kinds: Kinds, *others: str) -> Callable[[], dict[str, Any]]:
    """Return the rule of a form that offers private mechanisms alone, besides other words."""
    return lambda: {"enum": [*others, *sorted(kinds())]}


def text_settings(given: Given, *, of: str) -> dict[str, str]:
    """Return the settings of a mechanism as text, from text or from the parts of a form.

    Raises
    ------
    Invalid
        When another mechanism's part is filled in.
    """
    settings: dict[str, str] = {}
    for name, value in dict(given or ()).items():
        if isinstance(value, Mapping):
            stated = {key: _text(one) for key, one in value.items() if one is not None}
            if stated and name != of:
                raise Invalid(f"settings of {name} are given and {of} is asked for; empty that part, or ask for {name}")
            settings |= stated
        elif value is not None:
            settings[name] = _text(value)
    return settings


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parts(kinds: Mapping[str, type[Any]]) -> dict[str, Any]:
    """Return the JSON schema of settings in a form: none, or one typed part a mechanism; text stays admitted."""
    parts = {name: _part(name, kind) for name, kind in sorted(kinds.items())}
    offered = {
        name: {"title": name, "anyOf": [{"type": "null"}, part]} for name, part in parts.items() if part["properties"]
    }
    by_text = {"type": "object", "properties": offered, "additionalProperties": {"type": "string"}, "title": "Settings"}
    return {"anyOf": [{"type": "null"}, by_text]}


def _part(name: str, kind: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    properties = {
        option.name: _setting(option.name, hints[option.name], option.default)
        for option in fields(kind)
        if option.name not in (*STATED_APART, *NOT_OFFERED)
    }
    return {"type": "object", "title": name, "properties": properties, "additionalProperties": False}


def _setting(name: str, hint: Any, default: Any) -> dict[str, Any]:
    """Return the JSON schema of a setting: its type, bounds, help and default."""
    found: dict[str, Any] = {"title": name, "description": SETTINGS[name].help, **SETTINGS[name].rules()}
    words = [word for one in (get_args(hint) or ()) if get_origin(one) is Literal for word in get_args(one)]
    if get_origin(hint) is Literal or words:
        found |= {"type": "string", "enum": words or list(get_args(hint))}
    else:
        (kind,) = (one for one in (get_args(hint) or (hint,)) if one is not NoneType)
        found["type"] = _TYPES[kind]
    return found if default in (None, MISSING) else {**found, "default": default}
