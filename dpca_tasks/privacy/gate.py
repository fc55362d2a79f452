"""The gate: the checks before any number that depends on private rows leaves the trust boundary.

Only the gate uses the key and the stored answers of a release. `Curator` and `DisclosingCurator` have one method for
each kind of answer (export):

====================  ==========================  =============================  ===================================
Export                Charge                      Result                         Proof
====================  ==========================  =============================  ===================================
``release``           one step: the event of      a sum with keyed noise, both   ``privacy.request``: the row, and
                      its noise, sampled or not   integers on the query's grid   the notes of the query's class
``release_parts``     one step: the event of      several such sums, each with   ``queries.joint_sum``, and the row
                      one joint noise             separate noise and grid
``release_tiles``     one step: the event of      the same sums, for some items  ``queries.joint_sum``: together the
                      one joint noise             at a time                      answer of ``release_parts``
``release_operator``  one step: the event of      products with the matrix that  ``privacy.tiled_noise``
                      its noise                   ``release`` would return
``share``             one step: the joint event   one site's sum with its share  ``accounting.calibration``,
                      of all honest shares        of noise, under a mask         and the row
``sample``            one step: (epsilon, delta)  directions drawn by score      ``noise.bingham``, and the row
``perturb``           one step: (epsilon, delta)  directions plus noise          ``privacy.noised_directions``
``sequential``        every step of a run         the states at the snapshots    ``privacy.sampled_loop``
``disclose``          ``non_private``: it voids   a sum without noise            none: it is not private
                      the budget
``disclose_parts``    ``non_private``: it voids   several such sums              none: it is not private
                      the budget
====================  ==========================  =============================  ===================================

Each export calls the gate in a fixed order. `Gate.admit` compares the request with the charged event, the neighboring
relation and the charged snapshot, checks that the table of sensitivities permits it, and computes its digest.
`Gate.key` derives the keys of the request. `Gate.load_or_compute` stores the answer, and returns it as read back from
storage.

A `Reservation` is the interface of a charged release. `InMemoryReservation` is an implementation without a ledger.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting import events
from dpca_tasks.accounting.events import Relation
from dpca_tasks.errors import StepMismatch, StepTaken
from dpca_tasks.noise.keystream import SecretKey, subkey
from dpca_tasks.privacy.request import Drawn, PublicQuery, Request, check_row, make_request
from dpca_tasks.queries.base import StepSecrets
from dpca_tasks.records.blocks import BlockSource, snapshot_content

ANSWER, DIGEST, PUBLIC = "answer", "question", "public."
"""Names under which the arrays of a step are stored; they never change."""
APPLIED, TILED = b"applied", b"tiled"
"""Suffixes of a stored digest, for an answer that is used as an operator, and for an answer that is stored in tiles."""

Arrays = dict[str, NDArray[Any]]
"""The stored arrays of a step, by name."""

type Numbers[Q, L] = Callable[[Q, L], tuple[float, ...]]
"""A function of a query and a noise distribution that returns the numbers of the noise, such as its scale."""


class Reservation(Protocol):
    """The interface of a charged release, with its event, neighboring relation, snapshot, key and stored answers."""

    @property
    def release_id(self) -> str: ...  # noqa: D102
    @property
    def event(self) -> events.Event: ...  # noqa: D102
    @property
    def relation(self) -> Relation: ...  # noqa: D102
    @property
    def key(self) -> bytes: ...  # noqa: D102

    @property
    def content(self) -> str | None:
        """The content digest of the charged snapshot, which is secret; None if the rows are in no catalog."""

    def kept(self, step: int, /) -> Arrays | None:
        """Return the stored arrays of a step, or None if nothing is stored."""

    def keep(self, step: int, arrays: Mapping[str, NDArray[Any]], /) -> Arrays:
        """Store the arrays of a step, unless arrays are already stored for it; return the stored arrays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InMemoryReservation:
    """A reservation without a ledger, for arrays in memory, tests and experiments.

    Without ``content``, the reservation accepts any rows. By default the key is random bytes of the operating system;
    only tests may pass a key.
    """

    event: events.Event
    relation: Relation = "add_remove"
    content: str | None = field(default=None, repr=False)
    release_id: str = "in-memory"
    key: bytes = field(default_factory=lambda: os.urandom(32), repr=False)
    steps: dict[int, Arrays] = field(default_factory=dict, repr=False)

    def kept(self, step: int, /) -> Arrays | None:
        """Return the stored arrays of a step, or None if nothing is stored."""
        return self.steps.get(step)

    def keep(self, step: int, arrays: Mapping[str, NDArray[Any]], /) -> Arrays:
        """Store the arrays of a step, unless arrays are already stored for it; return the stored arrays."""
        return self.steps.setdefault(step, dict(arrays))


