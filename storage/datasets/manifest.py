"""The manifest of a snapshot: the sizes and types of its arrays, and the declarations of its ingest."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from storage.errors import Corrupt
from storage.privacy_unit import PrivacyUnit

FORMAT = "dpca-rows"
FORMAT_VERSION = 1
MARKER = "zarr.json"  # holds the manifest; comes last when a snapshot is published


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The facts of a snapshot, stored as attributes of its group; for the curator alone, as sizes are private.

    Attributes
    ----------
    snapshot : str, 128 random bits in hex
    dataset : str
    ledger : str, the one ledger that may spend on it
    populations : list of str, every population that a release over it charges
    privacy_unit : str, the name of the ids of individuals, or "row" if each row is a record
    max_rows_per_unit : int or None, of each individual the first that many rows were kept
    feature_names : str or None, SHA-256 of the names, one a line, which the array of this name holds
    scale : str or None, SHA-256 of the public factors of the columns, float64, in the array of this name
    encoder : str or None, SHA-256 of the declared schema as JSON, which the array of this name holds
    duplicates : str or None, how several values of one row and column were merged, as stated; where nothing was stated,
        "whole" if the source holds whole rows, in which a second value is refused, and None if triplets were added up
    keeps_zeros : bool, whether a value of 0 is stored
    quarantined : int, bad rows left out
    first_seen : str or None, SHA-256 of the numbers of the ingests that first saw the individuals of each block, int64,
        in the array of this name
    epoch : str or None, the table of ids that these numbers come from
    owners : str or None, the name of the key of the hashes of ids, which the array of this name holds
    n_features, n_records, n_rows, nnz, n_blocks : int
    dtype : str, of the stored values
    content_digest : str, see `storage.datasets.content_digest`
    rows_digest : str, of the rows of the source alone, in any order and whoever they belong to; see there
    records_at_most : int or None, the declared public bound on n_records
    density : float or None, the share of entries that are not 0, as declared or as the format has it
    source : str, format of the source
    code_version : str
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
    quarantined: int = field(default=0, repr=False)
    first_seen: str | None = field(default=None, repr=False)
    epoch: str | None = None
    owners: str | None = None

    def to_attributes(self) -> dict[str, Any]:
        """Return the attributes of the group."""
        return {"format": FORMAT, "format_version": FORMAT_VERSION, **asdict(self)}

    @property
    def unit(self) -> PrivacyUnit:
        """The unit of privacy: an individual with so many rows, or one row."""
        has_ids = self.privacy_unit != PrivacyUnit().name
        return PrivacyUnit(name=self.privacy_unit, rows=self.max_rows_per_unit if has_ids else 1)

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, Any]) -> Self:
        """Read the attributes of a group.

        Raises
        ------
        Corrupt
            If they are no manifest of this format version.
        """
        found = (attributes.get("format"), attributes.get("format_version"))
        if found != (FORMAT, FORMAT_VERSION):
            raise Corrupt(f"format {found} is not {(FORMAT, FORMAT_VERSION)}; read it with the version that wrote it")
        older = dict.fromkeys(("density", "encoder", "first_seen", "epoch", "duplicates"))  # what some do not mention
        stored = {**older, "keeps_zeros": False, **attributes}
        missing = [known.name for known in fields(cls) if known.name not in stored]
        if missing:
            raise Corrupt(f"the manifest lacks {', '.join(missing)}; ingest the source again")
        return cls(**{known.name: stored[known.name] for known in fields(cls)})
