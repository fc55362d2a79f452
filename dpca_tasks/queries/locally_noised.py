"""A sum of reports that are noised before they leave their block: the local model, simulated."""

import dataclasses
import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.layouts import Layout
from dpca_tasks.noise.distributions import Symmetric
from dpca_tasks.noise.keystream import SecretKey, subkey
from dpca_tasks.queries.augmented_moment import CentredMoment
from dpca_tasks.queries.base import SQRT_2_UP, Norm, RowSum
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.queries.step_secrets import StepSecrets
from dpca_tasks.records.blocks import Block, RowBlock


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocallyNoised(RowSum):
    """Sum the second moments of records, each with isometric noise of its own.

    Parameters
    ----------
    moment : SecondMoment or CentredMoment
        Of whose records; the other public parameters are its own.
    noise_key : SecretKey, optional
        The curator's: a step's own key, given when the step is asked for.
    noise_std : float, grid steps
        Of one record's noise; the curator's too.

    Notes
    -----
    Sensitivity. The local model compares any two inputs of one person, so whatever the relation the l2 sensitivity
    is that of a replaced record, ``sqrt 2``, of either moment. Who takes part is public in it, so add_remove is
    refused.

    The m records of a block get one draw of std ``sqrt(m)`` instead of m draws of std 1, which has the same law before
    it is rounded to integers: once, and not m times. It is as near to that law as `dpca_tasks.noise.distributions`
    states. It is added by `map`, before anything leaves the block. Blocks are a part of the simulation: other blocks,
    other noise.
    """

    moment: SecondMoment | CentredMoment
    noise_key: SecretKey | None = field(default=None, repr=False)
    noise_std: float = 0.0

    name: ClassVar[str] = "locally_noised"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Refuse the relation that the local model cannot keep."""
        RowSum.__post_init__(self)
        if self.relation == "add_remove":
            raise Refused(
                "who takes part is public in the local model, which add_remove hides; "
                "use a budget of relation zero_out or replace_one, or another mechanism."
            )

    @classmethod
    def of(cls, moment: SecondMoment | CentredMoment) -> Self:
        """Noise the reports that a moment sums."""
        return cls(
            n_features=moment.n_features,
            clip_norm=moment.clip_norm,
            relation=moment.relation,
            bits=moment.bits,
            moment=moment,
        )

    @property
    def layout(self) -> Layout:
        """The moment's."""
        return self.moment.layout

    @property
    def noises_itself(self) -> bool:
        """Every report has its noise when its block is summed."""
        return True

    def with_secrets(self, secrets: StepSecrets) -> RowSum:
        """Take the noise."""
        return dataclasses.replace(self, noise_key=secrets.noise, noise_std=secrets.noise_scale)

    @property
    def plain(self) -> RowSum:
        """The moment, without noise."""
        return self.moment

    @property
    def unit(self) -> float:
        """The moment's."""
        return self.moment.unit

    def sensitivity(self, norm: Norm) -> float:
        """See the class notes."""
        if norm != "l2":
            raise InvalidInput(f"norm={norm!r} is not stated for local reports; use a Gaussian law (l2).")
        return SQRT_2_UP

    def grid(self, block: Block) -> RowBlock:
        """Clip a stored block's records and put them on the grid."""
        return self.moment.grid(block)

    def map(self, block: RowBlock) -> NDArray[np.int64]:
        """Add up the block's noised reports."""
        if self.noise_key is None:
            raise InvalidInput("local reports without their noise; ask the curator, which has the key.")
        total = self.moment.map(block)
        if block.n_records:
            place = f"{block.first_record} {block.n_records}".encode()
            key = subkey(self.noise_key.secret, label="reports", info=place)
            scale = self.noise_std * math.sqrt(block.n_records)
            total += Symmetric(noise_multiplier=1.0).draw(key, self.layout.order, scale_in_steps=scale)
        return total

    def former(self) -> Iterator[RowSum]:
        """Iterate over reports of an earlier version of the moment: their noise covers any two records of norm 1."""
        for moment in self.moment.former():
            if isinstance(moment, CentredMoment):
                yield LocallyNoised.of(moment)

    def digest(self) -> bytes:
        """Hash all that determines the reports but the noise, which the release's key determines."""
        return hashlib.sha256(f"{self.name} {self.version} ".encode() + self.moment.digest()).digest()
