"""What an array of float64 cannot hold is refused with the name of its column, or is missing where it may be."""

import datetime as dt
import warnings
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import sparse

from dpca_tasks.errors import InvalidInput
from dpca_tasks.records.sources import ArrayBlocks
from flows.estimators import PrivateMatrixFactorization, PrivatePCA
from flows.estimators.tables import Entries, Table
from storage.artifacts.dpca_subspace import Subspace
from storage.artifacts.subspace import PrivateSubspace
from storage.errors import Invalid
from storage.schemas.plain_rows import plain_rows

ROWS = np.arange(18.0).reshape(6, 3)
MASKED = np.ma.masked_array(ROWS, mask=ROWS == 4)
NAMES = list("abc")


class Quantity(np.ndarray):
    """Rows with a unit, as astropy has them."""

    unit = "kg"


def frame(column: Any) -> pd.DataFrame:
    return pd.DataFrame(ROWS, columns=NAMES).assign(b=column)


DATES = pd.to_datetime(["2020-01-01"] * 6)
LOSSES: dict[str, tuple[Any, str]] = {
    "dates": (pd.DataFrame({name: DATES for name in NAMES}), "column 'a' of .* holds datetime64"),
    "one column of dates": (frame(DATES), "column 'b' of .* holds datetime64"),
    "dates with a zone": (frame(DATES.tz_localize("Europe/Berlin")), "column 'b' of .* holds datetime64"),
    "durations": (frame(DATES - DATES[0]), "column 'b' of .* holds timedelta64"),
    "periods": (frame(pd.period_range("2020", periods=6, freq="M")), "column 'b' of .* holds period"),
    "intervals": (frame(pd.interval_range(0, 6)), "column 'b' of .* holds interval"),
    "categories": (frame(pd.Categorical([1, 2, 3] * 2)), "column 'b' of .* holds category"),
    "Arrow dates": (
        frame(pd.array([dt.date(2020, 1, 1)] * 6, dtype=pd.ArrowDtype(pa.date32()))),
        "'b' of .* holds date32",
    ),
    "objects with ticks": (
        frame(pd.Series([np.timedelta64(1, "D")] * 6, dtype=object)),
        "column 'b' of .* holds (dates|timedelta)",
    ),
    "large integers": (frame(np.full(6, 2**53 + 1)), "column 'b' of .* beyond 2\\*\\*53"),
    "large nullable integers": (frame(pd.array([1, None, 3, 4, 5, 2**60], dtype="Int64")), "column 'b' of .* beyond"),
    "table of dates": (pa.table({name: pa.array(range(6), pa.date32()) for name in NAMES}), "column 'a' of .* date32"),
    "table of codes": (pa.table({name: pa.array(range(6)).dictionary_encode() for name in NAMES}), "dictionary"),
    "Dask frame of dates": (dd.from_pandas(frame(DATES), npartitions=2), "column 'b' of .* holds datetime64"),
    "array of dates": (np.full((6, 3), np.datetime64("2020-01-01")), "holds datetime64"),
    "array of durations": (np.full((6, 3), np.timedelta64(1, "D")), "holds timedelta64"),
    "list of dates": ([[np.datetime64("2020-01-01")] * 3] * 6, "holds datetime64"),
    "structured array": (np.zeros((6, 3), dtype=[("unit", "f8")]), "holds"),
    "unit": (ROWS.view(Quantity), "has the unit kg"),
    "array of large integers": (np.full((6, 3), 2**53 + 1), "beyond 2\\*\\*53"),
    "csr array of large integers": (sparse.csr_array(np.full((6, 3), -(2**53) - 1)), "beyond 2\\*\\*53"),
}


def check(estimator: Any, rows: Any, entries: Entries) -> Any:
    table = Table.checked(estimator, rows, reset=True, entries=entries)
    parts = [piece() for piece in table.pieces]
    return np.vstack([part.toarray() if sparse.issparse(part) else part for part in parts])


