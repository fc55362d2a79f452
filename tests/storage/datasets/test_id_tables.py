"""Ids that fill several batches have one rank for each text, and the ranks have no gap."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from storage.datasets.id_tables import IdTables

BATCH = 2048
"""Texts of a batch here, which is the least that DuckDB gives; an ingest reads many more."""


@pytest.mark.parametrize("copies", [1, 3])
def test_every_text_has_one_rank_however_many_batches_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copies: int
) -> None:
    """Some texts are numbers, which come first in the order of their values."""
    read = vars(IdTables)["_read"]
    monkeypatch.setattr(IdTables, "_read", lambda tables, query: read(tables, query, BATCH))
    distinct = 4 * BATCH // copies + 1_000
    numbers = [str(number) for number in range(distinct // 2)]
    words = [f"w{number:07d}" for number in range(distinct - len(numbers))]
    rank_of = np.repeat(np.arange(distinct), copies)
    order = np.random.default_rng(3).permutation(len(rank_of))
    texts = pa.array(numbers + words).take(pa.array(rank_of[order]))
    found = np.full(len(texts), -1)
    batches = 0
    with IdTables(tmp_path) as tables:
        tables.add_texts("unit", texts.slice(0, 1_000), first_code=0)
        tables.add_texts("unit", texts.slice(1_000), first_code=1_000)
        for codes, ranks in tables.ranks("unit"):
            assert (np.diff(ranks) >= 0).all()
            found[codes] = ranks
            batches += 1
    assert batches > 3
    np.testing.assert_array_equal(found, rank_of[order])
