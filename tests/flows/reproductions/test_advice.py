"""The advisor compared with runs, on data that ship: a9a and rows in random directions."""

from pathlib import Path

import numpy as np

from flows.reproductions.advice import check_advice
from flows.reproductions.wide_text import text_rows


def test_warnings_choices_and_expectations_hold_and_what_is_not_there_is_left_out(tmp_path: Path) -> None:
    found = check_advice(data=str(tmp_path), epsilons=[0.1])
    assert [check for check in found["checks"] if not check["holds"]] == []
    assert len(found["grid"]) == 2 * 5
    assert [each.partition(":")[0] for each in found["left_out"]] == ["mnist", "reuters", "text of 20,958 columns"]
    warned = {row["data"] for row in found["grid"] if row["expects_noise"]}
    assert warned == {"flat"}


def test_rows_like_text_are_sparse_of_norm_one_and_their_variance_falls() -> None:
    rows = text_rows(np.random.default_rng(1), n_rows=400, n_features=900)
    assert np.allclose(rows.multiply(rows).sum(axis=1), 1.0)
    assert rows.nnz < 0.06 * 400 * 900
    values = np.linalg.eigvalsh((rows.T @ rows).toarray())[::-1]
    assert values[0] > 2 * values[9]
