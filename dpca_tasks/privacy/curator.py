"""The curator, the only interface through which a mechanism gets numbers that depend on private rows.

For each request the curator checks that the step was charged (reserved), sums over the rows exactly, and adds keyed
noise. It stores the noised array as the only answer to this step, and returns the array as read back from storage. The
curator has one method for each kind of answer. The table of `dpca_tasks.privacy.gate` lists the methods with their
proofs.

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
    """The only object that answers requests about private rows: it answers each step of a charged release once.

    Parameters
    ----------
    source : BlockSource
        The private rows.
    reservation : Reservation
        The charged event, and the storage of answers.
    client : distributed.Client, optional
        The cluster that sums the blocks of rows; None sums them in this process.
    progress : callable, optional
        Called during a sum with the number of finished partitions and the number of all partitions. Both are public.

    Notes
    -----
    At most one noised array is published for each step of a release. The noise of a step is a pseudo-random function of
    the release's key and of everything that determines the answer: content of the snapshot, step, query with its public
    inputs, noise distribution and scale. A stored answer is read back and never computed again, so a resumed release
    returns the same answers.
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
        """Return the query of the next step, with the public inputs that an earlier run stored, if any.

        If public inputs are computed again, their last bits may differ. So a resumed release uses the stored inputs. If
        ``step`` is given, the curator first moves to this step.
        """
        if step is not None:
            self._gate.move_to(step)
        return self._gate.with_stored_inputs(query)

    def release(self, query: RowSum, distribution: NoiseDistribution) -> NDArray[np.float64]:
        """Answer the next step with a noisy sum over the rows.

        Parameters
        ----------
        query : RowSum
            The sum to release.
        distribution : NoiseDistribution
            The noise. Its event must be the event that was charged for this step, and it must have the layout of the
            query.

        Returns
        -------
        float64 array, data units
            The full matrix or tensor for a symmetric layout or a cube, else the packed coordinates.

        Raises
        ------
        StepMismatch
            When the step was not charged, or was already answered for a different request. Nothing is released.
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
        """Answer the next step with several noisy sums, the parts of a joint statistic.

        Parameters
        ----------
        query : JointSum
            The joint statistic.
        distribution : JointGaussian
            The noise. Its event must be the event that was charged for this step.

        Returns
        -------
        dict of str to float64 array, data units
            Each part by its name, in the form in which `release` returns a sum of the part's layout.

        Raises
        ------
        StepMismatch
            As for `release`. Nothing is released.
        """
        request = self._gate.admit(query, distribution, part_scales_in_steps)
        packed = self._load_or_compute(request, lambda: self._noised_parts(request))
        return {name: part_in_data_units(part, query.parts[name]) for name, part in request.query.split(packed).items()}

    def release_tiles(self, query: TiledSum, distribution: JointGaussian) -> "TiledAnswer":
        """Answer the next step with a joint statistic that is too large for memory, in tiles (ranges of items).

        Parameters
        ----------
        query : TiledSum
            The joint statistic, which has parts for each item.
        distribution : JointGaussian
            The noise. Its event must be the event that was charged for this step.

        Returns
        -------
        TiledAnswer
            An object that computes, stores and reads one tile at a time. All tiles together are one release, with the
            same bits as the answer of `release_parts`.

        Raises
        ------
        StepMismatch
            As for `release`. Nothing is released.

        Notes
        -----
        The noise of a coordinate is a function of the request's key and of the coordinate's index in the whole
        statistic. So the noise does not depend on the division into tiles. If one tile has all items, its answer is
        stored as the answer of the step. Otherwise the public inputs and the bounds of the tiles are stored as the
        answer of the step, and each tile separately. A resumed release continues from these.
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

        The operator multiplies directions with the matrix that `release` would return. A step is answered in one of the
        two forms, never in both.

        Parameters
        ----------
        query : SecondMoment or CentredMoment
            The second moment to release.
        distribution : Symmetric
            The noise. Its event must be the event that was charged for this step.

        Returns
        -------
        NoisedOperator
            The operator, which may be applied to public directions any number of times. The notes of its class prove
            that all products together are one release. The first product reads the rows and draws the noise.

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
        """Answer a round of a joint release over several sites: this site's noisy sum, under a mask.

        Parameters
        ----------
        query : RowSum
            The sum to which all sites contribute.
        noise : Share
            This site's share of the noise. Its event is the event of the shares of all honest sites together. The same
            event must have been charged for each attempt of each round.
        address : Address
            The round and the attempt. Rounds may come in any order: a restarted site continues at any round.
        seeds : Masks
            The seeds of the masks that this site shares with the other sites of the roster.

        Returns
        -------
        Message
            The noised sum under a mask. For one roster, every attempt of a round sends the same noised sum under
            another mask. For another roster, a round uses fresh noise and another charged step.

        Raises
        ------
        StepMismatch
            As for `release`. Also when all charged attempts of the round were used for other rosters. Nothing is sent.

        Notes
        -----
        The message is the sum of three terms modulo ``2^64``: the site's weighted sum, its keyed noise, and a mask. The
        noised sum is stored as the answer of the step and never sent unmasked. A round has one charged step for each
        roster that may be tried in the round. The noise is a function of the roster, so another set of sites has other
        noise and another charge.
        """
        roster = noise.roster
        if seeds.site != noise.site:
            raise InvalidInput(
                f"the seeds of site {seeds.site!r} do not mask messages of site {noise.site!r}, because the masks "
                f"would not cancel; pass the seeds of site {noise.site!r}."
            )
        check_room(roster, steps_per_unit=query.steps_per_unit)  # the norm of a record's contribution is at most this
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
        """Answer the next step with random directions, drawn by the exponential mechanism.

        Parameters
        ----------
        score : RowSum
            The query for a symmetric matrix S. Orthonormal directions V have the score ``tr(V^T S V)``.
        mechanism : DirectionMechanism
            The mechanism that draws directions with a density that grows with the score. Its event must be the event
            that was charged for this step.

        Returns
        -------
        float64 array of shape (k, d)
            The directions as rows on a public grid; they are orthonormal up to the rounding to this grid. The notes of
            `dpca_tasks.noise.bingham` state the limits of a sampler in floating point.

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
        """Answer the next step with the leading directions of the rows plus noise.

        Parameters
        ----------
        solver : Eigensolver
            The eigensolver, which computes the directions in a public number of passes over the rows.
        mechanism : PerturbationMechanism
            The mechanism that adds noise to the directions. Its event must be the event that was charged for this step.

        Returns
        -------
        float64 array
            The output of the mechanism, on a public grid. The exact eigengap, the residual of the eigensolver, and
            noise scales that depend on them are not released.

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
        """Answer all steps of an iteration with sampled records at once; only the states at its snapshots are released.

        Parameters
        ----------
        passes : SampledPasses
            The iteration: its query, the number of steps, and the steps at which a snapshot is taken.
        distribution : Gaussian
            The noise of every step. Its sampled event must be the event that was charged for each step.

        Returns
        -------
        float64 array of shape (snapshots, d + k, k)
            The result of `dpca_tasks.privacy.sampled_loop.run_passes`, stored as one answer before it is returned.

        Raises
        ------
        StepMismatch
            When not all steps were charged, or when a different request was already answered. Nothing is released.
        """
        request = self._gate.admit(passes, distribution, scale_in_steps, steps=passes.steps)

        def compute() -> NDArray[np.float64]:
            return run_passes(self._rows.source, request.query, request.distribution, self._gate.secrets(request))

        return self._load_or_compute(request, compute)

    def _sum(self, query: RowSum) -> NDArray[np.int64]:
        """Sum a query over the rows exactly; if more steps follow, the workers keep the rows in memory."""
        return self._rows.sum(query, keep=self._gate.steps_left > 1)

    def _noised_parts(self, request: Request[JointSum, JointGaussian]) -> NDArray[np.int64]:
        """Sum all parts of a joint statistic and add their noise, with a separate key for each part."""
        secrets, query = self._gate.secrets(request), request.query
        answer = self._sum(query.with_secrets(secrets))
        for (name, packed), scale in zip(query.split(answer).items(), request.numbers, strict=True):
            layout = query.parts[name].layout
            key = _part_key(secrets.noise, name)
            add_noise(packed, request.distribution.part(layout.kind), key, layout.order, scale_in_steps=scale)
        return answer

    def _noised_tile(self, request: Request[TiledSum, JointGaussian], tile: Tile) -> NDArray[np.int64]:
        """Sum one tile of a joint statistic, and add noise.

        Each coordinate gets the noise that it would get if the whole part were drawn at once.
        """
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
        """Load or compute the answer to a request; if no step is left, also free the rows in the workers' memory."""
        answer = self._gate.load_or_compute(request, compute)
        self._free_rows()
        return answer

    def _free_rows(self) -> None:
        """Free the rows in the workers' memory if no step is left."""
        if not self._gate.steps_left:
            self._rows.residency.clear()


