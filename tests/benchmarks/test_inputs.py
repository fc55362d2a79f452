"""The generators make what they declare."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import inputs
from benchmarks.inputs import A9A_LIKE, A9A_WIDTHS, GENERATED, MNIST, SYN, TEXT, Input


@pytest.mark.parametrize("generated", [*GENERATED, TEXT], ids=lambda generated: generated.name)
def test_rows_are_canonical_within_the_bound_and_the_same_each_time(generated: Input) -> None:
    rows, again = generated.rows(toy=True), generated.rows(toy=True)
    assert rows.shape == (inputs.TOY_ROWS, generated.n_features)
    assert rows.has_canonical_format
    assert np.sqrt(rows.multiply(rows).sum(axis=1)).max() <= generated.clip_norm
    for name in ("data", "indices", "indptr"):
        assert np.array_equal(getattr(rows, name), getattr(again, name))


def test_a9a_like_sets_one_column_of_each_attribute() -> None:
    rows = A9A_LIKE.rows(toy=True)
    attribute = np.repeat(np.arange(len(A9A_WIDTHS)), A9A_WIDTHS)
    assert sum(A9A_WIDTHS) == A9A_LIKE.n_features
    assert (attribute[rows.indices.reshape(-1, len(A9A_WIDTHS))] == np.arange(len(A9A_WIDTHS))).all()
    assert (rows.data == 1).all()


def test_syn_is_one_percent_dense_in_every_part() -> None:
    rows = SYN.rows(toy=True)
    quarters = [part.nnz / part.shape[0] / part.shape[1] for part in (rows[:250], rows[750:], rows[:, :500])]
    assert quarters == pytest.approx([0.01] * 3, rel=0.05)


def test_text_has_rows_of_one_length_and_few_words() -> None:
    rows = TEXT.rows(toy=True)
    assert np.sqrt(rows.multiply(rows).sum(axis=1)) == pytest.approx(np.ones(inputs.TOY_ROWS))
    assert 7 < rows.nnz / inputs.TOY_ROWS < 9


def test_mnist_is_read_from_idx_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mnist"
    folder.mkdir()
    pixels = bytes([0, 255, 51, 0, 0, 0, 0, 102])
    header = b"\x00\x00\x08\x03" + b"".join(size.to_bytes(4) for size in (2, 2, 2))
    (folder / "train-images-idx3-ubyte").write_bytes(header + pixels)
    monkeypatch.setattr(inputs, "DATA", tmp_path)
    assert inputs.spine_inputs() == (*GENERATED, MNIST)
    assert MNIST.make(5).toarray().tolist() == [[0, 1, 0.2, 0], [0, 0, 0, 0.4]]


def test_mnist_is_offered_only_where_it_was_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "DATA", tmp_path)
    assert inputs.spine_inputs() == GENERATED
