"""Content digest and manifest of a snapshot.

The same rows have the same content digest, whatever the format of their source and of their storage. The digest is
private, because it can confirm a guess of the whole dataset. Therefore the digest never enters an artifact, a run key
or Prefect.

>>> digest = ContentDigest(n_features=3)
>>> digest.update(
...     values=np.array([1.0]), indices=np.array([2]), row_nnz=np.array([1, 0]), record_rows=np.array([1, 1])
... )
>>> len(digest.hexdigest())
64

The manifest of a snapshot records the sizes and types of the stored arrays, and the options declared at the ingest.
"""

import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from dpca.errors import Corrupt
from dpca.privacy_unit import PrivacyUnit

_LABEL = b"dpca content 1\0"


class ContentDigest:
    """Hash of rows in canonical form, which are added in order, in pieces of any size.

    Guarantees
    ----------
    The digest is BLAKE3 over a label, the number of rows, records and columns, and the BLAKE3 digests of four streams:
    the number of rows of each record, the number of values of each row, the column of each value (all int64), and the
    values (float64). All numbers are little-endian. If there are rejected records, a digest of their ordinals (int64)
    is added. The digest does not depend on the block size, the file format, or the dtype, if that dtype represents the
    values exactly.
    """

    def __init__(self, *, n_features: int) -> None:
        self._n_features = n_features
        self._n_rows = 0
        self._n_records = 0
        self._streams = tuple(blake3() for _ in range(4))
        self._rejected = blake3()
        self._n_rejected = 0

    def update(
        self,
        *,
        values: NDArray[Any],
        indices: NDArray[np.integer[Any]],
        row_nnz: NDArray[np.integer[Any]],
        record_rows: NDArray[np.integer[Any]],
        rejected: NDArray[np.bool_] | None = None,
    ) -> None:
        """Add whole records to the hash, in the order of the dataset.

        Parameters
        ----------
        values : array of shape (nnz,), exact in float64
        indices : integer array of shape (nnz,), columns from 0
        row_nnz : integer array of shape (n_rows,), stored values of each row
        record_rows : integer array of shape (n_records,), rows of each record
        rejected : bool array of shape (n_records,), or None: true for a record that was emptied because it had a bad
            row
        """
        if rejected is not None:
            ordinals = self._n_records + np.flatnonzero(rejected)
            self._rejected.update(_bytes(ordinals, "<i8"))
            self._n_rejected += len(ordinals)
        self._n_rows += len(row_nnz)
        self._n_records += len(record_rows)
        kinds = ("<i8", "<i8", "<i8", "<f8")
        for stream, kind, array in zip(self._streams, kinds, (record_rows, row_nnz, indices, values), strict=True):
            stream.update(_bytes(array, kind))

    def hexdigest(self) -> str:
        """Return the digest of all records added so far, as 64 hex digits."""
        shape = struct.pack("<3q", self._n_rows, self._n_records, self._n_features)
        streams = (*self._streams, *([self._rejected] if self._n_rejected else []))
        return blake3(_LABEL + shape + b"".join(stream.digest() for stream in streams)).hexdigest()


def _bytes(array: NDArray[Any], kind: str) -> memoryview:
    return np.ascontiguousarray(array, dtype=kind).view(np.uint8).data


FORMAT = "dpca-rows"
FORMAT_VERSION = 1
MARKER = "zarr.json"  # this file contains the manifest and is written last, so a snapshot with this file is complete


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Facts about a snapshot, stored as attributes of its Zarr group; private, because the sizes are.

    Attributes
    ----------
    snapshot : str, the id of the snapshot, 128 random bits in hex
    dataset : str, the name of the dataset
    ledger : str, the id of the only ledger whose budgets may be spent on the snapshot
    populations : list of str, the populations whose budgets are charged by a release made from the snapshot
    privacy_unit : str, the name of the column with the ids of individuals, or "row" if each row is a record
    max_rows_per_unit : int or None, the most rows stored per individual; further rows were dropped
    feature_names : str or None, SHA-256 of the array ``feature_names``, which holds the feature names, one per line
    scale : str or None, SHA-256 of the array ``scale``, which holds one public factor (float64) per column
    encoder : str or None, SHA-256 of the array ``encoder``, which holds the declared schema as JSON
    duplicates : str or None, the declared policy for several values of one row and column. If no policy was declared,
        it is "whole" for a source of whole rows, where a second value is an error, and None for a source of triplets,
        whose values were added up
    keeps_zeros : bool, whether explicit values of 0 are stored
    public : bool, whether the rows were declared public, so that releases may use them without noise
    quarantined : int, the number of bad rows that were left out
    first_seen : str or None, SHA-256 of the array ``first_seen``. This array holds one int64 per block: the number of
        the ingest in which the ids of the block's individuals first appeared
    epoch : str or None, the id of the table of ids from which the numbers in ``first_seen`` come
    owners : str or None, the name of the secret key with which ids were hashed. The array ``owners`` holds the hash of
        each record's id
    n_features, n_records, n_rows, nnz, n_blocks : int
    dtype : str, the NumPy dtype of the stored values
    content_digest : str, the digest of the stored rows; see `ContentDigest`
    rows_digest : str, a digest of the source's rows that ignores their order and individuals; see
        `storage.datasets.rows_digest.RowsDigest`
    records_at_most : int or None, the declared public bound on n_records
    density : float or None, the share of nonzero entries, as declared by the user or fixed by the source format
    source : str, the format of the source
    code_version : str, the version of dpca that wrote the snapshot
    """

    snapshot: str
    dataset: str
    ledger: str
    populations: list[str]
    privacy_unit: str
    n_features: int
    n_records: int = field(repr=False)
    n_rows: int = field(repr=False)
    nnz: int = field(repr=False)
    n_blocks: int = field(repr=False)
    dtype: str
    content_digest: str = field(repr=False)
    rows_digest: str = field(repr=False)
    records_at_most: int | None
    source: str
    code_version: str
    density: float | None = None
    max_rows_per_unit: int | None = None
    feature_names: str | None = None
    scale: str | None = None
    encoder: str | None = None
    duplicates: str | None = None
    keeps_zeros: bool = False
    public: bool = False
    quarantined: int = field(default=0, repr=False)
    first_seen: str | None = field(default=None, repr=False)
    epoch: str | None = None
    owners: str | None = None

    def to_attributes(self) -> dict[str, Any]:
        """Return the manifest as attributes of a Zarr group."""
        return {"format": FORMAT, "format_version": FORMAT_VERSION, **asdict(self)}

    @property
    def unit(self) -> PrivacyUnit:
        """Privacy unit: an individual with a bounded or unbounded number of rows, or one row."""
        has_ids = self.privacy_unit != PrivacyUnit().name
        return PrivacyUnit(name=self.privacy_unit, rows=self.max_rows_per_unit if has_ids else 1)

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, Any]) -> Self:
        """Read a manifest from the attributes of a Zarr group.

        Raises
        ------
        Corrupt
            If the attributes are not a manifest of this format version.
        """
        found = (attributes.get("format"), attributes.get("format_version"))
        if found != (FORMAT, FORMAT_VERSION):
            raise Corrupt(
                f"the snapshot has format {found}, not {(FORMAT, FORMAT_VERSION)}; read it with the dpca that wrote it"
            )
        missing = [known.name for known in fields(cls) if known.name not in attributes]
        if missing:
            raise Corrupt(f"the manifest lacks {', '.join(missing)}; ingest the source again")
        return cls(**{known.name: attributes[known.name] for known in fields(cls)})
