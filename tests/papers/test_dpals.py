"""Reproduction of DPALS at a hundredth of its size: all checks and tables are made; the full numbers take minutes."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from dpca.errors import BadSource, Invalid
from dpca_tasks.mechanisms.base import ItemFactors
from dpca_tasks.records.made_ratings import SplitRatings, low_rank, skewed
from flows.tune import held_out_error
from papers import dpals, dpals_films
from papers.lib.experiments import Matrix
from papers.lib.figures import LineChart, write_line_charts
from papers.lib.ratings import (
    FETCHED,
    FORMATS,
    Scale,
    Trial,
    arm,
    popularity,
    read_movielens,
    recall,
    user_means,
)
from tests.papers.conftest import Papers


def write_movielens(ratings: sparse.csr_array, folder: Path, *, size: str) -> Path:
    """Write ratings in a format of `FORMATS`; rows and columns are numbered from 1, and times are generated."""
    form = FORMATS[size]
    folder.mkdir(parents=True, exist_ok=True)
    rows = 1 + np.repeat(np.arange(ratings.shape[0]), np.diff(ratings.indptr))
    values = np.maximum(1.0, np.rint(ratings.data)) if form.low == 1.0 else ratings.data
    entries = zip(rows.tolist(), (1 + ratings.indices).tolist(), values.tolist(), strict=True)
    lines = [form.separator.join((str(user), str(item), f"{value:g}", "964982703")) for user, item, value in entries]
    if form.companion is not None:
        (folder / form.companion).write_text("", encoding="utf-8")
    text = "\n".join([*([form.header] if form.header else []), *lines, ""])
    (folder / form.file).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def few() -> SplitRatings:
    return skewed(n_users=300, n_items=60, seed=1)


def test_exact_factors_predict_without_an_error_and_user_means_by_the_mean() -> None:
    made = low_rank(n_users=60, n_items=20, seed=1)
    known = made.train.toarray() + made.held.toarray()
    exact = ItemFactors(
        factors=np.linalg.svd(known)[2][:5].T,
        offsets=np.zeros(20),
        user_step={"centre": 0.0, "prior": None, "ridge": 1e-9, "rating_bound": 20.0},
    )
    enough = SplitRatings(train=made.train, held=made.held, low=-10.0, high=10.0)
    assert np.diff(made.train.indptr)[:30].min() >= 5
    assert held_out_error(exact, enough, users=30) < 1e-3
    spread = np.sqrt(np.mean(made.held[:30].data ** 2))
    assert held_out_error(user_means(made, centre=0.0, prior=1e9), made, users=30) == pytest.approx(spread, abs=1e-6)


def test_recall_of_held_out_popularity_is_one_and_of_rated_items_nothing(few: SplitRatings) -> None:
    best = np.where(few.held.toarray()[:1].ravel() > 0, 1.0, 0.0)
    one = SplitRatings(train=few.train[:1], held=few.held[:1], low=0.5, high=5.0)
    assert recall(best, one, users=1) == 1.0
    assert 0.0 <= recall(popularity(few), few, users=100) <= 1.0


def test_a_run_reports_its_rounds_and_is_determined_by_its_seed(few: SplitRatings) -> None:
    dpals_arm = arm("dpals", rounds=3, offsets=False, sampling="uniform")
    rounds: list[Matrix] = []
    requested = Trial(rank=2, per_user=60, epsilon=5.0)
    found = dpals_arm.run(few, requested, seed=1, rounds=rounds)
    again, other = (dpals_arm.run(few, requested, seed=seed) for seed in (1, 2))
    assert [each.shape for each in rounds] == [(60, 2)] * 3
    assert found.factors is not None
    np.testing.assert_array_equal(found.factors, again.factors)
    assert (found.factors != other.factors).any()


def test_a_chart_is_written_with_its_table(tmp_path: Path) -> None:
    rows = [
        {"data": "made", "arm": "a", "x": 1.0, "y": 2.0, "draws": 3},
        {"data": "made", "arm": "a", "x": 2.0, "y": 1.0, "draws": 3},
        {"data": "made", "arm": "level", "y": 1.5},
    ]
    charts = {"one": LineChart(title="One", x="x", y="y"), "none": LineChart(title="None", x="x", y="y")}
    files = write_line_charts({"one": rows, "none": [], "other": rows}, charts, tmp_path / "new")
    paths = [Path(file) for file in files]
    assert [path.name for path in paths] == ["one.csv", "one.svg", "one.png", "other.csv"]
    assert paths[0].read_text().splitlines()[0] == "data,arm,x,y,draws"
    assert "level" in paths[0].read_text()
    assert all(path.stat().st_size > 1_000 for path in paths[1:3])


FIELDS = {"name", "expected", "tolerance", "got", "holds"}


@pytest.mark.audit_only
@pytest.mark.parametrize(("command", "charts"), [("dpals", dpals.CHARTS), ("dpals-films", dpals_films.CHARTS)])
def test_the_command_makes_every_check_and_table(
    papers: Papers, tmp_path: Path, command: str, charts: dict[str, LineChart]
) -> None:
    """Run the command with a hundredth of the users and a thinned ml-100k.

    Checks whose result depends on the size are not judged.
    """
    write_movielens(skewed(n_users=60, n_items=60, seed=2).train, tmp_path / FETCHED, size="100K, fetched")
    words = ["--data", tmp_path] if command == "dpals-films" else []
    ending = papers(command, "--runs", "1", "--share", "0.01", *words, "--json")
    found = json.loads(ending.out)
    names = [check["name"] for check in found["checks"]]
    assert len(names) == len(set(names)) >= 30
    assert all(set(check) == FIELDS for check in found["checks"])
    assert {check["holds"] for check in found["checks"]} <= {True, None}
    assert ending.status == 0
    for name, chart in charts.items():
        rows = found["tables"][name]
        assert rows, name
        assert all(np.isfinite(row[chart.y]) for row in rows), name
        assert any(chart.x in row for row in rows), name
        assert not set(chart.arms) - {row["arm"] for row in rows}, name
    assert found["seeds"] == [0]
    assert found["charged"].startswith("nothing")


@pytest.mark.parametrize("command", ["dpals", "dpals-films"])
def test_a_fraction_without_users_is_refused_in_one_line(papers: Papers, command: str) -> None:
    ending = papers(command, "--share", "0")
    assert ending.status == 1
    assert "share=0.0 must be in (0, 1]" in ending.err


def test_a_scale_keeps_the_stated_size() -> None:
    assert (Scale().users(20_000), Scale().items(1_000), Scale().is_full) == (20_000, 1_000, True)
    small = Scale(share=0.01, runs=1)
    assert (small.users(20_000), small.items(1_000), small.is_full) == (200, 40, False)


def test_a_slope_is_the_power_of_a_power_law() -> None:
    slope, spread = dpals.slope_of([1.0, 2.0, 4.0], [8.0, 2.0, 0.5])
    assert slope == pytest.approx(-2.0)
    assert spread == pytest.approx(0.0, abs=1e-12)


def test_the_error_of_private_regressions_falls_with_users() -> None:
    """Compare the errors of private regressions for 10,000 and 20,000 users, with fixed seeds.

    With noise of std s, the error is proportional to s.
    """
    assert dpals.regression_error(20_000, 20, epsilon=1.0) < 0.6 * dpals.regression_error(10_000, 20, epsilon=1.0)


def test_a_sample_keeps_at_most_the_limit_and_the_least_rated_films(
    few: SplitRatings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dpals_films, "PER_USER", 5)
    counts = popularity(few)
    for how in ("uniform", "tail"):
        part = dpals_films.sampled(few, how, fraction=1.0, seed=0)
        sizes = np.diff(part.train.indptr)
        assert (sizes == np.minimum(dpals_films.PER_USER, np.diff(few.train.indptr))).all()
    heavy = int(np.argmax(np.diff(few.train.indptr)))
    kept = part.train[[heavy]].indices
    left_out = np.setdiff1d(few.train[[heavy]].indices, kept)
    assert counts[kept].max() <= counts[left_out].min()
    some = dpals_films.sampled(few, "all", fraction=0.1, seed=0)
    assert np.flatnonzero(popularity(some)).tolist() == np.sort(np.argsort(-counts, kind="stable")[:6]).tolist()


def test_users_with_taste_choose_items_that_they_rate_highly() -> None:
    plain, tasty = (skewed(n_users=400, n_items=60, seed=4, taste=taste) for taste in (0.0, 3.0))
    assert tasty.train.data.mean() > plain.train.data.mean() + 0.2


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
def test_rating_lines_of_the_published_format_are_read(tmp_path: Path, size: str) -> None:
    form = FORMATS[size]
    (tmp_path / form.file).write_text(LINES[size])
    if form.companion is not None:
        (tmp_path / form.companion).write_text("")
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
    ("name", "text", "message"),
    [
        ("u.data", "", "no rating"),
        ("u.data", "1\t2\t9\t5\n", "outside 1 to 5"),
        ("u.data", "1\t2\tthree\t5\n", "cannot be read"),
        ("u.data", "1\t2\t\t5\n", "without a user"),
        ("ratings.dat", "1::2::3\n", "cannot be read"),
        ("ratings.csv", "1,2,3,4\n", "lacks the header"),
    ],
)
def test_another_file_is_refused_in_one_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadSource, match=message) as error:
        read_movielens(tmp_path)
    assert "\n" not in str(error.value)


def test_a_folder_without_ratings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"none of the MovieLens files u\.data, ratings\.dat"):
        read_movielens(tmp_path)
