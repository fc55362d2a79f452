"""Durable storage of the noised answer of each step (query) of a release.

If a step is answered several times, for example after a crash, the first stored answer counts.

The journal contains a digest of each answer, and the journal may be exported. Therefore the digest is an HMAC under the
key of the release, which is erased when the release ends. So a digest cannot confirm a guess of the rows, even if the
answer is published or contains only a part of the noise. Loading a stored answer, and checking the ledger against the
journal, do not need the key.
"""

import hashlib
import hmac
import io
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from dpca.backends.atomic_files import claim_file, make_folder, reached, writing
from dpca.errors import Corrupt, Refused, Unavailable
from dpca_tasks.accounting.events import Event, Relation
from storage.database import tables
from storage.ledger import journal
from storage.ledger.releases import Keys, check_unfinished, read_release

logger = logging.getLogger("dpca.storage")

Arrays = dict[str, NDArray[Any]]

REQUEST = "question"
"""Name of the stored array with the digest of a step's request. That digest depends on the rows, so the array is stored
with the answer, but is not part of the step's digest in the journal."""
_CHECKSUM_BYTES = 32

_INSERT = tables.step.insert()
_DIGEST = sa.select(tables.step.c.digest).where(
    tables.step.c.release_id == sa.bindparam("release_id"), tables.step.c.step == sa.bindparam("step")
)


