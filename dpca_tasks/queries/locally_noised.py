"""Simulation of local differential privacy: the report of each record is noised before reports are summed."""

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
    """Sum the second moments of records, with independent isometric noise on the moment of each record.

    Parameters
    ----------
    moment : SecondMoment or CentredMoment
        The query whose contributions, one report per record, are noised. The other public parameters are copied from
        this query.
    noise_key : SecretKey, optional
        The key from which the noise of the step is drawn; set by the curator.
    noise_std : float, grid steps
        The standard deviation of the noise of one record; set by the curator.

    Notes
    -----
    Sensitivity. Local differential privacy compares any two inputs of one person. So for every neighbouring relation
    the l2 sensitivity is that of a replaced record, ``sqrt 2``. Participation is public in the local model, so the
    relation add_remove is refused.

    The m records of a block get one draw of noise with standard deviation ``sqrt(m)`` instead of m draws with standard
    deviation 1. Both have the same distribution before rounding to integers, which happens once instead of m times.
    `dpca_tasks.noise.distributions` bounds the difference. `map` adds the noise before the sum leaves the block. Other
    partitions of the records into blocks give other noise.
    """

    moment: SecondMoment | CentredMoment
    noise_key: SecretKey | None = field(default=None, repr=False)
    noise_std: float = 0.0

    name: ClassVar[str] = "locally_noised"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Refuse the relation add_remove, because participation is public in the local model."""
        RowSum.__post_init__(self)
        if self.relation == "add_remove":
            raise Refused(
                "relation=add_remove hides who takes part, which is public in the local model; "
                "use a budget of relation zero_out or replace_one, or another mechanism."
            )

    @classmethod
    def of(cls, moment: SecondMoment | CentredMoment) -> Self:
        """Return the query that adds noise to every record's contribution to a moment."""
        return cls(
            n_features=moment.n_features,
            clip_norm=moment.clip_norm,
            relation=moment.relation,
            bits=moment.bits,
            moment=moment,
        )

    @property
    def kind(self) -> str:
        """The key of this query in the table of sensitivities, formed from the key of the moment."""
        return f"{self.name} {self.version} of {self.moment.kind}"

    @property
    def layout(self) -> Layout:
        """The layout of the statistic, equal to that of the moment."""
        return self.moment.layout

    @property
    def noises_itself(self) -> bool:
        """Always true: `add` adds the noise of every report."""
        return True

    def with_secrets(self, secrets: StepSecrets) -> RowSum:
        """Return the query with the noise key and the noise scale of the step."""
        return dataclasses.replace(self, noise_key=secrets.noise, noise_std=secrets.noise_scale)

    @property
    def plain(self) -> RowSum:
        """The query of the moment, without noise."""
        return self.moment

    @property
    def unit(self) -> float:
        """One unit of the output in data units, equal to that of the moment."""
        return self.moment.unit

    def sensitivity(self, norm: Norm) -> float:
        """Return the l2 sensitivity ``sqrt 2``, as proved in the Notes section of the class."""
        if norm != "l2":
            raise InvalidInput(f"local reports have no sensitivity in norm={norm!r}; use Gaussian noise (l2).")
        return SQRT_2_UP

    def grid(self, block: Block) -> RowBlock:
        """Clip the records of a stored block and round them to the grid of the moment."""
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
        """Return a hash of everything that determines the noised reports, except the private rows and the noise key."""
        return hashlib.sha256(f"{self.name} {self.version} ".encode() + self.moment.digest()).digest()
