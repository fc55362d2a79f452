"""Released item factors and offsets, from which users predict ratings on their own machines.

A release contains no data of a single user. A user computes a personal factor from their own ratings, locally
(`ItemEmbeddings.fold_in`). Predictions with this factor may be shown to that user alone.

Examples
--------
>>> items = ItemEmbeddings(
...     factors=np.eye(3, 2), offsets=np.array([0.5, 0.0, -0.5]), low=1.0, high=5.0,
...     manifest={"user_step": {"centre": 3.0, "prior": 0.0, "ridge": 1.0, "rating_bound": 4.0}},
... )
>>> items.predict([0], [4.5]).round(2).tolist()
[4.5, 4.0, 3.5]
>>> items.recommend([0], [4.5], count=1)
[(1, 4.0)]
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpca.artifacts.base import Artifact, checked_manifest, frozen, npz
from dpca.errors import Invalid
from dpca.schemas.frames import plain_rows

JOINT = (
    "joint differential privacy: everything that is shown to all other users, together, reveals only a bounded amount "
    "about a user's ratings. Not covered: a user's own factor and predictions, which are functions of that user's "
    "ratings; show them to that user alone, and store them nowhere else."
)
"""The scope of the privacy guarantee of released item embeddings, for their manifest."""

_FACTS = {"feature_names": "names", "high": "number", "low": "number", "user_step": "facts", "guarantee": "text"}
_STEP = ("centre", "prior", "ridge", "rating_bound")
_DESCENT = ("centre", "prior", "rating_bound", "row_norm")
_PERHAPS = ("unobserved",)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ItemEmbeddings(Artifact):
    """Released item factors and offsets, with which a user's own ratings predict that user's other ratings.

    Parameters
    ----------
    factors : array of shape (n_items, rank), optional
        One factor vector per item. Without factors, a prediction is a user's mean plus the item's offset.
    offsets : array of shape (n_items,)
        The offset of each item, which is subtracted from the ratings of that item.
    counts : array of shape (n_items,), optional
        The noisy number of ratings of each item.
    low, high : float
        The lowest and the highest possible rating.
    manifest : mapping
        Public facts. ``feature_names`` are the item ids. ``user_step`` has the parameters of `fold_in`, the local step
        in which a user's factor is computed. They always include ``centre``, which is subtracted from ratings, and
        ``prior``, which is added to the number of ratings when a user's mean is computed (None if users have no mean).
        With factors, they include ``rating_bound``, to which centred ratings are clipped, and one of two further sets.
        A ridge regression has its penalty ``ridge`` and optionally ``unobserved``, the weight that every item gets even
        if unrated. A Frank-Wolfe descent has ``gains`` (one number per factor) and ``row_norm``, the bound to which a
        user's residual is scaled down.

    Raises
    ------
    Invalid
        If the arrays or the manifest do not have this form.

    Guarantees
    ----------
    The arrays are private copies, float64 and read-only. `fold_in` computes the same step as the training did for
    each user.
    """

    kind = "item_embeddings"
    noun = "set of item embeddings"
    dimensions = {"factors": ("item", "factor"), "offsets": ("item",), "counts": ("item",)}  # noqa: RUF012
    exports = {"npz": npz}  # noqa: RUF012

    factors: NDArray[np.float64] | None = None
    offsets: NDArray[np.float64]
    counts: NDArray[np.float64] | None = None
    low: float
    high: float
    manifest: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Check the fields, and freeze copies of them."""
        offsets = frozen("offsets", self.offsets, ndim=1)
        factors = None if self.factors is None else frozen("factors", self.factors, ndim=2)
        counts = None if self.counts is None else frozen("counts", self.counts, ndim=1)
        for name, values in (("factors", factors), ("counts", counts)):
            if values is not None and len(values) != offsets.size:
                raise Invalid(
                    f"{name} has {len(values)} entries, but there are {offsets.size} items; pass one entry per item"
                )
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise Invalid(
                f"the range of ratings is {self.low} to {self.high}; low must be below high, and both finite; pass "
                "such a range"
            )
        shape = {"n_items": offsets.size, "rank": 0 if factors is None else factors.shape[1]}
        facts = {"guarantee": JOINT, **self.manifest, "low": float(self.low), "high": float(self.high)}
        manifest = checked_manifest(facts, kind=self.kind, facts=_FACTS, shape=shape)
        names = manifest.get("feature_names")
        if names is not None and len(names) != offsets.size:
            raise Invalid(f"there are {len(names)} item ids for {offsets.size} items; declare one id per item")
        _check_step(manifest.get("user_step"), rank=None if factors is None else factors.shape[1])
        for name, value in (("offsets", offsets), ("factors", factors), ("counts", counts), ("manifest", manifest)):
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        """Show the numbers of items and factors, and the privacy guarantee."""
        privacy = self.manifest.get("privacy", {})
        promised = [f"{name}={privacy[name]!r}" for name in ("epsilon", "delta") if name in privacy]
        facts = [f"n_items={self.n_items}", f"rank={self.rank}"]
        return f"ItemEmbeddings({', '.join([*facts, *(promised if self.is_private else ['NOT PRIVATE'])])})"

    def __reduce__(self) -> tuple[partial["ItemEmbeddings"], tuple[()]]:
        """Rebuild through the constructor, so that a copy is as read-only as the original."""
        return partial(ItemEmbeddings, **{name: getattr(self, name) for name in self.__slots__}), ()

    @classmethod
    def build(cls, arrays: Mapping[str, NDArray[np.float64]], manifest: Mapping[str, Any]) -> "ItemEmbeddings":
        """Build embeddings from stored arrays and a manifest."""
        made: dict[str, Any] = {"offsets": arrays["offsets"], **arrays}
        return cls(**made, low=manifest["low"], high=manifest["high"], manifest=manifest)

    @property
    def n_items(self) -> int:
        """The number of items."""
        return int(self.offsets.size)

    @property
    def rank(self) -> int:
        """The number of factors per item; 0 if there are only offsets."""
        return 0 if self.factors is None else int(self.factors.shape[1])

    def summary(self) -> dict[str, Any]:
        """Return the numbers of items and factors, the range of ratings, and the scope of the privacy guarantee."""
        return {
            "n_items": self.n_items,
            "rank": self.rank,
            "ratings_between": [self.low, self.high],
            "guarantee": self.manifest["guarantee"],
        }

    def headline(self) -> str:
        """Return a phrase with the numbers of factors and items."""
        return f"{self.rank} factors and an offset of {self.n_items} items"

    def fold_in(self, items: ArrayLike, ratings: ArrayLike) -> tuple[float, NDArray[np.float64]]:
        """Return a user's offset and factor, computed on this machine from the user's ratings.

        Parameters
        ----------
        items : integers of shape (n,)
            The numbers of the rated items. If an item occurs twice, its last rating counts.
        ratings : array of shape (n,)
            The ratings of these items, which are clipped to the range from `low` to `high`.

        Raises
        ------
        Invalid
            If an item does not exist, or a rating is not finite.
        """
        rated, values = self._checked(items, ratings)
        step = self.manifest["user_step"]
        left = np.clip(values, self.low, self.high) - self.offsets[rated] - step["centre"]
        mean = 0.0
        if step["prior"] is not None and rated.size:
            mean = float(left.sum() / (rated.size + step["prior"]))
        factor = np.zeros(self.rank)
        if self.factors is not None and rated.size:
            used = self.factors[rated]
            left = np.clip(left - mean, -step["rating_bound"], step["rating_bound"])
            if "gains" in step:
                factor = _descended(left, used, gains=step["gains"], row_norm=step["row_norm"])
            else:
                matrix = used.T @ used + step["ridge"] * np.eye(self.rank)
                if "unobserved" in step:
                    matrix += step["unobserved"] * (self.factors.T @ self.factors)
                factor = np.linalg.solve(matrix, used.T @ left)
        return float(step["centre"] + mean), factor

    def predict(self, items: ArrayLike, ratings: ArrayLike) -> NDArray[np.float64]:
        """Return a user's predicted ratings of all items, clipped to the range from `low` to `high`."""
        own, factor = self.fold_in(items, ratings)
        scores = own + self.offsets
        if self.factors is not None:
            scores = scores + self.factors @ factor
        return np.asarray(np.clip(scores, self.low, self.high))

    def recommend(self, items: ArrayLike, ratings: ArrayLike, *, count: int) -> list[tuple[int, float]]:
        """Return the unrated items with the highest predicted ratings, best first; ties are ordered by item number."""
        if count < 1:
            raise Invalid(f"count={count} must be at least 1; request at least one item")
        rated, _ = self._checked(items, ratings)
        scores = self.predict(items, ratings)
        scores[rated] = -np.inf
        order = np.argsort(-scores, kind="stable")[: min(count, self.n_items - rated.size)]
        return [(int(item), float(scores[item])) for item in order]

    def items_of(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the item numbers of the given item ids. If the release declares no ids, the ids are "0", "1", ...

        Raises
        ------
        Invalid
            If an id is not among the items of the release.
        """
        numbers = self._numbers()
        unknown = next((name for name in ids if name not in numbers), None)
        if unknown is not None:
            raise Invalid(f"item {unknown!r} is unknown; the release has {self.n_items} declared items; leave it out")
        return np.array([numbers[name] for name in ids], dtype=np.int64)

    def known(self, ids: Sequence[str]) -> list[bool]:
        """Return, for each id, whether an item of the release has this id."""
        numbers = self._numbers()
        return [name in numbers for name in ids]

    def _numbers(self) -> dict[str, int]:
        names = self.manifest.get("feature_names")
        return {str(name): at for at, name in enumerate(names if names is not None else range(self.n_items))}

    def id_of(self, item: int) -> str:
        """Return the id of an item."""
        names = self.manifest.get("feature_names")
        return str(item if names is None else names[item])

    def _checked(self, items: ArrayLike, ratings: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        rated, given = plain_rows(items, name="items"), plain_rows(ratings, name="ratings")
        try:
            rated, values = np.asarray(rated), np.asarray(given, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):  # hide the original error, as its message may quote a rating
            raise Invalid("items and ratings must be arrays of numbers; pass item numbers and ratings") from None
        if rated.shape != values.shape or rated.ndim != 1 or (rated.size and rated.dtype.kind not in "iu"):
            raise Invalid(
                f"there are {rated.size} items and {values.size} ratings; each rating needs an item number; "
                "pass two 1-D arrays of equal length"
            )
        if not np.isfinite(values).all():
            raise Invalid("a rating is not a finite number, but all must be; correct it, or leave it out")
        if ((rated < 0) | (rated >= self.n_items)).any():
            raise Invalid(f"an item number is outside 0..{self.n_items - 1}, the range of item numbers; correct it")
        last = dict(zip(rated.tolist(), values.tolist(), strict=True))
        order = sorted(last)
        return np.array(order, dtype=np.int64), np.array([last[item] for item in order])


def _descended(
    left: NDArray[np.float64], used: NDArray[np.float64], *, gains: Sequence[float], row_norm: float
) -> NDArray[np.float64]:
    """Return a user's factor after one Frank-Wolfe step per coordinate; step t = 0, 1, ... has weight 2 / (t + 2)."""
    factor = np.zeros(len(gains))
    for step, gain in enumerate(gains):
        rest, weight = left - used @ factor, 2.0 / (step + 2.0)
        norm = float(np.sqrt(rest @ rest))
        factor *= 1.0 - weight
        factor[step] = weight * gain * float(rest @ used[:, step]) * min(1.0, row_norm / max(norm, row_norm))
    return factor


def _check_step(step: Any, *, rank: int | None) -> None:
    known = {*_STEP, *_DESCENT, *_PERHAPS, "gains"}
    if not isinstance(step, Mapping) or not set(step) <= known:
        raise Invalid(
            f"user_step is {step!r}; it must be a mapping with {', '.join(_STEP)}; pass the manifest of a finished "
            "release"
        )
    gains = step.get("gains", [])
    if not isinstance(gains, (list, tuple)):
        raise Invalid(f"user_step has gains={gains!r}; gains must be a list of numbers; pass one number per factor")
    needed = _STEP[:2] if rank is None else _DESCENT if "gains" in step else _STEP
    if rank is not None:
        needed = (*needed, *(name for name in _PERHAPS if name in step))
    numbers = [step.get(name, math.nan) for name in needed if not (name == "prior" and step.get(name, 0) is None)]
    if not all(isinstance(number, (int, float)) and math.isfinite(number) for number in (*numbers, *gains)):
        raise Invalid(
            f"user_step must have {', '.join(needed)} as finite numbers, but one is missing or not a finite number; "
            "pass the manifest of a finished release"
        )
    if "gains" in step and len(gains) != rank:
        raise Invalid(f"user_step has {len(gains)} gains for {rank or 0} factors; pass one gain per factor")