class DisclosingCurator(Curator):
    """A curator that can also answer without noise, in steps that were charged as not private.

    `Curator` cannot answer without noise, and no noise distribution has std 0. An exact sum is published only if all of
    four conditions hold. (1) The privacy target sets ``i_know_this_is_not_private``. (2) The step was charged as
    ``non_private``, which a ledger permits only on explicit request, and which voids the budget. (3) This class was
    constructed with the acknowledgement. (4) `disclose` or `disclose_parts` is called.

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
        """Answer the next step with the exact sum over the rows, without noise.

        Returns
        -------
        float64 array, data units
            As from `Curator.release`, without the noise. Records are still clipped and rounded to the query's grid.

        Raises
        ------
        StepMismatch
            When the step was charged with another event, or was already answered for a different request.
        """
        return in_data_units(self._exact_answer(query), query)

    def disclose_parts(self, query: JointSum) -> dict[str, NDArray[np.float64]]:
        """Answer the next step with the exact parts of a joint statistic, without noise.

        Returns
        -------
        dict of str to float64 array, data units
            As from `Curator.release_parts`, without the noise. Ratings are still clipped, limited in number and rounded
            to their grids.

        Raises
        ------
        StepMismatch
            As for `disclose`.
        """
        parts = query.split(self._exact_answer(query))
        return {name: part_in_data_units(packed, query.parts[name]) for name, packed in parts.items()}

    def _exact_answer(self, query: RowSum) -> NDArray[np.int64]:
        """Return the answer to a request without noise: the exact sum, in grid steps."""
        request = self._gate.admit(query, NoNoise(), lambda *_: ())
        return self._load_or_compute(request, lambda: self._sum(request.query))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Site:
    """A site of a joint release that answers in this process; it implements `dpca_tasks.sites.rounds.Party`.

    Parameters
    ----------
    name : str
        The name of the site in the roster.
    curator : Curator
        The curator of the site's rows. Its charged event has one step for each attempt of each round.
    seeds : Masks
        The seeds of the masks that the site shares with the other sites.
    """

    name: str
    curator: Curator = field(repr=False)
    seeds: Masks = field(repr=False)

    def message(self, query: RowSum, *, roster: Roster, address: Address) -> Message:
        """Return the site's contribution to the sum of a query, with noise and under a mask."""
        kind = SHARES.get(query.layout.kind)
        if kind is None:
            raise InvalidInput(
                f"a statistic of layout {query.layout.kind} cannot be summed over sites; request a statistic of layout "
                f"{' or '.join(SHARES)}."
            )
        return self.curator.share(query, kind(roster=roster, site=self.name), address=address, seeds=self.seeds)

    def with_stored_inputs[Q: RowSum](self, query: Q, *, roster: Roster, index: int) -> Q:
        """Return the query of round ``index``, with the public inputs that an earlier run stored, if any."""
        return self.curator.with_stored_inputs(query, step=index * roster.attempts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TiledAnswer:
    """The answer to one step that is computed, stored and read in tiles, each for a range of items.

    Attributes
    ----------
    query : TiledSum
        The query of the step.
    tiles : tuple of Tile
        The tiles in order; each item is in exactly one tile.
    load : callable
        Returns the packed answer of a tile, in grid steps.
    """

    query: TiledSum
    tiles: tuple[Tile, ...]
    load: Callable[[Tile], NDArray[np.int64]] = field(repr=False)

    def read(self, at: int) -> dict[str, NDArray[np.float64]]:
        """Return the parts of the tile with index ``at`` by name, in data units.

        If the tile has no stored answer, it is computed and stored first. A part that is a stack of matrices has shape
        (items, order, order). A symmetric part is a full matrix, and other parts are packed.
        """
        tile = self.tiles[at]
        parts = self.query.split_tile(tile, self.load(tile))
        return {name: part_in_data_units(packed, self.query.parts[name]) for name, packed in parts.items()}

    def whole(self) -> dict[str, NDArray[np.float64]]:
        """Return the parts of all tiles together, as `Curator.release_parts` does, if they fit in memory."""
        read = [self.read(at) for at in range(len(self.tiles))]
        return {name: np.concatenate([parts[name] for parts in read if name in parts]) for name in read[0]}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """The private rows of a curator, and the cluster that sums over them; the parameters are as for `Curator`."""

    source: BlockSource = field(repr=False)
    client: "Client | None" = None
    progress: Callable[[int, int], None] | None = None
    residency: Residency = field(default_factory=Residency, repr=False)

    def sum(self, query: RowSum, *, keep: bool) -> NDArray[np.int64]:
        """Sum a query over the rows exactly. With ``keep``, the workers keep the rows in memory for later sums."""
        kept = self.residency if keep or self.residency.holds(self.source, query) else None
        return exact_sum(self.source, query, client=self.client, progress=self.progress, residency=kept)

    def sum_tile(self, query: TiledSum, tile: Tile, *, of: bytes) -> NDArray[np.int64]:
        """Sum a tiled statistic over the rows exactly, for the items of one tile.

        See `dpca_tasks.sums.exact_sum.tile_sum`.
        """
        return tile_sum(self.source, query, tile, of=of, client=self.client, residency=self.residency)

    def solve(self, solver: Eigensolver, start: SecretKey) -> Eigenpairs:
        """Compute the leading eigenpairs of the rows' second moment, from a random start drawn with a key."""
        return solver.solve(self.source, start, client=self.client, progress=self.progress, residency=self.residency)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoNoise:
    """The noise distribution of a request for an exact sum: no noise is added."""

    name: ClassVar[str] = "NoneType"
    norm: ClassVar[str] = "none"

    @property
    def event(self) -> events.Event:
        """The privacy event ``non_private``, which has no guarantee."""
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
