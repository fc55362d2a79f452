"""The trust boundary: the only way from private rows to a number.

A mechanism asks the curator for a noisy sum and gets nothing else. The curator checks that the step was
reserved, sums exactly, adds keyed noise, keeps the noised array as the one answer to that step, and returns
what it reads back.

>>> import numpy as np
>>> from dpca_tasks.blocks import ArrayBlocks
>>> from dpca_tasks.privacy import events
>>> from dpca_tasks.privacy.noise import Symmetric
>>> from dpca_tasks.queries.second_moment import SecondMoment
>>> reservation = InMemoryReservation(event=events.gaussian(4.0))
>>> curator = Curator(ArrayBlocks(np.eye(3)), reservation)
>>> query = SecondMoment(n_features=3, clip_norm=1.0, relation="add_remove", bits=12)
>>> curator.release(query, Symmetric(noise_multiplier=4.0)).shape
(3, 3)
"""

import dataclasses
import hashlib
import itertools
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.blocks import MAX_NOISE_STEPS, BlockSource
from dpca_tasks.errors import InvalidInput, StepMismatch
from dpca_tasks.exact_sum import exact_sum
from dpca_tasks.layouts import unpack_symmetric
from dpca_tasks.privacy import events
from dpca_tasks.privacy.keystream import SecretKey, subkey
from dpca_tasks.privacy.noise import Gaussian, NoiseLaw
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.locally_noised import LocallyNoised
from dpca_tasks.queries.poisson_sampled import PoissonSampled
from dpca_tasks.queries.sampled_passes import SampledPasses
from dpca_tasks.sequential_sum import run_passes

if TYPE_CHECKING:
    from distributed import Client

Arrays = dict[str, NDArray[Any]]
Query = TypeVar("Query", bound=RowSum)

_ANSWER, _QUESTION, _PUBLIC = "answer", "question", "public."


class Reservation(Protocol):
    """A charged release: its event, its secret key, and the durable answers of its steps."""

    @property
    def release_id(self) -> str: ...  # noqa: D102
    @property
    def event(self) -> events.Event: ...  # noqa: D102
    @property
    def key(self) -> bytes: ...  # noqa: D102

    def kept(self, step: int, /) -> Arrays | None:
        """Return the arrays that were kept for a step, or None."""

    def keep(self, step: int, arrays: Mapping[str, NDArray[Any]], /) -> Arrays:
        """Keep a step's arrays unless it has some already; return the ones that stand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InMemoryReservation:
    """A reservation without a ledger: for arrays in memory, tests and experiments.

    The key comes from the operating system. Tests inject one; nothing else should.
    """

    event: events.Event
    release_id: str = "in-memory"
    key: bytes = field(default_factory=lambda: os.urandom(32), repr=False)
    steps: dict[int, Arrays] = field(default_factory=dict, repr=False)

    def kept(self, step: int, /) -> Arrays | None:
        """Return the arrays that were kept for a step, or None."""
        return self.steps.get(step)

    def keep(self, step: int, arrays: Mapping[str, NDArray[Any]], /) -> Arrays:
        """Keep a step's arrays unless it has some already; return the ones that stand."""
        return self.steps.setdefault(step, dict(arrays))


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
        self._step = 0

    def settled(self, query: Query) -> Query:
        """Return the query of the next step with the public inputs that an earlier run kept, if one did.

        Public inputs computed again may differ in their last bits; a resumed release goes on from the kept
        ones.
        """
        kept = self._reservation.kept(self._step)
        if kept is None:
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
        step = self._step
        if law.layout != query.layout.kind:
            raise InvalidInput(
                f"a {law.layout} noise law cannot noise a {query.layout.kind} statistic; use its own law."
            )
        if step >= events.count_steps(self._reservation.event):
            raise StepMismatch(f"step {step} was not reserved; plan and reserve every step before the release.")
        if events.step_at(self._reservation.event, step) != query.event_of(law.event):
            raise StepMismatch(f"step {step} asks for another event than the one reserved; plan it anew.")
        steps_std = _steps_std(query, law)
        question = self._question(query, law, steps_std)
        kept = self._reservation.kept(step)
        if kept is None:
            kept = self._reservation.keep(step, self._answer(query, law, steps_std, question))
        if kept[_QUESTION].tobytes() != question:
            raise StepMismatch(f"step {step} was answered for another question; nothing more leaves this release.")
        self._step += 1
        answer = kept[_ANSWER] / query.steps_per_unit * query.unit
        return unpack_symmetric(answer, query.layout.order) if query.layout.kind == "symmetric" else answer

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
            As `dpca_tasks.sequential_sum.run_passes` states. Kept, as one answer, before it leaves.

        Raises
        ------
        StepMismatch
            When not all steps were reserved, or an unlike run was already answered. Nothing is released.
        """
        step, event = self._step, passes.query.event_of(law.event)
        reserved = itertools.islice(events.steps(self._reservation.event), step, step + passes.steps)
        if sum(1 for one in reserved if one == event) < passes.steps:
            raise StepMismatch(f"{passes.steps} steps from step {step} were not all reserved so; plan them anew.")
        steps_std = _steps_std(passes.query, law)
        question = self._question(passes, law, steps_std)
        kept = self._reservation.kept(step)
        if kept is None:
            noise_key = subkey(self._reservation.key, label="noise", info=question)
            states = run_passes(
                self._source, passes, law, coin_key=self._coin_key(), noise_key=noise_key, std=steps_std
            )
            kept = self._reservation.keep(step, {_ANSWER: states, _QUESTION: np.frombuffer(question, np.uint8)})
        if kept[_QUESTION].tobytes() != question:
            raise StepMismatch(f"step {step} was answered for another question; nothing more leaves this release.")
        self._step += passes.steps
        return kept[_ANSWER]

    def _coin_key(self) -> SecretKey:
        return subkey(self._reservation.key, label="coins", info=self._step.to_bytes(8, "little"))

    def _answer(self, query: RowSum, law: NoiseLaw, steps_std: float, question: bytes) -> Arrays:
        noise_key = subkey(self._reservation.key, label="noise", info=question)
        if isinstance(query, PoissonSampled):
            query = dataclasses.replace(query, coin_key=self._coin_key())
        if isinstance(query, LocallyNoised):
            query = dataclasses.replace(query, noise_key=noise_key, noise_std=steps_std)
        answer = exact_sum(self._source, query, client=self._client, progress=self._progress)
        if not isinstance(query, LocallyNoised):
            answer += law.draw(noise_key, query.layout.order, scale_in_steps=steps_std)
        public = {_PUBLIC + name: value for name, value in query.public_inputs().items()}
        return {_ANSWER: answer, _QUESTION: np.frombuffer(question, np.uint8), **public}

    def _question(self, query: RowSum | SampledPasses, law: NoiseLaw, steps_std: float) -> bytes:
        hasher = hashlib.sha256()
        for part in (
            bytes.fromhex(self._source.content),
            self._step.to_bytes(8, "little"),
            query.digest(),
            type(law).__name__.encode(),
            steps_std.hex().encode(),
        ):
            hasher.update(len(part).to_bytes(8, "little"))
            hasher.update(part)
        return hasher.digest()


def _steps_std(query: RowSum, law: NoiseLaw) -> float:
    """Return the noise scale in grid steps, rounded up."""
    scale = math.nextafter(law.noise_multiplier * query.sensitivity(law.norm), math.inf) * query.steps_per_unit
    if not 0 < scale <= MAX_NOISE_STEPS:
        raise InvalidInput(f"a noise scale of {scale:.3g} grid steps is outside 0 .. 2^28; take a coarser grid.")
    return scale
