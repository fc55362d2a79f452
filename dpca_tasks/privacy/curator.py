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

import contextlib
import dataclasses
import itertools
import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting import events
from dpca_tasks.errors import InvalidInput, StepMismatch, StepTaken
from dpca_tasks.layouts import unpack_symmetric
from dpca_tasks.noise.bingham import STEPS_PER_UNIT, DirectionLaw
from dpca_tasks.noise.distributions import Gaussian, NoiseLaw, Symmetric, add_noise
from dpca_tasks.noise.keystream import SecretKey, subkey
from dpca_tasks.privacy.eigensolver import Eigensolver
from dpca_tasks.privacy.noised_directions import PerturbationLaw
from dpca_tasks.privacy.questions import Asked, Law, digest_of, forms_of, steps_std
from dpca_tasks.privacy.released_operator import NoisedOperator, Witness
from dpca_tasks.privacy.reservation import Arrays, Reservation
from dpca_tasks.privacy.sampled_loop import run_passes
from dpca_tasks.privacy.tiled_noise import NoiseOperator
from dpca_tasks.queries.augmented_moment import CentredMoment
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.locally_noised import LocallyNoised
from dpca_tasks.queries.operator_product import UnroundedProduct
from dpca_tasks.queries.poisson_sampled import PoissonSampled
from dpca_tasks.queries.sampled_passes import SampledPasses
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.blocks import BlockSource
from dpca_tasks.records.sources import snapshot_content
from dpca_tasks.sums.exact_sum import exact_sum
from dpca_tasks.sums.resident_rows import Residency

if TYPE_CHECKING:
    from distributed import Client

Query = TypeVar("Query", bound=RowSum | Eigensolver)
Statistic = TypeVar("Statistic", bound=RowSum | SampledPasses)
Noise = TypeVar("Noise", bound=NoiseLaw | None)