READERS = {
    "PrivatePCA": lambda rows: check(PrivatePCA(), rows, Entries()),
    "PrivateMatrixFactorization": lambda rows: check(PrivateMatrixFactorization(), rows, Entries(missing=True)),
    "subspace": lambda rows: PrivateSubspace(components=np.eye(3), manifest={}).transform(rows),
    "subspace with names": lambda rows: PrivateSubspace(
        components=np.eye(3), manifest={"feature_names": NAMES}
    ).transform(rows),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_is_refused_in_one_line(loss: str, reader: str) -> None:
    rows, message = LOSSES[loss]
    with pytest.raises(Invalid, match=message) as caught:
        READERS[reader](rows)
    assert "\n" not in str(caught.value)
    assert "2020" not in str(caught.value)


@pytest.mark.parametrize(
    "rows", [MASKED, list(MASKED), da.from_array(MASKED, chunks=(2, 3))], ids=["array", "list", "Dask"]
)
def test_a_mask_is_missing_data(rows: Any) -> None:
    for reader in ("PrivatePCA", "subspace", "subspace with names"):
        with pytest.raises(Invalid, match="masked values, and a mask is missing data"):
            READERS[reader](rows)
    found = Table.checked(PrivateMatrixFactorization(), rows, reset=True, entries=Entries(missing=True))
    stored = sum(piece().nnz for piece in found.pieces)
    assert stored == ROWS.size - 1
    with pytest.raises(InvalidInput, match="masked values"):
        ArrayBlocks(MASKED)
    assert ArrayBlocks(np.ma.masked_array(ROWS)).content == ArrayBlocks(ROWS).content


def test_an_array_without_masked_values_is_the_array() -> None:
    plain = plain_rows(np.ma.masked_array(ROWS))
    assert type(plain) is np.ndarray
    assert (READERS["subspace"](np.ma.masked_array(ROWS)) == ROWS).all()


@pytest.mark.parametrize("fill", [0.0, 1.0])
def test_sparse_frames_are_the_dense_ones_and_ambiguous_ratings_are_refused(fill: float) -> None:
    dense = frame(np.array([fill, fill, 2, fill, 3, fill]))
    one = dense.assign(b=pd.arrays.SparseArray(dense["b"], fill_value=fill))
    every = pd.DataFrame({name: pd.arrays.SparseArray(dense[name], fill_value=fill) for name in NAMES})
    for rows in (one, every):
        for reader in ("PrivatePCA", "subspace", "subspace with names"):
            assert (READERS[reader](rows) == dense.to_numpy()).all()
        if fill == 0:
            with pytest.raises(Invalid, match="is sparse with 0 for what is not stored, which may be a rating or none"):
                READERS["PrivateMatrixFactorization"](rows)
        else:
            assert (READERS["PrivateMatrixFactorization"](rows) == dense.to_numpy()).all()


def test_nullable_numbers_keep_their_values_and_their_absence() -> None:
    whole = frame(pd.array([1, 2, 3, 4, 5, 6], dtype="Int64"))
    absent = frame(pd.array([1, None, 3, 4, 5, 6], dtype="Int64"))
    for reader in READERS:
        assert READERS[reader](whole)[1, 1] == 2
    for reader in ("PrivatePCA", "subspace", "subspace with names"):
        with pytest.raises(ValueError, match="NaN"):
            READERS[reader](absent)
    assert (
        Table.checked(PrivateMatrixFactorization(), absent, reset=True, entries=Entries(missing=True)).whole.nnz == 17
    )


def test_objects_that_are_no_numbers_are_one_line() -> None:
    rows = frame(pd.Series([dt.date(2020, 1, 1)] * 6, dtype=object))
    for reader in READERS:
        with pytest.raises((TypeError, ValueError), match=r"^[^\n]*(no numbers|text or objects)[^\n]*$"):
            READERS[reader](rows)


def test_an_exported_model_refuses_what_it_would_misread(tmp_path: Any) -> None:
    np.savez(tmp_path / "subspace.npz", components=np.eye(3), offset=np.zeros(3), names=np.array(NAMES))
    model = Subspace(str(tmp_path))
    with warnings.catch_warnings(action="error"):
        for rows in (frame(DATES), frame(pd.Categorical([1, 2, 3] * 2)), MASKED):
            with pytest.raises(ValueError, match=r"no numbers|masked values"):
                model.predict(rows)
    assert (model.predict(pd.DataFrame(ROWS, columns=NAMES)) == ROWS).all()
