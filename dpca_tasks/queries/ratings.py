"""The base of queries over ratings: one user is one record of one row, and at most K ratings of each are counted."""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels.user_factors import chosen_ratings, first_rows
from dpca_tasks.noise.keystream import SecretKey, words
from dpca_tasks.queries.base import RowSum, StepSecrets
from dpca_tasks.queries.joint_sum import JointSum
from dpca_tasks.records.blocks import Block, RowBlock
from dpca_tasks.records.gridding import as_floats, canonical

Coins = Literal["release", "step"]
RATING_BITS = 16
"""The public range of ratings has ``2^16`` steps."""
_COINS = 7
"""The stream of the coins that choose ratings."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RatingsSum(JointSum):
    """A joint sum over users of at most ``ratings_per_user`` ratings each; ``n_features`` is the number of items.

    Parameters
    ----------
    low, high : float
        The public range of ratings; others are clipped to it, and those that are not finite dropped.
    ratings_per_user : int
        K. Of more, those of the lowest priority are counted, ties broken by coins that belong to the user's ordinal in
        the snapshot and to the item.
    offsets : float64 array of shape (n_items,)
        Public offsets of the items, taken off their ratings.
    centre : float
        The public centre of all ratings.
    prior : float
        How many ratings at the centre the mean of a user's own ratings counts in; infinite for no mean of users.
    coin_key : SecretKey, optional
        Only the curator has it.
    coins : {"release", "step"}
        Whether all steps of a release share these coins, or each has its own.

    Notes
    -----
    Only the first row of a record is read, whatever the record holds; jobs refuse datasets whose records may have more.
    """

    low: float
    high: float
    ratings_per_user: int
    offsets: NDArray[np.float64]
    centre: float
    prior: float
    coin_key: SecretKey | None = field(default=None, repr=False)
    coins: Coins = "release"

    def __post_init__(self) -> None:
        """Check the public parameters."""
        RowSum.__post_init__(self)
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise InvalidInput(
                f"ratings between {self.low} and {self.high} must be a range; state the lower one first."
            )
        if self.ratings_per_user < 1:
            raise InvalidInput(f"ratings_per_user={self.ratings_per_user} must be at least 1; state a public bound.")
        if self.clip_norm != 1.0 or not self.prior >= 0 or self.offsets.shape != (self.n_features,):
            raise InvalidInput("clip_norm must be 1, prior at least 0, and offsets one a feature; correct them.")

    @property
    def most(self) -> int:
        """The number of ratings of one user that can be counted: K, or all items."""
        return min(self.ratings_per_user, self.n_features)

    @property
    def root_most(self) -> float:
        """The square root of `most`, rounded up."""
        return math.nextafter(math.sqrt(self.most), math.inf)

    @property
    def step(self) -> float:
        """One step of the grid of ratings."""
        return (self.high - self.low) / 2.0**RATING_BITS

    def with_secrets(self, secrets: StepSecrets) -> Self:
        """Return the query with its coins: one key for everything that a step counts."""
        key = secrets.release_coins if self.coins == "release" else secrets.step_coins
        return dataclasses.replace(self, coin_key=key)

    def grid(self, block: Block) -> RowBlock:
        """Clip the ratings of each record's first row, and put them on the grid of ratings."""
        rows = canonical(block, n_features=self.n_features)
        values, items, row_ptr = first_rows(
            as_floats(rows.values), rows.indices, rows.row_ptr, rows.record_ptr, self.low, self.high, RATING_BITS
        )
        return RowBlock(
            values=values,
            indices=items,
            row_ptr=row_ptr,
            record_ptr=np.arange(row_ptr.size),
            first_record=block.first_record,
            n_features=self.n_features,
            bits=RATING_BITS,
            density=block.density,
        )

    def chosen(self, block: RowBlock, priorities: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Mark the ratings that are counted."""
        first, count = block.first_record, block.n_records
        coins = (
            np.zeros(count, np.uint64)
            if self.coin_key is None
            else words(self.coin_key, stream=_COINS, start=first, stop=first + count)
        )
        return chosen_ratings(block.indices, block.row_ptr, priorities, self.most, coins)