class Gate:
    """The checks, keys and stored answers of one charged release, whose steps are answered in order and once each."""

    def __init__(self, source: BlockSource, reservation: Reservation) -> None:
        self._source, self._reservation = source, reservation
        self._step = 0
        self._vacant = -1  # the last step without a stored answer for which `with_stored_inputs` was called

    def move_to(self, step: int) -> None:
        """Make ``step`` the current step, whichever steps were answered before."""
        self._step = step

    @property
    def steps_left(self) -> int:
        """The number of charged steps from the current step on."""
        return events.count_steps(self._reservation.event) - self._step

    def with_stored_inputs[Q: PublicQuery](self, query: Q) -> Q:
        """Return the query of the current step, with the public inputs that an earlier run stored, if any."""
        stored = self._reservation.kept(self._step)
        if stored is None:
            self._vacant = self._step
            return query
        public = {name.removeprefix(PUBLIC): value for name, value in stored.items() if name.startswith(PUBLIC)}
        return query.with_inputs(public)

    def admit[Q: PublicQuery, L: Drawn](
        self, query: Q, distribution: L, numbers: Numbers[Q, L], *, steps: int = 1, bound_to: bytes = b""
    ) -> Request[Q, L]:
        """Check a request against the table of sensitivities and the charged release, and compute its digest.

        ``bound_to`` states other facts that determine the answer, such as a roster of sites. The digest includes them.
        """
        check_row(query, distribution)
        step, charged = self._step, self._reservation
        events.check_reserved(query.event_of(distribution.event), charged.event, first=step, count=steps)
        if query.relation != charged.relation:
            raise StepMismatch(
                f"step {step} uses sensitivities for the relation {query.relation}, but the release was charged for "
                f"{charged.relation}; use the neighboring relation of the budget."
            )
        if charged.content not in (None, snapshot_content(self._source)):
            raise StepMismatch(
                "these rows are not those of the snapshot for which the release was charged; restore the files of that "
                "snapshot, or release the present snapshot under another --run-key."
            )
        return make_request(
            query,
            distribution,
            numbers=numbers,
            content=self._source.content,
            step=step,
            steps=steps,
            bound_to=bound_to,
        )

    def admit_among[Q: PublicQuery, L: Drawn](
        self, steps: Iterable[int], query: Q, distribution: L, numbers: Numbers[Q, L], *, bound_to: bytes
    ) -> Request[Q, L]:
        """Admit a request for the first of the given steps that has no answer, or whose answer is for this request.

        Raises
        ------
        StepMismatch
            When all given steps were answered for other requests.
        """
        for step in steps:
            self.move_to(step)
            request = self.admit(query, distribution, numbers, bound_to=bound_to)
            stored = self._reservation.kept(step)
            if stored is None or stored[DIGEST].tobytes() == request.digest:
                return request
        raise StepMismatch(
            f"all charged attempts up to step {self._step} were answered for other requests, and a step has only one "
            "answer; repeat one of these requests, or reserve more attempts in a new release."
        )

    def key(self, request: Request[Any, Any], label: str) -> SecretKey:
        """Derive a key for one purpose, ``label``, from the release's key and the digest of one request."""
        return subkey(self._reservation.key, label=label, info=request.digest)

    def secrets(self, request: Request[Any, Any]) -> StepSecrets:
        """Derive the secrets that a query may need in a step: the keys of its random choices and of the noise."""
        key, step = self._reservation.key, request.step.to_bytes(8, "little")
        return StepSecrets(
            release_coins=subkey(key, label="release coins", info=b""),
            step_coins=subkey(key, label="coins", info=step),
            noise=self.key(request, "noise"),
            noise_scale=request.numbers[0],
        )

    def load_or_compute(self, request: Request[Any, Any], compute: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """Return the stored answer to a request, and advance to the next step.

        If nothing is stored, the answer is computed and stored first.
        """
        stored = self.load_or_store(request, lambda: (compute(), request.query.public_inputs()))
        self.advance(request)
        return stored[ANSWER]

    def load_or_store(
        self,
        request: Request[Any, Any],
        compute: Callable[[], tuple[NDArray[Any], Mapping[str, NDArray[Any]]]],
        *,
        mark: bytes = b"",
    ) -> Arrays:
        """Return the stored arrays of a request's step; compute and store them first if nothing is stored.

        If two processes store arrays for the same step, the arrays of the first process are used.

        Raises
        ------
        StepTaken
            When another process has answered the step with other public inputs since `with_stored_inputs` was called.
        StepMismatch
            When the step was answered for a different request.
        """
        stored, digest = self._reservation.kept(request.step), request.digest + mark
        if stored is None:
            answer, public = compute()
            made = {ANSWER: answer, DIGEST: np.frombuffer(digest, np.uint8)}
            stored = self._reservation.keep(request.step, made | {PUBLIC + name: public[name] for name in public})
        if stored[DIGEST].tobytes() == digest:
            return stored
        if request.step == self._vacant:
            raise StepTaken(
                f"step {request.step} was answered by another process in the meantime; run the release again."
            )
        raise StepMismatch(
            f"step {request.step} was answered for another request, and a step has one answer; "
            "repeat the first request, or start a new release."
        )

    def load_or_compute_tile(
        self, request: Request[Any, Any], at: int, compute: Callable[[], NDArray[Any]]
    ) -> NDArray[Any]:
        """Return the stored tile ``at`` of the answer to a request; compute and store it first if needed.

        In a release of n steps, tile i of step s is stored under the number ``n (i + 1) + s``, after the numbers of the
        steps themselves.

        Raises
        ------
        StepMismatch
            When the tile was answered for a different request.
        """
        place = events.count_steps(self._reservation.event) * (at + 1) + request.step
        stored, digest = self._reservation.kept(place), request.digest + TILED
        if stored is None:
            made = {ANSWER: compute(), DIGEST: np.frombuffer(digest, np.uint8)}
            stored = self._reservation.keep(place, made)
        if stored[DIGEST].tobytes() != digest:
            raise StepMismatch(f"a tile of step {request.step} was answered for another request; start a new release.")
        return stored[ANSWER]

    def advance(self, request: Request[Any, Any]) -> None:
        """Advance to the step after the steps of a request."""
        self._step = request.step + request.steps
