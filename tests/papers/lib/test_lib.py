"""Claims of papers with their verdicts, slopes with confidence bands, line charts, and loaders of public labeled data.

Loaders are tested on small files of each format. Rows stored in memory between releases give the same release as rows
that are read again.
"""

import bz2
import gzip
import io
import lzma
import math
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from dpca.errors import BadSource, Invalid
from dpca_tasks.mechanisms.base import PrivacyTarget
from dpca_tasks.mechanisms.subspace.analyze_gauss import AnalyzeGauss
from dpca_tasks.mechanisms.subspace.smooth_sensitivity import SmoothSensitivity
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.privacy.eigensolver import Eigensolver
from papers.lib import public_data
from papers.lib.claims import Claim, sentence, slope_of
from papers.lib.figures import COLOURS, LineChart, draw_lines
from papers.lib.kept_rows import KeptRows, along_axes, release
from papers.lib.public_data import (
    CIFAR_FEATURES,
    MNIST,
    MNIST_LABELS,
    a9a,
    cifar10,
    covtype,
    made_images,
    made_text,
    mnist,
    real_sim,
)

ROWS = [
    {"sweep": sweep, "arm": arm, "value": value, "energy": value, "energy std": 0.1}
    for sweep in ("epsilon", "delta")
    for arm in ("one", "two")
    for value in (0.1, 1.0)
]
CHART = LineChart(title="Energy", x="value", y="energy", panel="sweep")


def lightness(colour: str) -> float:
    """Return the lightness L* of a color in CIE L*a*b*, from 0 to 100."""
    channels = np.array(to_rgb(colour))
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    luminance = float(linear @ [0.2126, 0.7152, 0.0722])
    return 116 * luminance ** (1 / 3) - 16 if luminance > 0.008856 else 903.3 * luminance


def test_colours_differ_in_lightness() -> None:
    assert np.diff(sorted(map(lightness, COLOURS))).min() >= 8.0


def drawn(tmp_path: Path, chart: LineChart) -> str:
    draw_lines(ROWS, chart, tmp_path / "chart")
    return (tmp_path / "chart.svg").read_text(encoding="utf8")


def test_the_legend_names_each_line_once_for_all_panels(tmp_path: Path) -> None:
    text = drawn(tmp_path, CHART)
    assert [text.count(f">{name}</text>") for name in ("one", "two", "epsilon", "delta")] == [1, 1, 1, 1]


def test_only_named_lines_and_panels_are_drawn(tmp_path: Path) -> None:
    text = drawn(
        tmp_path, LineChart(title="", x="value", y="energy", panel="sweep", arms=("two",), panels={"delta": "D|small"})
    )
    assert ">two<" in text
    assert ">D<" in text
    assert ">small<" in text
    assert ">one<" not in text
    assert ">epsilon<" not in text


def test_more_lines_than_colours_are_refused(tmp_path: Path) -> None:
    rows = [{"data": "d", "arm": str(arm), "x": 1.0, "y": 1.0} for arm in range(len(COLOURS) + 1)]
    with pytest.raises(ValueError, match="select lines with arms="):
        draw_lines(rows, LineChart(title="", x="x", y="y"), tmp_path / "chart")


@pytest.mark.parametrize(("holds", "verdict"), [(True, "holds"), (False, "does not hold"), (None, "not judged")])
def test_a_claim_states_the_paper_the_measurement_and_the_verdict(*, holds: bool | None, verdict: str) -> None:
    claim = Claim(item="Lemma", states="at most 1", measured="2", holds=holds)
    assert claim.row() == {"item": "Lemma", "states": "at most 1", "measured": "2", "verdict": verdict}
    assert sentence(claim) == f"Lemma: the paper states at most 1; measured 2: {verdict}"


def test_the_slope_of_a_power_is_its_exponent() -> None:
    found = slope_of((1, 2, 8), [(3, 3 * 2**1.5, 3 * 8**1.5)] * 3)
    assert (found.mean, found.low, found.high) == pytest.approx((1.5, 1.5, 1.5))
    assert str(found) == "1.50 (1.50 to 1.50)"
    assert found.row(item="a")["item"] == "a"


def test_a_band_covers_the_exponent_in_95_percent_of_runs() -> None:
    """Count bands that contain the true exponent: 380 of 400 are expected.

    15 more or fewer are over 3.4 standard deviations, which happens in one run of 1,500.
    """
    rng = np.random.default_rng(5)
    sizes = np.array([1.0, 2.0, 4.0, 8.0])
    covered = 0
    for _ in range(400):
        found = slope_of(sizes.tolist(), (sizes * np.exp(0.2 * rng.standard_normal((5, 4)))).tolist())
        covered += found.low <= 1.0 <= found.high
    assert covered == pytest.approx(380, abs=15)


def test_one_seed_has_no_band() -> None:
    found = slope_of((1, 2), [(1, 4)])
    assert found.mean == pytest.approx(2.0)
    assert (found.low, found.high) == (-math.inf, math.inf)


