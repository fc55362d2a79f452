"""The curator, the only interface through which a mechanism gets a number from private rows.

The curator checks that the step was reserved, sums exactly, adds keyed noise, and stores the noised array as the only
answer to that step. It returns the array as read back from storage. It has one method for each kind of answer; the
table of `dpca_tasks.privacy.gate` lists them with their proofs.

>>> from dpca_tasks.accounting import events
>>> from dpca_tasks.privacy.gate import InMemoryReservation
>>> from dpca_tasks.records.blocks import ArrayBlocks
>>> reservation = InMemoryReservation(event=events.gaussian(4.0))
>>> curator = Curator(ArrayBlocks(np.eye(3)), reservation)
>>> query = SecondMoment(n_features=3, clip_norm=1.0, relation="add_remove", bits=12)
>>> curator.release(query, Symmetric(noise_multiplier=4.0)).shape
(3, 3)
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting import events
from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.noise.bingham import STEPS_PER_UNIT, DirectionMechanism
from dpca_tasks.noise.distributions import Gaussian, JointGaussian, NoiseDistribution, Symmetric, add_noise
from dpca_tasks.noise.keystream import SecretKey, subkey
from dpca_tasks.privacy.eigensolver import Eigenpairs, Eigensolver
from dpca_tasks.privacy.gate import ANSWER, APPLIED, PUBLIC, TILED, Gate, Reservation
from dpca_tasks.privacy.noised_directions import PerturbationMechanism
from dpca_tasks.privacy.request import Request, in_data_units, part_in_data_units, part_scales_in_steps, scale_in_steps
from dpca_tasks.privacy.sampled_loop import run_passes
from dpca_tasks.privacy.tiled_noise import CheckColumns, NoisedOperator, NoiseOperator
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.joint_sum import JointSum, Tile, TiledSum
from dpca_tasks.queries.poisson_sampled import SampledPasses
from dpca_tasks.queries.second_moment import CentredMoment, SecondMoment
from dpca_tasks.records.blocks import BlockSource
from dpca_tasks.sites.roster import Address, Masks, Message, Roster, check_room, masked
from dpca_tasks.sites.rounds import SHARES, Share
from dpca_tasks.sums.exact_sum import exact_sum, tile_sum
from dpca_tasks.sums.partial_sums import Residency

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
    For each (release, step) at most one noised array is published. The noise of a step is a pseudo-random function of
    the release's key and of everything that determines the answer: snapshot content, step, query with its public
    inputs, noise distribution and scale. A stored step is read back, not computed again, so a resumed release gives the
    same answers.
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

        Public inputs that are computed again may differ in their last bits, so a resumed release uses the stored
        inputs.
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
        request = self._gate.admit(query, distribution, scale_in_steps)

        def compute() -> NDArray[np.int64]:
            secrets = self._gate.secrets(request)
            requested = request.query.with_secrets(secrets)
            answer = self._sum(requested)
            if not requested.noises_itself:
                scale = secrets.noise_scale
                add_noise(answer, request.distribution, secrets.noise, requested.layout.order, scale_in_steps=scale)
            return answer

        return in_data_units(self._load_or_compute(request, compute), request.query)

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
        request = self._gate.admit(query, distribution, part_scales_in_steps)
        packed = self._load_or_compute(request, lambda: self._noised_parts(request))
        return {name: part_in_data_units(part, query.parts[name]) for name, part in request.query.split(packed).items()}

    def release_tiles(self, query: TiledSum, distribution: JointGaussian) -> "TiledAnswer":
        """Answer the next step with the noisy parts of a statistic that is too large for memory, in tiles.

        Parameters
        ----------
        query : TiledSum
        distribution : JointGaussian
            Its event must be the one reserved for this step.

        Returns
        -------
        TiledAnswer
            Computes, stores and reads its tiles one at a time. Together they are one release, bit-identical to the
            answer of `release_parts`.

        Raises
        ------
        StepMismatch
            As for `release`. Nothing is released.

        Notes
        -----
        The noise of a coordinate is a function of the request's key and the coordinate's place in the whole statistic.
        So it is the same in any tile. A step is stored whole if one tile has all items. Otherwise its entry holds the
        public inputs and the bounds of the tiles, from which a resumed release continues.
        """
        request = self._gate.admit(query, distribution, part_scales_in_steps)
        requested = request.query
        if len(requested.tiles) == 1:
            whole = self._load_or_compute(request, lambda: self._noised_parts(request))
            return TiledAnswer(query=requested, tiles=requested.tiles, load=lambda tile: _cut(requested, whole, tile))
        now = np.array([tile.first for tile in requested.tiles])
        starts = self._gate.load_or_store(request, lambda: (now, requested.public_inputs()), mark=TILED)[
            ANSWER
        ].tolist()
        tiles = tuple(requested.tile(first, last) for first, last in pairwise([*starts, requested.n_features]))
        self._gate.advance(request)

        def load(tile: Tile) -> NDArray[np.int64]:
            at = tiles.index(tile)
            answer = self._gate.load_or_compute_tile(request, at, lambda: self._noised_tile(request, tile))
            if self._rows.progress is not None:
                self._rows.progress(at + 1, len(tiles))
            if tile == tiles[-1]:
                self._free_rows()
            return answer

        return TiledAnswer(query=requested, tiles=tiles, load=load)

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
        request = self._gate.admit(query, distribution, scale_in_steps)
        self._gate.advance(request)

        def begin() -> NoiseOperator:
            key, (scale,) = self._gate.key(request, "noise"), request.numbers
            order, client = request.query.layout.order, self._rows.client
            return NoiseOperator(request.distribution, key, order=order, scale_in_steps=scale, client=client)

        def load_or_store(check: CheckColumns) -> CheckColumns:
            columns, images = check
            stored = self._gate.load_or_store(request, lambda: (images, {"directions": columns}), mark=APPLIED)
            return stored[PUBLIC + "directions"], stored[ANSWER]

        return NoisedOperator(request.query, partial(self._rows.sum, keep=True), begin, load_or_store)

    def share(self, query: RowSum, noise: Share, *, address: Address, seeds: Masks) -> Message:
        """Answer a round of a joint release with this site's share of a sum, under a mask.

        Parameters
        ----------
        query : RowSum
        noise : Share
            This site's part of a roster's noise. Its event is the event of all honest parts together. It must be the
            one reserved for each attempt of each round.
        address : Address
            The round and the attempt, in any order: a restarted site continues at any round.
        seeds : Masks
            The seeds that this site shares with the other sites of the roster.

        Returns
        -------
        Message
            The same noised integers for each attempt of one roster, under a mask of the attempt. Another roster uses
            fresh noise and another of the round's reserved steps.

        Raises
        ------
        StepMismatch
            As for `release`; also when all reserved attempts of the round were for other rosters. Nothing is sent.

        Notes
        -----
        The message is the site's weighted sum plus its keyed noise plus a mask, modulo ``2^64``. The noised integers
        are stored as the answer of the step and are never sent unmasked; each attempt sends them under a fresh mask. A
        round has a step for each roster that is tried in it. The noise is a function of the roster, so another set of
        sites has other noise and another charge.
        """
        roster = noise.roster
        if seeds.site != noise.site:
            raise InvalidInput(
                f"the seeds of site {seeds.site!r} do not mask messages of site {noise.site!r}, because they would not "
                "cancel; pass the seeds of that site."
            )
        check_room(roster, steps_per_unit=query.steps_per_unit)  # a record's contribution has norm at most one unit
        first = address.round * roster.attempts
        steps = range(first, first + roster.attempts)
        request = self._gate.admit_among(steps, query, noise, _share_numbers, bound_to=roster.digest)

        def compute() -> NDArray[np.int64]:
            answer = self._sum(request.query)
            answer *= noise.weight
            key, scale = self._gate.key(request, "noise"), int(request.numbers[0])
            answer += noise.draw(key, request.query.layout.order, squared_scale=scale)
            return answer

        stored = self._load_or_compute(request, compute)
        mask = seeds.mask(address, roster=roster, size=stored.size)
        return Message(site=noise.site, address=address, roster_digest=roster.digest, words=masked(stored, mask))

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
            As for `release`. No direction is released.
        """
        request = self._gate.admit(score, mechanism, _direction_numbers)

        def compute() -> NDArray[np.int64]:
            matrix = request.query.matrix(self._sum(request.query))
            return request.distribution.draw(self._gate.key(request, "noise"), matrix, scale=request.numbers[0])

        return np.asarray(self._load_or_compute(request, compute) / STEPS_PER_UNIT)

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
            The output of the mechanism, on its public grid. Eigengap, residual and a scale that depends on them are not
            released.

        Raises
        ------
        StepMismatch
            As for `release`. Nothing is released.
        """
        request = self._gate.admit(solver, mechanism, lambda _, drawn: drawn.numbers)

        def compute() -> NDArray[np.float64]:
            pairs = self._rows.solve(request.query, self._gate.key(request, "start"))
            return request.distribution.draw(self._gate.key(request, "noise"), request.query, pairs)

        return self._load_or_compute(request, compute)

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
            The result of `dpca_tasks.privacy.sampled_loop.run_passes`, stored as one answer before it is returned.

        Raises
        ------
        StepMismatch
            When not all steps were reserved, or a different run was already answered. Nothing is released.
        """
        request = self._gate.admit(passes, distribution, scale_in_steps, steps=passes.steps)

        def compute() -> NDArray[np.float64]:
            return run_passes(self._rows.source, request.query, request.distribution, self._gate.secrets(request))

        return self._load_or_compute(request, compute)

    def _sum(self, query: RowSum) -> NDArray[np.int64]:
        """Sum a query exactly; the workers keep the rows if more steps follow."""
        return self._rows.sum(query, keep=self._gate.steps_left > 1)

    def _noised_parts(self, request: Request[JointSum, JointGaussian]) -> NDArray[np.int64]:
        """Sum all parts and add their noise, with a separate key for each part."""
        secrets, query = self._gate.secrets(request), request.query
        answer = self._sum(query.with_secrets(secrets))
        for (name, packed), scale in zip(query.split(answer).items(), request.numbers, strict=True):
            layout = query.parts[name].layout
            key = _part_key(secrets.noise, name)
            add_noise(packed, request.distribution.part(layout.kind), key, layout.order, scale_in_steps=scale)
        return answer

    def _noised_tile(self, request: Request[TiledSum, JointGaussian], tile: Tile) -> NDArray[np.int64]:
        """Sum a tile and add the noise that its coordinates have in the whole draw of each part."""
        secrets, requested = self._gate.secrets(request), request.query
        answer = self._rows.sum_tile(requested.with_secrets(secrets), tile, of=request.digest)
        scales = dict(zip(requested.parts, request.numbers, strict=True))
        for name, packed in requested.split_tile(tile, answer).items():
            layout = requested.parts[name].layout
            key = _part_key(secrets.noise, name)
            first, _ = requested.ranges(tile)[name]
            law = request.distribution.part(layout.kind)
            add_noise(packed, law, key, layout.order, scale_in_steps=scales[name], first=first)
        return answer

    def _load_or_compute(self, request: Request[Any, Any], compute: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """Load or compute the answer to a request, then free the rows on the workers if no step is left."""
        answer = self._gate.load_or_compute(request, compute)
        self._free_rows()
        return answer

    def _free_rows(self) -> None:
        """Free the rows in the workers' memory after the last answer."""
        if not self._gate.steps_left:
            self._rows.residency.clear()


class DisclosingCurator(Curator):
    """A curator that can also answer without noise, in steps that were reserved as not private.

    `Curator` has no such method, and no noise distribution has std 0. An exact sum is published only if all four
    conditions hold. (1) The target sets ``i_know_this_is_not_private``. (2) The step was reserved as ``non_private``,
    which a ledger grants on explicit request only and which voids the budget. (3) This class was constructed with the
    acknowledgement. (4) `disclose` is called.

    >>> from dpca_tasks.privacy.gate import InMemoryReservation
    >>> from dpca_tasks.records.blocks import ArrayBlocks
    >>> reservation = InMemoryReservation(event=events.non_private())
    >>> curator = DisclosingCurator(ArrayBlocks(np.eye(2)), reservation, i_know_this_is_not_private=True)
    >>> curator.disclose(SecondMoment(n_features=2, clip_norm=1.0, relation="add_remove", bits=12))
    array([[1., 0.],
           [0., 1.]])

    Parameters
    ----------
    source, reservation, **others
        As for `Curator`.
    i_know_this_is_not_private : bool
        The acknowledgement; must be True.

    Raises
    ------
    Refused
        When the acknowledgement is missing.
    """

    def __init__(
        self, source: BlockSource, reservation: Reservation, *, i_know_this_is_not_private: bool, **others: Any
    ) -> None:
        if i_know_this_is_not_private is not True:
            raise Refused("an answer without noise is not private; acknowledge this, or use a mechanism with noise.")
        super().__init__(source, reservation, **others)

    def disclose(self, query: RowSum) -> NDArray[np.float64]:
        """Answer the next step with the exact sum, without noise.

        Returns
        -------
        float64 array, data units
            As from `Curator.release`, without the noise. Records are still clipped and on the query's grid.

        Raises
        ------
        StepMismatch
            When the step was reserved for another event, or was already answered for a different request.
        """
        return in_data_units(self._exact_answer(query), query)

    def disclose_parts(self, query: JointSum) -> dict[str, NDArray[np.float64]]:
        """Answer the next step with the exact parts of a statistic, without noise.

        Returns
        -------
        dict of str to float64 array, data units
            As from `Curator.release_parts`, without the noise; ratings are still clipped, counted and on their grids.

        Raises
        ------
        StepMismatch
            As for `disclose`.
        """
        parts = query.split(self._exact_answer(query))
        return {name: part_in_data_units(packed, query.parts[name]) for name, packed in parts.items()}

    def _exact_answer(self, query: RowSum) -> NDArray[np.int64]:
        """Return the stored answer of a step without noise: the exact sum, in grid steps."""
        request = self._gate.admit(query, NoNoise(), lambda *_: ())
        return self._load_or_compute(request, lambda: self._sum(request.query))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Site:
    """A site that answers in this process; see `dpca_tasks.sites.rounds.Party`.

    Parameters
    ----------
    name : str
    curator : Curator
        The curator of its rows and its reservation of the joint event, with one step for each attempt of each round.
    seeds : Masks
    """

    name: str
    curator: Curator = field(repr=False)
    seeds: Masks = field(repr=False)

    def message(self, query: RowSum, *, roster: Roster, address: Address) -> Message:
        """Return the site's masked share of a query's sum."""
        kind = SHARES.get(query.layout.kind)
        if kind is None:
            raise InvalidInput(
                f"a statistic of layout {query.layout.kind} has no shares; request one of {', '.join(SHARES)}."
            )
        return self.curator.share(query, kind(roster=roster, site=self.name), address=address, seeds=self.seeds)

    def with_stored_inputs[Q: RowSum](self, query: Q, *, roster: Roster, index: int) -> Q:
        """Return the query of a round with the public inputs that an earlier run stored, if any."""
        return self.curator.with_stored_inputs(query, step=index * roster.attempts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TiledAnswer:
    """The answer to one step, in tiles.

    Attributes
    ----------
    tiles : tuple of Tile
        The tiles in order; together they have every item once.
    """

    query: TiledSum
    tiles: tuple[Tile, ...]
    load: Callable[[Tile], NDArray[np.int64]] = field(repr=False)

    def read(self, at: int) -> dict[str, NDArray[np.float64]]:
        """Return the parts of a tile by name, in data units; compute and store it if it has no stored answer.

        A stack is of shape (items, order, order); other parts are packed, or a full matrix for a symmetric part.
        """
        tile = self.tiles[at]
        parts = self.query.split_tile(tile, self.load(tile))
        return {name: part_in_data_units(packed, self.query.parts[name]) for name, packed in parts.items()}

    def whole(self) -> dict[str, NDArray[np.float64]]:
        """Return all tiles together, as `release_parts` does, for statistics that fit in memory."""
        read = [self.read(at) for at in range(len(self.tiles))]
        return {name: np.concatenate([parts[name] for parts in read if name in parts]) for name in read[0]}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Private rows and the cluster that sums them, with the parameters of `Curator`."""

    source: BlockSource = field(repr=False)
    client: "Client | None" = None
    progress: Callable[[int, int], None] | None = None
    residency: Residency = field(default_factory=Residency, repr=False)

    def sum(self, query: RowSum, *, keep: bool) -> NDArray[np.int64]:
        """Sum a query exactly. With ``keep`` the workers keep the rows in memory for later sums."""
        kept = self.residency if keep or self.residency.holds(self.source, query) else None
        return exact_sum(self.source, query, client=self.client, progress=self.progress, residency=kept)

    def sum_tile(self, query: TiledSum, tile: Tile, *, of: bytes) -> NDArray[np.int64]:
        """Sum the items of a tile exactly; see `dpca_tasks.sums.exact_sum.tile_sum`."""
        return tile_sum(self.source, query, tile, of=of, client=self.client, residency=self.residency)

    def solve(self, solver: Eigensolver, start: SecretKey) -> Eigenpairs:
        """Compute leading eigenpairs from a keyed random start."""
        return solver.solve(self.source, start, client=self.client, progress=self.progress, residency=self.residency)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoNoise:
    """The noise distribution of a request without noise."""

    name: ClassVar[str] = "NoneType"
    norm: ClassVar[str] = "none"

    @property
    def event(self) -> events.Event:
        """The event without a guarantee."""
        return events.non_private()


def _part_key(noise: SecretKey, name: str) -> SecretKey:
    return subkey(noise.secret, label="part", info=name.encode())


def _cut(query: TiledSum, whole: NDArray[np.int64], tile: Tile) -> NDArray[np.int64]:
    ranges, parts = query.ranges(tile), query.split(whole)
    return np.concatenate([parts[name][start:stop] for name, (start, stop) in ranges.items()])


def _direction_numbers(score: RowSum, mechanism: DirectionMechanism) -> tuple[float, ...]:
    scale = math.nextafter(mechanism.noise_multiplier * score.sensitivity(mechanism.norm), math.inf)
    return (scale, *mechanism.numbers)


def _share_numbers(query: RowSum, noise: Share) -> tuple[float, ...]:
    scale = noise.squared_scale(query.sensitivity("l2") * query.steps_per_unit)
    return (float(scale), float(noise.weight), float(noise.roster.honest))