def step_digest(key: bytes, step: int, arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the digest of a step's answer and public inputs in hex: an HMAC under a key derived from ``key``."""
    own = hmac.digest(key, b"dpca step digests", hashlib.sha256)
    hasher = hmac.new(own, step.to_bytes(8, "little"), hashlib.sha256)
    for name, values in sorted(arrays.items()):
        if name != REQUEST:
            head = f"{name} {values.dtype.str} {values.shape}".encode()
            hasher.update(len(head).to_bytes(8, "little") + head)
            hasher.update(np.ascontiguousarray(values))
    return hasher.hexdigest()


def _checksum(digest: str, payload: bytes) -> bytes:
    """Return the checksum at the end of a step's file, a hash of the step's digest and of all stored arrays."""
    hasher = hashlib.sha256(digest.encode())
    hasher.update(payload)
    return hasher.digest()


class StepRows(Protocol):
    """Interface to the recorded digests of one release's noised answers, one per step (query)."""

    def check(self) -> None:
        """Check that the release has not ended; raise `Finished` or `Refused` if it has."""

    def find(self, step: int) -> str | None:
        """Return the recorded digest of a step's answer, or None; raise the errors of `check`."""

    def settle(self, step: int, digest: str) -> str:
        """Record the digest of a step's answer, unless a digest is already recorded; return the recorded digest.

        Raises the errors of `check`.
        """


@dataclass(frozen=True, slots=True)
class LedgerSteps:
    """Digests of one release's noised answers, stored in the database of the ledger; see `StepRows`."""

    transaction: Callable[[], AbstractContextManager[sa.Connection]]
    reading: Callable[[], AbstractContextManager[sa.Connection]]
    release_id: str

    def check(self) -> None:
        """Check that the release has not ended."""
        with self.reading() as connection:
            check_unfinished(read_release(connection, self.release_id))

    def find(self, step: int) -> str | None:
        """Return the recorded digest of a step's answer, or None, after checking that the release has not ended."""
        with self.reading() as connection:
            check_unfinished(read_release(connection, self.release_id))
            return self._digest(connection, step)

    def settle(self, step: int, digest: str) -> str:
        """Record the digest of a step's answer, unless a digest is already recorded; return the recorded digest."""
        with self.transaction() as connection:
            winner = self._load_or_store(connection, step, digest)
            reached("keep.row_written")
        return winner

    def _load_or_store(self, connection: sa.Connection, step: int, digest: str) -> str:
        """Return the recorded digest of a step's answer; if there is none, record ``digest`` and return it."""
        row = read_release(connection, self.release_id, lock=True)
        check_unfinished(row)
        if row.state != "noising":
            raise Refused(
                f"release {row.id} is {row.state}, so no answer of a step can be stored; run the same request again."
            )
        winner = self._digest(connection, step)
        if winner is None:
            connection.execute(_INSERT, {"release_id": self.release_id, "step": step, "digest": digest})
            self._note(connection, "step_kept", step=step, digest=digest)
            return digest
        if winner != digest:
            self._note(connection, "step_conflict", step=step)
        return winner

    def _note(self, connection: sa.Connection, name: str, **detail: Any) -> None:
        journal.append(connection, name, release_id=self.release_id, detail=detail)

    def _digest(self, connection: sa.Connection, step: int) -> str | None:
        return connection.execute(_DIGEST, {"release_id": self.release_id, "step": step}).scalar_one_or_none()


@dataclass(frozen=True, slots=True)
class StepStore:
    """Store of the noised answers of one release's steps: files in a private staging folder, digests in the ledger.

    The file of an answer is named after its step and digest, so two computations with equal answers share one file.
    """

    rows: StepRows
    folder: Path
    release_id: str
    keys: Keys = field(repr=False)

    @property
    def key(self) -> bytes:
        """The secret key of the release, which determines its noise and the digests of its answers."""
        with self.explained():
            return self.keys.read(self.release_id)

    def kept(self, step: int) -> Arrays | None:
        """Return the stored arrays of a step's answer; None if no answer is recorded, or its file is missing.

        If the file is missing, the same answer can be computed again, because sums are exact and the key determines the
        noise. `keep` then checks the digest.

        Raises
        ------
        Finished, Refused
            When the release has ended in the meantime.
        Corrupt
            When the content of the file differs from the stored answer.
        """
        digest = self.rows.find(step)
        path = self.folder / f"{step}-{digest}.npz"
        try:
            content = path.read_bytes() if digest else None
        except FileNotFoundError:
            content = None
        except OSError as error:
            raise Unavailable(
                f"{path} cannot be read ({error.strerror}); correct the permissions and run the same request again."
            ) from None
        if digest is None or content is None:
            return None
        payload = content[:-_CHECKSUM_BYTES]
        if content[-_CHECKSUM_BYTES:] != _checksum(digest, payload):
            raise Corrupt(f"{path} differs from the stored answer; remove the file and run the same request again.")
        with np.load(io.BytesIO(payload), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}

    def keep(self, step: int, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
        """Store the arrays of a step's answer, unless an answer is already stored; return the stored arrays.

        Raises
        ------
        Corrupt
            When a different answer is recorded for the step, and the file of that answer is missing. Then no answer may
            be published.
        Finished, Refused
            When the release has ended in the meantime.
        """
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **dict(sorted(arrays.items())))
        payload, digest = buffer.getvalue(), step_digest(self.key, step, arrays)
        path = self.folder / f"{step}-{digest}.npz"
        with self.explained(), writing(self.folder):
            make_folder(self.folder)
            is_ours = claim_file(path, payload + _checksum(digest, payload))
        reached("keep.file_written")
        try:
            winner = self.rows.settle(step, digest)
        except Refused:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        reached("keep.row_committed")
        if winner == digest and is_ours:
            return dict(arrays)
        if winner != digest:
            path.unlink(missing_ok=True)
            logger.error("release %s: step %d was computed twice with different results", self.release_id, step)
        stored = self.kept(step)
        if stored is None:
            raise Corrupt(
                f"step {step} of release {self.release_id} had a different answer before, and that answer is lost; "
                "nothing may be published: close the release."
            )
        return stored

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Within this context, raise `Finished` or `Refused` if a file is missing because the release has ended.

        If the release has not ended, the error about the missing file is raised.
        """
        try:
            yield
        except Unavailable:
            self.rows.check()
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A release that has begun, with everything that the curator (which adds the noise) needs to answer its steps.

    ``relation`` is the neighboring relation of the charged budget. ``content`` is the content digest of the release's
    snapshot, or None if the catalog has no such snapshot. The digest is private, for the curator only.
    """

    release_id: str
    event: Event
    relation: Relation
    content: str | None = field(repr=False)
    _steps: StepStore = field(repr=False)

    @property
    def key(self) -> bytes:
        """The secret key of the release, read from its file at each access."""
        return self._steps.key

    def kept(self, step: int) -> Arrays | None:
        """Return the stored arrays of a step's answer, or None if no answer is stored."""
        return self._steps.kept(step)

    def keep(self, step: int, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
        """Store the arrays of a step's answer, unless an answer is already stored; return the stored arrays."""
        return self._steps.keep(step, arrays)
