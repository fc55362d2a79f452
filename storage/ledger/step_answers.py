"""The noised steps of a release, stored durably with one answer per step; the first writer wins."""

import hashlib
import io
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from storage.backends.atomic_files import make_folder, write_atomically, writing
from storage.backends.crash_points import reached
from storage.database import tables
from storage.errors import Corrupt, Refused, Unavailable
from storage.ledger import journal
from storage.ledger.releases import check_under_way, read_release

logger = logging.getLogger("dpca.storage")

Arrays = dict[str, NDArray[Any]]

_INSERT = tables.step.insert()
_DIGEST = sa.select(tables.step.c.digest).where(
    tables.step.c.release_id == sa.bindparam("release_id"), tables.step.c.step == sa.bindparam("step")
)


class StepRows(Protocol):
    """The answer that stands for each step of a release, by its digest, as the ledger's rows say."""

    def check(self) -> None:
        """Raise `Finished` or `Refused` when the release ended."""

    def find(self, step: int) -> str | None:
        """Return the digest of a step's answer; raise as `check`."""

    def settle(self, step: int, digest: str) -> str:
        """Store the digest of a step's answer, and return the stored one, the first; raise as `check`."""


@dataclass(frozen=True, slots=True)
class LedgerSteps:
    """The rows of one release's steps in a database; see `StepRows`."""

    transaction: Callable[[], AbstractContextManager[sa.Connection]]
    release_id: str

    def check(self) -> None:
        """Check that the release did not end."""
        with self.transaction() as connection:
            check_under_way(read_release(connection, self.release_id))

    def find(self, step: int) -> str | None:
        """Return the digest of a step's answer in a release that did not end."""
        with self.transaction() as connection:
            check_under_way(read_release(connection, self.release_id))
            return self._digest(connection, step)

    def settle(self, step: int, digest: str) -> str:
        """Store the digest of a step's answer unless one is stored; return the stored one."""
        with self.transaction() as connection:
            winner = self._load_or_store(connection, step, digest)
            reached("keep.row_written")
        return winner

    def _load_or_store(self, connection: sa.Connection, step: int, digest: str) -> str:
        """Return the stored digest of a step, or store this one."""
        row = read_release(connection, self.release_id, lock=True)
        check_under_way(row)
        if row.state != "noising":
            raise Refused(
                f"release {row.id} is {row.state}; no step can be answered in it: run the same request again."
            )
        winner = self._digest(connection, step)
        if winner is None:
            connection.execute(_INSERT, {"release_id": self.release_id, "step": step, "digest": digest})
            self._note(connection, "step_kept", step, digest)
            return digest
        if winner != digest:
            self._note(connection, "step_conflict", step, digest)
        return winner

    def _note(self, connection: sa.Connection, name: str, step: int, digest: str) -> None:
        journal.append(connection, name, release_id=self.release_id, detail={"step": step, "digest": digest})

    def _digest(self, connection: sa.Connection, step: int) -> str | None:
        return connection.execute(_DIGEST, {"release_id": self.release_id, "step": step}).scalar_one_or_none()


@dataclass(frozen=True, slots=True)
class StepStore:
    """The steps of one release: files in a private staging folder, digests in the ledger.

    The file of a step is addressed by its digest, so equal answers of two computations are one file.
    """

    rows: StepRows
    folder: Path
    release_id: str

    def kept(self, step: int) -> Arrays | None:
        """Return the stored arrays of a step; None when there are none, or their file is gone.

        A lost file can be computed again, because noise is keyed and sums are exact; `keep` checks its digest.

        Raises
        ------
        Finished, Refused
            When the release ended in the meantime.
        Corrupt
            When the file is not the one that was stored.
        """
        digest = self.rows.find(step)
        path = self.folder / f"{step}-{digest}.npz"
        try:
            payload = path.read_bytes() if digest else None
        except FileNotFoundError:
            payload = None
        except OSError as error:
            raise Unavailable(
                f"{path} cannot be read ({error.strerror}); correct the permissions and run the same request again."
            ) from None
        if payload is None:
            return None
        if hashlib.sha256(payload).hexdigest() != digest:
            raise Corrupt(f"{path} is not the answer that was kept; remove it and run the same request again.")
        with np.load(io.BytesIO(payload), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}

    def keep(self, step: int, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
        """Store the arrays of a step and return the stored ones; the first writer wins.

        Raises
        ------
        Corrupt
            When the step had another answer and that answer is lost; nothing may leave then.
        Finished, Refused
            When the release ended in the meantime.
        """
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **dict(sorted(arrays.items())))
        payload = buffer.getvalue()
        digest = hashlib.sha256(payload).hexdigest()
        path = self.folder / f"{step}-{digest}.npz"
        with self.explained(), writing(self.folder):
            make_folder(self.folder)
            write_atomically(path, payload)
        reached("keep.file_written")
        try:
            winner = self.rows.settle(step, digest)
        except Refused:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        reached("keep.row_committed")
        if winner == digest:
            return dict(arrays)
        path.unlink(missing_ok=True)
        logger.error("release %s: step %d was computed twice with unlike results", self.release_id, step)
        stored = self.kept(step)
        if stored is None:
            raise Corrupt(
                f"step {step} of release {self.release_id} was answered otherwise before, and that answer is lost; "
                "nothing may leave: close the release."
            )
        return stored

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Name the cause when a key or a folder is gone because the release ended in the meantime."""
        try:
            yield
        except Unavailable:
            self.rows.check()
            raise
