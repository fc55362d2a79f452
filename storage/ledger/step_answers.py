"""Reservation of a charged release, and durable storage of one answer per noised step.

The first writer of a step's answer wins.

The journal contains the digest of each step, and the journal leaves the trust boundary. So the digest is an HMAC under
the key of the release, which is erased when the release ends. The digest cannot be computed from a guess of the rows,
even if the answer is published or contains only a part of the noise. Loading a stored step, and comparing the ledger
with the journal, do not need the key.
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
"""Name of the array of a step that holds the digest of its request. The digest is a function of the rows, so the array
is stored, but never part of the step's digest."""
_CHECKSUM_BYTES = 32

_INSERT = tables.step.insert()
_DIGEST = sa.select(tables.step.c.digest).where(
    tables.step.c.release_id == sa.bindparam("release_id"), tables.step.c.step == sa.bindparam("step")
)


def step_digest(key: bytes, step: int, arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the keyed hex digest of a step's answer and public inputs."""
    own = hmac.digest(key, b"dpca step digests", hashlib.sha256)
    hasher = hmac.new(own, step.to_bytes(8, "little"), hashlib.sha256)
    for name, values in sorted(arrays.items()):
        if name != REQUEST:
            head = f"{name} {values.dtype.str} {values.shape}".encode()
            hasher.update(len(head).to_bytes(8, "little") + head)
            hasher.update(np.ascontiguousarray(values))
    return hasher.hexdigest()


def _checksum(digest: str, payload: bytes) -> bytes:
    """Return the checksum at the end of a step's file: a hash of the step's digest and all arrays with the request."""
    hasher = hashlib.sha256(digest.encode())
    hasher.update(payload)
    return hasher.digest()


class StepRows(Protocol):
    """The recorded digest of the answer of each step of a release."""

    def check(self) -> None:
        """Check that the release has not ended; raise `Finished` or `Refused` otherwise."""

    def find(self, step: int) -> str | None:
        """Return the digest of a step's answer; raise as `check`."""

    def settle(self, step: int, digest: str) -> str:
        """Record the digest of a step's answer unless one is recorded; return the recorded digest; raise as `check`."""


@dataclass(frozen=True, slots=True)
class LedgerSteps:
    """Rows of one release's steps in a database; see `StepRows`."""

    transaction: Callable[[], AbstractContextManager[sa.Connection]]
    reading: Callable[[], AbstractContextManager[sa.Connection]]
    release_id: str

    def check(self) -> None:
        """Check that the release has not ended."""
        with self.reading() as connection:
            check_unfinished(read_release(connection, self.release_id))

    def find(self, step: int) -> str | None:
        """Return the digest of a step's answer in a release that has not ended, or None if none is recorded."""
        with self.reading() as connection:
            check_unfinished(read_release(connection, self.release_id))
            return self._digest(connection, step)

    def settle(self, step: int, digest: str) -> str:
        """Record the digest of a step's answer unless one is recorded; return the recorded digest."""
        with self.transaction() as connection:
            winner = self._load_or_store(connection, step, digest)
            reached("keep.row_written")
        return winner

    def _load_or_store(self, connection: sa.Connection, step: int, digest: str) -> str:
        """Return the recorded digest of a step, or record this one."""
        row = read_release(connection, self.release_id, lock=True)
        check_unfinished(row)
        if row.state != "noising":
            raise Refused(
                f"release {row.id} is {row.state}; it can answer no further step: run the same request again."
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
    """Steps of one release, with their files in a private staging folder and their digests in the ledger.

    The file of a step is named after its digest, so equal answers of two computations share one file.
    """

    rows: StepRows
    folder: Path
    release_id: str
    keys: Keys = field(repr=False)

    @property
    def key(self) -> bytes:
        """The secret key of the release, for its noise and the digests of its steps."""
        with self.explained():
            return self.keys.read(self.release_id)

    def kept(self, step: int) -> Arrays | None:
        """Return the stored arrays of a step; None when no answer is recorded, or its file is missing.

        A missing file can be computed again, because noise is keyed and sums are exact; `keep` checks its digest.

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
            raise Corrupt(f"{path} is not the stored answer; remove it and run the same request again.")
        with np.load(io.BytesIO(payload), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}

    def keep(self, step: int, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
        """Store the arrays of a step and return the stored ones; the first writer wins.

        Raises
        ------
        Corrupt
            When another answer is recorded for the step, and its file is missing. Nothing may leave the curator then.
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
        """Raise the cause when a key or a folder is missing because the release has ended in the meantime."""
        try:
            yield
        except Unavailable:
            self.rows.check()
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A release that has begun, with everything that a curator needs to answer its steps.

    ``relation`` is the neighboring relation of the charged budget. ``content`` is the digest of the registered
    snapshot, or None where the catalog has no such snapshot; only the curator may use it.
    """

    release_id: str
    event: Event
    relation: Relation
    content: str | None = field(repr=False)
    _steps: StepStore = field(repr=False)

    @property
    def key(self) -> bytes:
        """The secret key; it is read only when noise is drawn or a step is stored."""
        return self._steps.key

    def kept(self, step: int) -> Arrays | None:
        """Return the stored arrays of a step, or None."""
        return self._steps.kept(step)

    def keep(self, step: int, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
        """Store the arrays of a step and return the stored ones; the first writer wins."""
        return self._steps.keep(step, arrays)