_ANSWER, _QUESTION, _PUBLIC = "answer", "question", "public."
_APPLIED = b"applied"


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
        Told the partitions done and the partitions in all, both public, as a sum proceeds.

    Notes
    -----
    For each (release, step) at most one noised array leaves. The noise of a step is a pseudo-random
    function of the release's key and of everything that determines the answer: snapshot content, step, query
    with its public inputs, law and scale. A step that is kept already is read back, not computed again, so a
    resumed release says the same.
    """

    def __init__(
        self,
        source: BlockSource,
        reservation: Reservation,
        *,
        client: "Client | None" = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._source = source
        self._reservation = reservation
        self._client = client
        self._progress = progress
        self._residency = Residency()
        self._step = 0
        self._open = -1  # the step that had no answer when its query was settled

    def settled(self, query: Query) -> Query:
        """Return the query of the next step with the public inputs that an earlier run kept, if one did.

        Public inputs computed again may differ in their last bits; a resumed release goes on from the kept
        ones.
        """
        kept = self._reservation.kept(self._step)
        if kept is None:
            self._open = self._step
            return query
        public = {name.removeprefix(_PUBLIC): value for name, value in kept.items() if name.startswith(_PUBLIC)}
        return dataclasses.replace(query, **public)  # type: ignore[arg-type]

    def release(self, query: RowSum, law: NoiseLaw) -> NDArray[np.float64]:
        """Return a noisy sum: the answer to the next step of the release.

        Parameters
        ----------
        query : RowSum
        law : NoiseLaw
            Its event must be the one reserved for this step, and its layout the query's.

        Returns
        -------
        float64 array, data units
            The full matrix for a symmetric layout, else the packed coordinates.

        Raises
        ------
        StepMismatch
            When the step was not reserved, or an unlike question was already answered in it. Nothing is
            released.
        """
        self._check(query, law)
        query, law = self._as_asked(query, law)
        std = steps_std(query, law)
        question = self._question(query, law, std)
        kept = self._settle(question, lambda: self._answer(query, law, std, question))
        return in_data_units(kept, query)

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
        self._check(query, law)
        query, law = self._as_asked(query, law)
        std = steps_std(query, law)
        question = self._question(query, law, std)
        step, self._step = self._step, self._step + 1

        def begin() -> NoiseOperator:
            key = subkey(self._reservation.key, label="noise", info=question)
            return NoiseOperator(law, key, order=query.layout.order, scale_in_steps=std, client=self._client)

        def sums(asked: UnroundedProduct) -> NDArray[np.int64]:
            return exact_sum(
                self._source, asked, client=self._client, progress=self._progress, residency=self._residency
            )

        def settle(witness: Witness) -> Witness:
            columns, images = witness
            made = arrays_of(images, question + _APPLIED) | {_PUBLIC + "directions": columns}
            kept = self._standing(step, question + _APPLIED, lambda: made)
            return kept[_PUBLIC + "directions"], kept[_ANSWER]

        return NoisedOperator(query, sums, begin, settle)

    def sample(self, score: RowSum, law: DirectionLaw) -> NDArray[np.float64]:
        """Return directions drawn by their score: the answer to the next step of the release.

        Parameters
        ----------
        score : RowSum
            A symmetric statistic of matrix S; orthonormal directions V have the score ``tr(V^T S V)``.
        law : DirectionLaw
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
        self._check(score, law)
        scale = math.nextafter(law.noise_multiplier * score.sensitivity(law.norm), math.inf)
        question = self._question(score, law, scale, *law.numbers)

        def draw() -> Arrays:
            matrix = score.matrix(self._sum(score))
            noise_key = subkey(self._reservation.key, label="noise", info=question)
            return arrays_of(law.draw(noise_key, matrix, scale=scale), question, score)

        return self._settle(question, draw) / STEPS_PER_UNIT

    def perturb(self, solver: Eigensolver, law: PerturbationLaw) -> NDArray[np.float64]:
        """Return leading directions with noise on top: the answer to the next step of the release.

        Parameters
        ----------
        solver : Eigensolver
            Which directions, found in a public number of passes over the rows.
        law : PerturbationLaw
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
        self._check(solver, law)
        question = self._question(solver, law, *law.numbers)

        def draw() -> Arrays:
            start, noise = (subkey(self._reservation.key, label=label, info=question) for label in ("start", "noise"))
            pairs = solver.solve(
                self._source, start, client=self._client, progress=self._progress, residency=self._residency
            )
            return arrays_of(law.draw(noise, solver, pairs), question, solver)

        return self._settle(question, draw)

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
        step, event = self._step, passes.query.event_of(law.event)
        reserved = itertools.islice(events.steps(self._reservation.event), step, step + passes.steps)
        if sum(map(operator.eq, reserved, itertools.repeat(event))) < passes.steps:
            raise StepMismatch(f"{passes.steps} steps from step {step} were not all reserved so; plan them anew.")
        passes, law = self._as_asked(passes, law)
        std = steps_std(passes, law)
        question = self._question(passes, law, std)

        def run() -> Arrays:
            noise_key = subkey(self._reservation.key, label="noise", info=question)
            coin_key = self._coin_key()
            return arrays_of(
                run_passes(self._source, passes, law, coin_key=coin_key, noise_key=noise_key, std=std), question
            )

        return self._settle(question, run, steps=passes.steps)

    def _check(self, query: RowSum | Eigensolver, law: NoiseLaw | DirectionLaw | PerturbationLaw) -> None:
        """Refuse a law that does not fit a statistic, and what was not reserved for the next step."""
        if law.layout != query.layout.kind:
            raise InvalidInput(
                f"a {law.layout} noise law cannot noise a {query.layout.kind} statistic; use its own law."
            )
        self._check_reserved(query.event_of(law.event))

    def _as_asked(self, query: Statistic, law: Noise) -> tuple[Statistic, Noise]:
        """Return query and law in the form in which the next step was kept, where an earlier version kept it."""
        kept = self._reservation.kept(self._step)
        if kept is None:
            return query, law
        stands = kept[_QUESTION].tobytes().removesuffix(_APPLIED)
        for form, drawn in forms_of(query, law):
            with contextlib.suppress(InvalidInput):  # a grid that holds no such noise
                numbers = () if drawn is None else (steps_std(form, drawn),)
                if self._question(form, drawn, *numbers) == stands:
                    return form, drawn
        return query, law

    def _check_reserved(self, event: events.Event) -> None:
        if self._step >= events.count_steps(self._reservation.event):
            raise StepMismatch(f"step {self._step} was not reserved; plan and reserve every step before the release.")
        if events.step_at(self._reservation.event, self._step) != event:
            raise StepMismatch(f"step {self._step} asks for another event than the one reserved; plan it anew.")

    def _check_charged(self, query: Asked) -> None:
        """Refuse sensitivities of another relation, and rows of another snapshot, than those that were charged."""
        charged = self._reservation.relation
        if query.relation != charged:
            raise StepMismatch(
                f"step {self._step} asks with sensitivities of relation {query.relation}, and {charged} was reserved; "
                "state the relation of the budget."
            )
        if self._reservation.content not in (None, snapshot_content(self._source)):
            raise StepMismatch(
                "these rows are not those of the snapshot that was reserved; restore its files, or ask for the "
                "present snapshot under another --run-key."
            )

    def _settle(self, question: bytes, make: Callable[[], Arrays], *, steps: int = 1) -> NDArray[Any]:
        """Return the one answer to the next steps: the kept one, or the one made and kept now."""
        kept = self._standing(self._step, question, make)
        self._step += steps
        if self._step >= events.count_steps(self._reservation.event):
            self._residency.clear()
        return kept[_ANSWER]

    def _standing(self, step: int, question: bytes, make: Callable[[], Arrays]) -> Arrays:
        """Return the arrays that stand for a step, kept before or made and kept now, if they answer the question."""
        kept = self._reservation.kept(step)
        if kept is None:
            kept = self._reservation.keep(step, make())
        if kept[_QUESTION].tobytes() != question:
            if step == self._open:
                raise StepTaken(f"step {step} was answered by another process in the meantime; run it again.")
            raise StepMismatch(f"step {step} was answered for another question; nothing more leaves this release.")
        return kept

    def _sum(self, query: RowSum) -> NDArray[np.int64]:
        """Sum a query; its rows stay on the workers while steps are left that may pass over them again."""
        last = self._step + 1 >= events.count_steps(self._reservation.event)
        stay = not last or self._residency.holds(self._source, query)
        return exact_sum(
            self._source,
            query,
            client=self._client,
            progress=self._progress,
            residency=self._residency if stay else None,
        )

    def _coin_key(self) -> SecretKey:
        return subkey(self._reservation.key, label="coins", info=self._step.to_bytes(8, "little"))

    def _answer(self, query: RowSum, law: NoiseLaw, std: float, question: bytes) -> Arrays:
        noise_key = subkey(self._reservation.key, label="noise", info=question)
        if isinstance(query, PoissonSampled):
            query = dataclasses.replace(query, coin_key=self._coin_key())
        if isinstance(query, LocallyNoised):
            query = dataclasses.replace(query, noise_key=noise_key, noise_std=std)
        answer = self._sum(query)
        if not isinstance(query, LocallyNoised):
            add_noise(answer, law, noise_key, query.layout.order, scale_in_steps=std)
        return arrays_of(answer, question, query)

    def _question(self, query: Asked, law: Law | None, *numbers: float) -> bytes:
        """Return the digest of all that determines an answer. None leaves without it, so charges are checked here."""
        self._check_charged(query)
        return digest_of(query, law, *numbers, content=self._source.content, step=self._step)


def in_data_units(answer: NDArray[np.int64], query: RowSum) -> NDArray[np.float64]:
    """Return a packed answer in grid steps as numbers in data units: the full matrix for a symmetric layout."""
    numbers = answer.astype(np.float64)
    numbers *= query.unit / query.steps_per_unit  # steps are a power of two: nothing is rounded twice
    return unpack_symmetric(numbers, query.layout.order) if query.layout.kind == "symmetric" else numbers


def arrays_of(answer: NDArray[Any], question: bytes, query: RowSum | Eigensolver | None = None) -> Arrays:
    """Return what is kept of a step: its answer, its question and its public inputs."""
    public = {} if query is None else query.public_inputs()
    kept = {_ANSWER: answer, _QUESTION: np.frombuffer(question, np.uint8)}
    return kept | {_PUBLIC + name: value for name, value in public.items()}
