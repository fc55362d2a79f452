"""Folders of MovieLens in each published format are read to the same ratings."""

from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from flows.reproductions.movielens import FORMATS, read_movielens, write_movielens
from storage.errors import BadSource, Invalid

LINES = {
    "100K": "196\t242\t3\t881250949\n22\t377\t1\t878887116\n22\t242\t5\t878887116\n",
    "1M": "196::242::3::978300760\n22::377::1::978302109\n22::242::5::978301968\n",
    "10M": "196::242::3::838985046\n22::377::1::838983525\n22::242::4.5::838983392\n",
    "20M": "userId,movieId,rating,timestamp\n196,242,3.0,1112486027\n22,377,1.0,1112484676\n22,242,4.5,1112484819\n",
    "100K, fetched": (
        "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
        "196\t242\t3\t881250949\n22\t377\t1\t878887116\n22\t242\t5\t878887116\n"
    ),
}


@pytest.mark.parametrize("size", LINES)
def test_the_published_lines_are_read(tmp_path: Path, size: str) -> None:
    form = FORMATS[size]
    (tmp_path / form.file).write_text(LINES[size])
    if form.beside is not None:
        (tmp_path / form.beside).write_text("")
    films = read_movielens(tmp_path)
    assert (films.users.tolist(), films.items.tolist()) == ([22, 196], [242, 377])
    assert films.ratings.toarray().tolist() == [[4.5 if form.low == 0.5 else 5.0, 1.0], [3.0, 0.0]]
    assert (films.low, films.high) == (form.low, 5.0)


@pytest.mark.parametrize("size", FORMATS)
def test_a_written_folder_is_read_back(tmp_path: Path, size: str) -> None:
    rng = np.random.default_rng(1)
    halves = sparse.random_array((30, 12), density=0.4, rng=rng, format="csr")
    halves.data = np.rint(2.0 * (0.5 + 4.5 * halves.data)) / 2.0
    read = read_movielens(write_movielens(halves, tmp_path, size=size))
    dense = halves.toarray()
    if FORMATS[size].low == 1.0:
        dense = np.where(dense > 0.0, np.maximum(1.0, np.rint(dense)), 0.0)
    rows, columns = (dense > 0).any(axis=1), (dense > 0).any(axis=0)
    np.testing.assert_array_equal(read.ratings.toarray(), dense[rows][:, columns])
    np.testing.assert_array_equal(read.users, 1 + np.flatnonzero(rows))


def test_the_last_of_several_ratings_counts(tmp_path: Path) -> None:
    (tmp_path / "u.data").write_text("1\t7\t3\t5\n2\t7\t4\t5\n1\t7\t1\t6\n")
    assert read_movielens(tmp_path).ratings.toarray().tolist() == [[1.0], [4.0]]


def test_only_the_most_rated_items_are_kept_and_users_without_them_left_out(tmp_path: Path) -> None:
    (tmp_path / "u.data").write_text("".join(f"{user}\t{item}\t3\t5\n" for user, item in ((1, 9), (2, 9), (3, 4))))
    films = read_movielens(tmp_path).most_rated(1)
    assert (films.users.tolist(), films.items.tolist(), films.ratings.toarray().tolist()) == ([1, 2], [9], [[3.0]] * 2)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("u.data", "", "no rating"),
        ("u.data", "1\t2\t9\t5\n", "outside 1 to 5"),
        ("u.data", "1\t2\tthree\t5\n", "cannot be read"),
        ("u.data", "1\t2\t\t5\n", "without a user"),
        ("ratings.dat", "1::2::3\n", "cannot be read"),
        ("ratings.csv", "1,2,3,4\n", "the header of its format"),
    ],
)
def test_another_file_is_refused_in_one_line(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadSource, match=said) as error:
        read_movielens(tmp_path)
    assert "\n" not in str(error.value)


def test_a_folder_without_ratings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"none of u\.data, ratings\.dat"):
        read_movielens(tmp_path)