TEXT = b"-1 3:0.5 20958:0.5\n+1 1:2 # a comment\n\n-1 2:1 1:1\n"


def images(count: int, *, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return random pixels of 0 to 255 and labels of 0 to 9."""
    rng = np.random.default_rng(seed)
    return rng.integers(256, size=(count, CIFAR_FEATURES), dtype=np.uint8), rng.integers(10, size=count)


def binary(count: int, *, seed: int) -> bytes:
    pixels, labels = images(count, seed=seed)
    return np.hstack([labels[:, None].astype(np.uint8), pixels]).tobytes()


def pickled(count: int, *, seed: int) -> bytes:
    pixels, labels = images(count, seed=seed)
    return pickle.dumps({b"data": pixels, b"labels": labels.tolist(), b"batch_label": b"1 of 5"}, protocol=4)


def svmlight(count: int, *, seed: int) -> bytes:
    pixels, labels = images(count, seed=seed)
    lines = (
        f"{label} " + " ".join(f"{at + 1}:{value}" for at, value in enumerate(row) if value)
        for row, label in zip(pixels, labels, strict=True)
    )
    return "\n".join(lines).encode()


def test_the_shipped_labels_are_those_of_a9a() -> None:
    data = a9a()
    assert data.rows.shape == (32_561, 123)
    assert np.sum(data.labels == 1.0) == 7_841
    assert np.sum(data.labels == -1.0) == 32_561 - 7_841
    np.testing.assert_allclose(data.rows.multiply(data.rows).sum(axis=1), 1.0)


def test_mnist_is_read_from_its_two_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(256, size=(5, 784), dtype=np.uint8)
    (tmp_path / "mnist").mkdir()
    (tmp_path / MNIST).write_bytes(bytes(16) + pixels.tobytes())
    (tmp_path / MNIST_LABELS).write_bytes(bytes(8) + bytes([5, 0, 4, 1, 9]))
    data = mnist(tmp_path)
    assert data.labels.tolist() == [5, 0, 4, 1, 9]
    np.testing.assert_allclose(data.rows.toarray() * np.linalg.norm(pixels, axis=1)[:, None], pixels, atol=1e-9)


@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_real_sim_is_read_from_text_with_any_compression(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    (tmp_path / "file").write_bytes(compress(TEXT))
    data = real_sim(tmp_path / "file")
    assert data.rows.shape == (3, 20_958)
    assert data.labels.tolist() == [-1.0, 1.0, -1.0]
    assert data.rows[[1], :].toarray().argmax() == 0
    np.testing.assert_allclose(data.rows.multiply(data.rows).sum(axis=1), 1.0)


@pytest.mark.parametrize(("name", "made"), [("a.bin", binary), ("data_batch_1", pickled), ("cifar10.svm", svmlight)])
def test_cifar_10_is_the_same_in_every_format(tmp_path: Path, name: str, made: Callable[..., bytes]) -> None:
    (tmp_path / name).write_bytes(made(4, seed=1))
    data = cifar10(tmp_path / name)
    pixels, labels = images(4, seed=1)
    assert data.labels.tolist() == labels.tolist()
    expected = pixels / np.linalg.norm(pixels.astype(float), axis=1)[:, None]
    np.testing.assert_allclose(data.rows.toarray(), expected, atol=1e-12)


def test_cifar_10_is_read_from_folders_and_archives_batch_by_batch(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    with tarfile.open(tmp_path / "cifar.tar.gz", "w:gz") as archive:
        for batch in (1, 2):
            content = binary(3, seed=batch)
            (folder / f"data_batch_{batch}.bin").write_bytes(content)
            member = tarfile.TarInfo(f"cifar-10-batches-py/data_batch_{batch}")
            as_pickle = pickled(3, seed=batch)
            member.size = len(as_pickle)
            archive.addfile(member, io.BytesIO(as_pickle))
    (folder / "test_batch.bin").write_bytes(binary(9, seed=9))
    expected = np.concatenate([images(3, seed=batch)[1] for batch in (1, 2)])
    of_folder, of_archive = cifar10(folder), cifar10(tmp_path / "cifar.tar.gz")
    assert of_folder.labels.tolist() == of_archive.labels.tolist() == expected.tolist()
    np.testing.assert_array_equal(of_folder.rows.toarray(), of_archive.rows.toarray())


class _Ruinous:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("executed",)


def test_a_pickle_that_contains_other_objects_than_arrays_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps({"data": _Ruinous(), "labels": []}, protocol=4))
    with pytest.raises(BadSource, match=r"contains builtins\.print, which is not an array; name a batch"):
        cifar10(tmp_path / "data_batch_1")
    assert capsys.readouterr().out == ""


def test_an_invalid_data_set_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "cut.bin").write_bytes(binary(2, seed=0)[:-1])
    (tmp_path / "wide").write_bytes(b"1 20959:1\n")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(TEXT)[:-9])
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "labels.bin").write_bytes(b"\x0a" + bytes(CIFAR_FEATURES))
    with pytest.raises(Invalid, match="is not a file; name the file"):
        real_sim(tmp_path / "absent")
    for load, name, message in (
        (cifar10, "cut.bin", "whole records of 3073 bytes"),
        (cifar10, "labels.bin", "labels outside 0 to 9"),
        (cifar10, ".", "holds no file data_batch_"),
        (real_sim, "wide", "line 1 of"),
        (real_sim, "cut.gz", "cannot be decompressed"),
        (real_sim, "empty", "is empty"),
    ):
        with pytest.raises(BadSource, match=message) as refusal:
            load(tmp_path / name)
        assert "\n" not in str(refusal.value)


def test_generated_text_has_the_stated_shape() -> None:
    data = made_text(1_048, n_records=3_000)
    assert data.rows.shape == (3_000, 1_048)
    assert data.n_components == 15
    assert 20 < data.rows.nnz / 3_000 <= 51
    assert np.mean(data.labels == 1.0) == pytest.approx(0.29, abs=0.03)
    np.testing.assert_allclose(data.rows.multiply(data.rows).sum(axis=1), 1.0)


def test_rows_without_labels_are_those_with_labels() -> None:
    assert (public_data.a9a_rows() != a9a().rows).nnz == 0
    assert np.trace(public_data.second_moment(public_data.a9a_rows())) == pytest.approx(32_561)


def test_missing_data_sets_are_named(tmp_path: Path) -> None:
    sets = {each.name: each for each in public_data.data_sets(tmp_path)}
    found, left_out = public_data.available(tmp_path, "a9a", "mnist", "reuters")
    assert [name for name, each in sets.items() if each.missing] == ["mnist", "reuters", "fmri"]
    assert list(found) == ["a9a"]
    assert [each.split(":")[0] for each in left_out] == ["mnist", "reuters"]
    for name in ("digits", "breast cancer"):
        rows = sets[name].load()
        np.testing.assert_allclose(rows.multiply(rows).sum(axis=1), 1.0)


COVER = b"".join(b",".join(str(row + at).encode() for at in range(54)) + b",2\n" for row in range(3))


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_covtype_is_read_and_centred(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    (tmp_path / "covtype.data").write_bytes(pack(COVER))
    rows = covtype(tmp_path / "covtype.data")
    assert rows.shape == (3, 54)
    np.testing.assert_allclose(rows[:, 7], [-1.0, 0.0, 1.0])


@pytest.mark.parametrize(("text", "message"), [(b"1,2,3\n", "has 3 columns"), (b"1,x\n", "cannot be read")])
def test_another_file_than_covtype_is_refused(tmp_path: Path, text: bytes, message: str) -> None:
    (tmp_path / "covtype.data").write_bytes(text)
    with pytest.raises(BadSource, match=message):
        covtype(tmp_path / "covtype.data")


def test_generated_images_have_the_shape_of_cifar_10() -> None:
    """Generated images have the shape of CIFAR-10; one pixel in 400 is zero, as in the paper's Table 2.

    The classes differ.
    """
    found = made_images(400)
    assert found.rows.shape == (400, CIFAR_FEATURES)
    assert found.density == pytest.approx(99.7617, abs=0.2)
    assert set(found.labels) == set(range(10))
    np.testing.assert_allclose(found.rows.multiply(found.rows).sum(axis=1), 1.0)
    assert (found.rows != made_images(400).rows).nnz == 0


TARGET = PrivacyTarget(epsilon=1.0, delta=1e-3, allow_large_delta=True)


def test_records_along_the_axes_are_counted() -> None:
    assert KeptRows(source=along_axes([3, 0, 2])).form_moment().diagonal().tolist() == [3.0, 0.0, 2.0]


def test_eigenpairs_are_computed_once_for_each_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = KeptRows(source=along_axes([900, 5, 5]))
    solvers = [Eigensolver(n_features=3, clip_norm=1.0, relation="add_remove", n_components=count) for count in (1, 2)]
    start = subkey(bytes(32), label="start", info=b"")
    first = [rows.solve(solver, start) for solver in solvers]
    monkeypatch.setattr(Eigensolver, "solve", lambda *_: pytest.fail("it was computed again"))
    assert [rows.solve(solver, start) for solver in solvers] == first
    assert first[0].gap == pytest.approx(895, abs=0.1)


@pytest.mark.parametrize("mechanism", [SmoothSensitivity(n_components=1), AnalyzeGauss(n_components=1)])
def test_a_seed_determines_a_release(mechanism: SmoothSensitivity | AnalyzeGauss) -> None:
    rows = KeptRows(source=along_axes([9_000, 5, 5]))
    one, same, other = (release(mechanism, TARGET, rows, seed=seed).components for seed in ((1,), (1,), (2,)))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)
