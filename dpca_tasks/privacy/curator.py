"""The trust boundary: the only way from private rows to a number.

A mechanism asks the curator for a noisy sum and gets nothing else. The curator checks that the step was
reserved, sums exactly, adds keyed noise, keeps the noised array as the one answer to that step, and returns
what it reads back.

>>> import numpy as np
>>> from dpca_tasks.records.sources import ArrayBlocks
>>> from dpca_tasks.accounting import events
>>> from dpca_tasks.noise.distributions import Symmetric
>>> from dpca_tasks.queries.second_moment import SecondMoment
>>> from dpca_tasks.privacy.reservation import InMemoryReservation
>>> reservation = InMemoryReservation(event=events.gaussian(4.0))
>>> curator = Curator(ArrayBlocks(np.eye(3)), reservation)
>>> query = SecondMoment(n_features=3, clip_norm=1.0, relation="add_remove", bits=12)
>>> curator.release(query, Symmetric(noise_multiplier=4.0)).shape
(3, 3)
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.noise.bingham import DirectionMechanism
from dpca_tasks.noise.distributions import Gaussian, NoiseDistribution, Symmetric
from dpca_tasks.noise.joint import JointGaussian
from dpca_tasks.privacy.eigensolver import Eigensolver
from dpca_tasks.privacy.gate import Gate
from dpca_tasks.privacy.noised_directions import PerturbationMechanism
from dpca_tasks.privacy.released_operator import NoisedOperator
from dpca_tasks.privacy.reservation import Reservation
from dpca_tasks.privacy.rows import Rows
from dpca_tasks.privacy.ways.perturb import perturb
from dpca_tasks.privacy.ways.release import release
from dpca_tasks.privacy.ways.release_operator import release_operator
from dpca_tasks.privacy.ways.release_parts import release_parts
from dpca_tasks.privacy.ways.sample import sample
from dpca_tasks.privacy.ways.sequential import sequential
from dpca_tasks.queries.augmented_moment import CentredMoment
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.joint_sum import JointSum
from dpca_tasks.queries.sampled_passes import SampledPasses
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.blocks import BlockSource

if TYPE_CHECKING:
    from distributed import Client

Query = TypeVar("Query", bound=RowSum | Eigensolver)


class Curator:
    """Answer the steps of one reserved release, in order, once each.

    Parameters
    ----------
    source : BlockSource
        The private rows.
    reservation : Reservation
        What was charged, and where answers are kept.
    client : distributed.Client, optional
        The cluster that maps the blocks; this process when left out.
    progress : callable, optional
        Is called with the partitions done and the partitions in all, both public, as a sum proceeds.

    Notes
    -----
    For each (release, step) at most one noised array leaves. The noise of a step is a pseudo-random
    function of the release's key and of everything that determines the answer: snapshot content, step, query
    with its public inputs, noise and scale. A step that is kept already is read back, not computed again, so a
    resumed release reports the same.
    """

    def __init__(
        self,
        source: BlockSource,
        reservation: Reservation,
        *,
        client: "Client | None" = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._gate = Gate(source, reservation)
        self._rows = Rows(source=source, client=client, progress=progress)

    def with_stored_inputs(self, query: Query) -> Query:
        """Return the query of the next step with the public inputs that an earlier run kept, if one did.

        Public inputs computed again may differ in their last bits; a resumed release goes on from the kept
        ones.
        """
        return self._gate.with_stored_inputs(query)

    def release(self, query: RowSum, law: NoiseDistribution) -> NDArray[np.float64]:
        """Return a noisy sum: the answer to the next step of the release.

        Parameters
        ----------
        query : RowSum
        law : NoiseDistribution
            Its event must be the one reserved for this step, and its layout the query's.

        Returns
        -------
        float64 array, data units
            The full matrix for a symmetric layout, else the packed coordinates.

        Raises
        ------
        StepMismatch
            When the step was not reserved, or an unlike request was already answered in it. Nothing is
            released.
        """
        return self._answered(release(self._gate, self._rows, query, law))

    def release_parts(self, query: JointSum, distribution: JointGaussian) -> dict[str, NDArray[np.float64]]:
        """Return the noisy parts of a statistic: together the answer to the next step of the release.

        Parameters
        ----------
        query : JointSum
        distribution : JointGaussian
            Its event must be the one reserved for this step.

        Returns
        -------
        dict of str to float64 array, data units
            Each part by its name, as `release` returns a sum of its layout.

        Raises
        ------
        StepMismatch
            As `release`. Nothing is released.
        """
        parts = release_parts(self._gate, self._rows, query, distribution)
        self._free_rows()
        return parts

    def release_operator(self, query: SecondMoment | CentredMoment, law: Symmetric) -> NoisedOperator:
        """Return a noisy matrix too large to form, as an operator: the answer to the next step of the release.

        The matrix is the one that `release` would return: both forms of a question are one release, of which a step
        has one.

        Parameters
        ----------
        query : SecondMoment or CentredMoment
        law : Symmetric
            Its event must be the one reserved for this step.

        Returns
        -------
        NoisedOperator
            Applies the matrix to public directions, any number of times, and proves that this is one release. The
            rows are read, and the noise is drawn, when it is first applied.

        Raises
        ------
        StepMismatch
            As `release`. Nothing is released.
        """
        return release_operator(self._gate, self._rows, query, law)

    def sample(self, score: RowSum, law: DirectionMechanism) -> NDArray[np.float64]:
        """Return directions drawn by their score: the answer to the next step of the release.

        Parameters
        ----------
        score : RowSum
            A symmetric statistic of matrix S; orthonormal directions V have the score ``tr(V^T S V)``.
        law : DirectionMechanism
            Its event must be the one reserved for this step.

        Returns
        -------
        float64 array of shape (k, d)
            Rows on a public grid, orthonormal up to it. What the sampler's floating point leaves open,
            `dpca_tasks.noise.bingham` says.

        Raises
        ------
        StepMismatch
            As `release`. No direction leaves.
        """
        return self._answered(sample(self._gate, self._rows, score, law))

    def perturb(self, solver: Eigensolver, law: PerturbationMechanism) -> NDArray[np.float64]:
        """Return leading directions with noise on top: the answer to the next step of the release.

        Parameters
        ----------
        solver : Eigensolver
            Which directions, found in a public number of passes over the rows.
        law : PerturbationMechanism
            Its event must be the one reserved for this step.

        Returns
        -------
        float64 array
            What the law states, on its public grid. Eigengap, residual and a scale that depends on them stay inside.

        Raises
        ------
        StepMismatch
            As `release`. Nothing is released.
        """
        return self._answered(perturb(self._gate, self._rows, solver, law))

    def sequential(self, passes: SampledPasses, law: Gaussian) -> NDArray[np.float64]:
        """Take a whole run of sampled steps in one loop, and return its last states: the answer to all of them.

        Parameters
        ----------
        passes : SampledPasses
        law : Gaussian
            Of every step; the event of each must be the one reserved for it.

        Returns
        -------
        float64 array of shape (snapshots, d + k, k)
            As `dpca_tasks.privacy.sampled_loop.run_passes` states. Kept, as one answer, before it leaves.

        Raises
        ------
        StepMismatch
            When not all steps were reserved, or an unlike run was already answered. Nothing is released.
        """
        return self._answered(sequential(self._gate, self._rows, passes, law))

    def _answered(self, answer: NDArray[np.float64]) -> NDArray[np.float64]:
        self._free_rows()
        return answer

    def _free_rows(self) -> None:
        """Keep no rows on the workers after the last answer."""
        if not self._gate.steps_left:
            self._rows.residency.clear()
