"""The curator: the only interface through which a mechanism gets a number from private rows.

The curator checks that the step was reserved, sums exactly, adds keyed noise, stores the noised array as the only
answer to that step, and returns what it reads back.

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
from dpca_tasks.privacy.ways.release_tiles import TiledAnswer, release_tiles
from dpca_tasks.privacy.ways.sample import sample
from dpca_tasks.privacy.ways.sequential import sequential
from dpca_tasks.privacy.ways.share import share
from dpca_tasks.queries.augmented_moment import CentredMoment
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.joint_sum import JointSum
from dpca_tasks.queries.sampled_passes import SampledPasses
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.queries.tiled_sum import TiledSum
from dpca_tasks.records.blocks import BlockSource
from dpca_tasks.sites.masks import Masks
from dpca_tasks.sites.opening import Address, Message
from dpca_tasks.sites.shares import Share

if TYPE_CHECKING:
    from distributed import Client

Query = TypeVar("Query", bound=RowSum | Eigensolver)


class Curator:
    """Answer the steps of one reserved release in order, each once.

    Parameters
    ----------
    source : BlockSource
        The private rows.
    reservation : Reservation
        The charged event, and the storage of answers.
    client : distributed.Client, optional
        The cluster that sums the blocks; None sums them in this process.
    progress : callable, optional
        Called with the number of finished partitions and the number of all, both public, during a sum.

    Notes
    -----
    For each (release, step) at most one noised array leaves. The noise of a step is a pseudo-random function of the
    release's key and of everything that determines the answer: snapshot content, step, query with its public inputs,
    noise distribution and scale. A stored step is read back, not computed again, so a resumed release gives the same
    answers.
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

    def with_stored_inputs(self, query: Query, *, step: int | None = None) -> Query:
        """Return the query of the next step, or of a given one, with the public inputs that an earlier run stored.

        Public inputs that are computed again may differ in their last bits, so a resumed release uses the stored ones.
        """
        if step is not None:
            self._gate.move_to(step)
        return self._gate.with_stored_inputs(query)

    def release(self, query: RowSum, distribution: NoiseDistribution) -> NDArray[np.float64]:
        """Answer the next step with a noisy sum.

        Parameters
        ----------
        query : RowSum
        distribution : NoiseDistribution
            Its event must be the one reserved for this step, and its layout that of the query.

        Returns
        -------
        float64 array, data units
            The full matrix or tensor for a symmetric layout or a cube, else the packed coordinates.

        Raises
        ------
        StepMismatch
            When the step was not reserved, or was already answered for a different request. Nothing is released.
        """
        return self._answered(release(self._gate, self._rows, query, distribution))

    def release_parts(self, query: JointSum, distribution: JointGaussian) -> dict[str, NDArray[np.float64]]:
        """Answer the next step with the noisy parts of a statistic.

        Parameters
        ----------
        query : JointSum
        distribution : JointGaussian
            Its event must be the one reserved for this step.

        Returns
        -------
        dict of str to float64 array, data units
            Each part by its name, in the form in which `release` returns a sum of its layout.

        Raises
        ------
        StepMismatch
            As for `release`. Nothing is released.
        """
        parts = release_parts(self._gate, self._rows, query, distribution)
        self._free_rows()
        return parts

    def release_tiles(self, query: TiledSum, distribution: JointGaussian) -> TiledAnswer:
        """Answer the next step with the noisy parts of a statistic that is too large to be held, in tiles.

        Parameters
        ----------
        query : TiledSum
        distribution : JointGaussian
            Its event must be the one reserved for this step.

        Returns
        -------
        TiledAnswer
            Computes, stores and reads its tiles one at a time. Together they are the answer of `release_parts`, to the
            bit, and one release.

        Raises
        ------
        StepMismatch
            As for `release`. Nothing is released.
        """
        return release_tiles(self._gate, self._rows, query, distribution, done=self._free_rows)

    def release_operator(self, query: SecondMoment | CentredMoment, distribution: Symmetric) -> NoisedOperator:
        """Answer the next step with a noisy matrix that is too large to form, as an operator.

        The matrix is the one that `release` would return. A step is answered in one of the two forms, never in both.

        Parameters
        ----------
        query : SecondMoment or CentredMoment
        distribution : Symmetric
            Its event must be the one reserved for this step.

        Returns
        -------
        NoisedOperator
            Applies the matrix to public directions any number of times; its notes prove that this is one release. The
            first application reads the rows and draws the noise.

        Raises
        ------
        StepMismatch
            As for `release`. Nothing is released.
        """
        return release_operator(self._gate, self._rows, query, distribution)

    def share(self, query: RowSum, noise: Share, *, address: Address, seeds: Masks) -> Message:
        """Answer a round of a joint release with this site's share of a sum, under a mask.

        Parameters
        ----------
        query : RowSum
        noise : Share
            This site's part of a roster's noise. Its event, which is that of all honest parts together, must be the one
            reserved for each attempt of each round.
        address : Address
            The round and the attempt, in any order: a restarted site goes on at any round.
        seeds : Masks
            The seeds that this site shares with the others of the roster.

        Returns
        -------
        Message
            The same noised integers for each attempt of one roster, under a mask of the attempt. Another roster takes
            fresh noise and another of the round's reserved steps.

        Raises
        ------
        StepMismatch
            As for `release`; also when all reserved attempts of the round were for other rosters. Nothing leaves.
        """
        message = share(self._gate, self._rows, query, noise, address=address, seeds=seeds)
        self._free_rows()
        return message

    def sample(self, score: RowSum, mechanism: DirectionMechanism) -> NDArray[np.float64]:
        """Answer the next step with directions drawn by their score.

        Parameters
        ----------
        score : RowSum
            A symmetric statistic of matrix S; orthonormal directions V have the score ``tr(V^T S V)``.
        mechanism : DirectionMechanism
            Its event must be the one reserved for this step.

        Returns
        -------
        float64 array of shape (k, d)
            Rows on a public grid, orthonormal up to its rounding. The notes of `dpca_tasks.noise.bingham` state the
            limits of the sampler's floating point.

        Raises
        ------
        StepMismatch
            As for `release`. No direction leaves.
        """
        return self._answered(sample(self._gate, self._rows, score, mechanism))

    def perturb(self, solver: Eigensolver, mechanism: PerturbationMechanism) -> NDArray[np.float64]:
        """Answer the next step with the leading directions plus noise.

        Parameters
        ----------
        solver : Eigensolver
            Computes the directions in a public number of passes over the rows.
        mechanism : PerturbationMechanism
            Its event must be the one reserved for this step.

        Returns
        -------
        float64 array
            The output of the mechanism, on its public grid. Eigengap, residual and a scale that depends on them do not
            leave.

        Raises
        ------
        StepMismatch
            As for `release`. Nothing is released.
        """
        return self._answered(perturb(self._gate, self._rows, solver, mechanism))

    def sequential(self, passes: SampledPasses, distribution: Gaussian) -> NDArray[np.float64]:
        """Answer all steps of a sampled run with the states at its snapshots.

        Parameters
        ----------
        passes : SampledPasses
        distribution : Gaussian
            The noise of every step. The event of each step must be the one reserved for it.

        Returns
        -------
        float64 array of shape (snapshots, d + k, k)
            The result of `dpca_tasks.privacy.sampled_loop.run_passes`, stored as one answer before it leaves.

        Raises
        ------
        StepMismatch
            When not all steps were reserved, or a different run was already answered. Nothing is released.
        """
        return self._answered(sequential(self._gate, self._rows, passes, distribution))

    def _answered(self, answer: NDArray[np.float64]) -> NDArray[np.float64]:
        self._free_rows()
        return answer

    def _free_rows(self) -> None:
        """Free the rows that the workers hold, after the last answer."""
        if not self._gate.steps_left:
            self._rows.residency.clear()
