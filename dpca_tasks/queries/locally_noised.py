"""Simulation of the local model, a sum of reports that are noised before they leave their block."""

import dataclasses
import hashlib
import math
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.layouts import Layout
from dpca_tasks.noise.distributions import Symmetric
from dpca_tasks.noise.keystream import SecretKey, subkey
from dpca_tasks.queries.base import SQRT_2_UP, Norm, RowSum, StepSecrets
from dpca_tasks.queries.second_moment import CentredMoment, SecondMoment
from dpca_tasks.records.blocks import Block, RowBlock


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocallyNoised(RowSum):
    """Sum the second moments of records, with separate isometric noise on each.

    Parameters
    ----------
    moment : SecondMoment or CentredMoment
        The moment whose reports are noised; the other public parameters are copied from it.
    noise_key : SecretKey, optional
        The noise key of the step, passed by the curator.
    noise_std : float, grid steps
        The noise std of one record, passed by the curator.

    Notes
    -----
    Sensitivity. The local model compares any two inputs of one person. So for every relation the l2 sensitivity of
    either moment is the one for a replaced record, ``sqrt 2``. Participation is public in the local model, so
    add_remove is refused.

    The m records of a block get one draw of std ``sqrt(m)`` instead of m draws of std 1. Both have the same
    distribution before rounding to integers, which happens once instead of m times; `dpca_tasks.noise.distributions`
    bounds the difference. `map` adds the noise before anything leaves the block. Blocks are part of the simulation:
    other blocks give other noise.
    """

    moment: SecondMoment | CentredMoment
    noise_key: SecretKey | None = field(default=None, repr=False)
    noise_std: float = 0.0

    name: ClassVar[str] = "locally_noised"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Refuse add_remove, which the local model cannot guarantee."""
        RowSum.__post_init__(self)
        if self.relation == "add_remove":
            raise Refused(
                "relation=add_remove hides who takes part, which is public in the local model; "
                "use a budget of relation zero_out or replace_one, or another mechanism."
            )

    @classmethod
    def of(cls, moment: SecondMoment | CentredMoment) -> Self:
        """Return the query that adds noise to the reports of a moment."""
        return cls(
            n_features=moment.n_features,
            clip_norm=moment.clip_norm,
            relation=moment.relation,
            bits=moment.bits,
            moment=moment,
        )

    @property
    def kind(self) -> str:
        """The key in the table of sensitivities: reports of the moment's kind."""
        return f"{self.name} {self.version} of {self.moment.kind}"

    @property
    def layout(self) -> Layout:
        """The layout of the moment."""
        return self.moment.layout

    @property
    def noises_itself(self) -> bool:
        """Always true: `add` adds the noise of every report."""
        return True

    def with_secrets(self, secrets: StepSecrets) -> RowSum:
        """Return the query with the noise key and scale of its step."""
        return dataclasses.replace(self, noise_key=secrets.noise, noise_std=secrets.noise_scale)

    @property
    def plain(self) -> RowSum:
        """The moment, without noise."""
        return self.moment

    @property
    def unit(self) -> float:
        """The unit of the moment."""
        return self.moment.unit

    def sensitivity(self, norm: Norm) -> float:
        """Return the sensitivity that the class notes prove."""
        if norm != "l2":
            raise InvalidInput(f"norm={norm!r} is not stated for local reports; use Gaussian noise (l2).")
        return SQRT_2_UP

    def grid(self, block: Block) -> RowBlock:
        """Clip a stored block's records and put them on the grid."""
        return self.moment.grid(block)

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the block's noised reports."""
        if self.noise_key is None:
            raise InvalidInput("local reports need a noise key; release them through the curator, which has it.")
        self.moment.add(block, total)
        if block.n_records:
            place = f"{block.first_record} {block.n_records}".encode()
            key = subkey(self.noise_key.secret, label="reports", info=place)
            scale = self.noise_std * math.sqrt(block.n_records)
            total += Symmetric(noise_multiplier=1.0).draw(key, self.layout.order, scale_in_steps=scale)

    def digest(self) -> bytes:
        """Hash everything that determines the reports except the noise, which the key of the release determines."""
        return hashlib.sha256(f"{self.name} {self.version} ".encode() + self.moment.digest()).digest()
