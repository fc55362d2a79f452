"""Small input files in the formats that the guides use."""

import gzip
import shutil
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from sklearn.datasets import dump_svmlight_file

from dpca_tasks.records.made_ratings import skewed


def visits(folder: Path, *, name: str = "visits", features: int = 40, rows: int = 400) -> None:
    """Write yes/no features of patients, one row per patient, as compressed svmlight text."""
    draws = np.random.default_rng(5).random((rows, features)) < 0.1
    with gzip.open(folder / f"{name}.svm.gz", "wb") as file:
        dump_svmlight_file(sp.csr_array(draws.astype(float)), np.zeros(rows), file, zero_based=False)


def months(folder: Path) -> None:
    """Write arrays of visits in two months, with two strong directions."""
    rng = np.random.default_rng(6)
    basis = np.linalg.qr(rng.normal(size=(6, 6)))[0][:2]
    for name in ("july", "august"):
        strong = rng.normal(size=(3_000, 2)) * [1.0, 0.7] @ basis
        np.save(folder / f"{name}.npy", strong + 0.02 * rng.normal(size=(3_000, 6)))


def census(folder: Path) -> None:
    """Copy the packaged census data to the path that the data has in a clone of the repository."""
    (folder / "flows" / "data").mkdir(parents=True)
    with as_file(files("flows") / "data" / "a9a.svm.gz") as source:
        shutil.copy(source, folder / "flows" / "data")


def films(folder: Path) -> None:
    """Write ratings of films, the list of films, and the ratings of one additional user."""
    ratings = skewed(n_users=300, n_items=30, seed=1).train.tocoo()
    rows = list(zip(ratings.row.tolist(), ratings.col.tolist(), ratings.data.tolist(), strict=True))
    lines = [f"user{user},film{film},{stars}" for user, film, stars in rows]
    (folder / "ratings.csv").write_text("\n".join(["user,film,stars", *lines]) + "\n")
    mine = [f"film{film},{stars}" for user, film, stars in rows if user == 0]
    (folder / "me.csv").write_text("\n".join(["item,rating", *mine]) + "\n")
    (folder / "items.txt").write_text("".join(f"film{film}\n" for film in range(30)))


def reports(folder: Path) -> None:
    """Write word counts of reports about two topics, the list of words, and two new reports."""
    rng = np.random.default_rng(2)
    topics = np.array([[0.3, 0.3, 0.3, 0.03, 0.03, 0.04], [0.03, 0.03, 0.04, 0.3, 0.3, 0.3]])
    lines = ["report,word,count"]
    for report, topic in enumerate(rng.integers(0, 2, 2_000)):
        counts = rng.multinomial(30, topics[topic])
        lines += [f"r{report},word{word},{count}" for word, count in enumerate(counts) if count]
    (folder / "counts.csv").write_text("\n".join(lines) + "\n")
    (folder / "words.txt").write_text("".join(f"word{word}\n" for word in range(6)))
    sp.save_npz(folder / "new-reports.npz", sp.csr_array(np.array([[9.0, 9, 9, 0, 0, 0], [0, 0, 0, 9, 9, 9]])))


def sites(folder: Path) -> None:
    """Write arrays of counts and of points for each of three sites."""
    rng = np.random.default_rng(3)
    for site in ("north", "east", "south"):
        np.save(folder / f"{site}.npy", rng.integers(0, 4, (300, 12)).astype(float))


def people(folder: Path) -> None:
    """Write a raw table of people whose income depends on their age and their job."""
    rng = np.random.default_rng(6)
    ages, jobs = rng.integers(20, 80, 8_000), rng.choice(3, 8_000, p=[0.5, 0.3, 0.2])
    incomes = 20 + 0.8 * ages + 30 * jobs + rng.normal(0, 10, 8_000)
    words = ("clerk", "driver", "nurse")
    lines = [f"{age},{words[job]},{income:.1f}" for age, job, income in zip(ages, jobs, incomes, strict=True)]
    (folder / "people.csv").write_text("\n".join(["age,job,income", *lines]) + "\n")
