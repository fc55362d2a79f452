"""Command ``dpca completion``: from files of ratings to recommendations, with refusals before any charge."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from dpca.artifacts.embeddings import ItemEmbeddings
from dpca.errors import BadSource
from dpca.registry.reader import Registry
from dpca_tasks.mechanisms.base import ItemFactors
from dpca_tasks.queries import joint_sum
from flows.families.completion import of_item
from flows.transform import read_ratings
from storage.database import tables
from storage.workspace import Workspace
from tests.flows.conftest import Command, facts_of

ITEMS = ("alien", "brazil", "casablanca", "dune", "eraserhead", "fargo")
INGEST = ("--columns", "row=user,column=film,value=stars", "--duplicates", "last", "--keep-zeros", "--direct")
COMPLETE = (
    *("completion", "fit", "films", "--rank", "2", "--ratings-between", "0:5", "--ratings-per-user", "4"),
    *("--epsilon", "8", "--delta", "1e-4", "--publish", "taste", "--direct", "--yes", "--json"),
)


@pytest.fixture
def films(tmp_path: Path, dpca: Command) -> Path:
    """Ingest a dataset of 80 users' ratings of 6 films, and open a budget."""
    rng = np.random.default_rng(2)
    lines = ["user,film,stars"]
    lines += [f"{user},{film},{rng.integers(0, 6)}" for user in range(80) for film in rng.permutation(ITEMS)[:5]]
    source, items = tmp_path / "films.csv", tmp_path / "items.txt"
    source.write_text("\n".join(lines) + "\n")
    items.write_text("\n".join(ITEMS) + "\n")
    words = ("dataset", "ingest", source, "--name", "films", "--feature-names", items, "--records-at-most", 1000)
    assert dpca(*words, *INGEST).status == 0
    assert dpca("budget", "open", "films", "--epsilon", "10", "--delta", "1e-4").status == 0
    return source


@pytest.fixture
def user_file(tmp_path: Path) -> Path:
    path = tmp_path / "me.csv"
    path.write_text("item,rating\nalien,5\nfargo,0\n")
    return path


@pytest.mark.parametrize("mechanism", ["dpals", "dpfw", "dpsvd", "item_means", "one_shot"])
@pytest.mark.usefixtures("films")
def test_ratings_become_embeddings_with_which_a_user_predicts(user_file: Path, dpca: Command, mechanism: str) -> None:
    words = (*COMPLETE, "--mechanism", mechanism)
    shown = json.loads(dpca(*words, "--dry-run").out)
    assert (shown["fits"], shown["ratings_between"], shown["rank"]) == (True, [0.0, 5.0], 2)
    ended = dpca(*words)
    assert ended.status == 0, ended.err
    report = json.loads(ended.out)
    assert (report["artifact"], report["spent"]) == ("taste@1", pytest.approx(8.0, abs=1e-2))
    again = json.loads(dpca(*words).out)
    assert (again["release"], again["reused"]) == (report["release"], True)

    described = json.loads(dpca("registry", "show", "taste", "--json").out)
    assert (described["n_items"], described["rank"]) == (6, {"item_means": 0, "dpfw": 16}.get(mechanism, 2))
    assert described["guarantee"].startswith("joint differential privacy")
    embeddings = Registry.open().load("taste", ItemEmbeddings)
    predicted = json.loads(dpca("completion", "predict", "taste@1", user_file, "--json").out)
    assert [row["item"] for row in predicted] == list(ITEMS)
    expected = embeddings.predict([0, 5], [5.0, 0.0])
    assert [row["predicted"] for row in predicted] == pytest.approx(expected.tolist(), abs=1e-6)
    best = json.loads(dpca("recommend", "taste", user_file, "--count", "2", "--json").out)
    unrated = sorted(predicted[1:5], key=lambda row: -row["predicted"])
    assert [row["predicted"] for row in best] == [row["predicted"] for row in unrated[:2]]
    user_file.write_text("item,rating\nzardoz,5\n")
    assert "rates no item of the release" in dpca("recommend", "taste", user_file).complaint(1)
    user_file.write_text(f"item,rating\nzardoz,5\n{ITEMS[0]},5\n")
    for command in (["recommend", "taste"], ["completion", "predict", "taste"]):
        partly = dpca(*command, user_file)
        assert partly.status == 0
        assert partly.err.count("warning: 1 of 2 rated items are unknown to the release") == 1
    user_file.write_text("item,rating\nalien,nan\n")
    assert "not a finite number" in dpca("recommend", "taste", user_file).complaint(1)
    vectors = (user_file.with_name("rows.npy"), "--output", user_file.with_name("scores.npy"))
    assert "taste@1 is a set of item embeddings, which transforms no rows" in dpca(
        "transform", "taste", *vectors
    ).complaint(1)
    assert "a subspace is needed" in dpca("subspace", "refit", "taste", "--components", 1, "--publish", "x").complaint(
        1
    )


@pytest.mark.usefixtures("films")
def test_a_non_private_reference_needs_an_explicit_option_and_voids_the_budget(dpca: Command, user_file: Path) -> None:
    words = [word for word in (*COMPLETE, "--mechanism", "als") if word not in ("--epsilon", "--delta", "8", "1e-4")]
    assert "insist with --i-know-this-is-not-private" in dpca(*words).complaint(1)
    assert "is private, and --i-know-this-is-not-private is only for als" in dpca(
        *COMPLETE, "--i-know-this-is-not-private"
    ).complaint(1)
    insisted = (*words, "--i-know-this-is-not-private")
    shown = json.loads(dpca(*insisted, "--dry-run").out)
    assert (shown["certified"], "advice" in shown) == (False, False)
    report = json.loads(dpca(*insisted).out)
    assert report["artifact"] == "taste@1"
    described = json.loads(dpca("registry", "show", "taste", "--json").out)
    assert (described["mechanism"], described["private"]) == ("als", False)
    assert "NOT PRIVATE" in repr(Registry.open().load("taste", ItemEmbeddings))
    assert len(json.loads(dpca("recommend", "taste", user_file, "--json").out)) == 4
    assert dpca(*COMPLETE).status == 3  # the non-private reference has voided the budget


@pytest.mark.usefixtures("films")
def test_a_dry_run_advises_and_auto_follows_the_advice(dpca: Command) -> None:
    shown = json.loads(dpca(*COMPLETE, "--dry-run").out)
    errors = shown["expected_errors"]
    best = next(iter(errors))
    assert errors[best] == min(errors.values())
    assert set(errors) == {"dpals", "item_means", "one_shot"}
    assert shown["advice"].startswith(f"use {best}: with 1,000 users, each with 4 ratings")
    assert "factors explain 50% of their variance (assumed)" in shown["advice"]
    declared = json.loads(dpca(*COMPLETE, "--dry-run", "--signal", "0.9").out)
    assert "factors explain 90% of their variance (declared)" in declared["advice"]
    assert declared["expected_errors"]["one_shot"] < errors["one_shot"]
    ended = json.loads(dpca(*COMPLETE, "--mechanism", "auto").out)
    assert json.loads(dpca("registry", "show", ended["artifact"], "--json").out)["mechanism"] == best
    assert json.loads(dpca(*COMPLETE, "--mechanism", "auto").out)["reused"]
    assert "auto accepts no settings" in dpca(*COMPLETE, "--mechanism", "auto", "--settings", "rounds=2").complaint(1)


@pytest.mark.usefixtures("films")
def test_a_release_in_tiles_is_charged_once_and_its_record_is_whole(
    dpca: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Release statistics of six items in tiles of two: each round is one charged step with three stored tiles."""
    monkeypatch.setattr(joint_sum, "TILE", 2 * 5)
    ended = dpca(*COMPLETE, "--settings", "rounds=2")
    assert ended.status == 0, ended.err
    assert json.loads(ended.out)["spent"] == pytest.approx(8.0, abs=1e-2)
    with Workspace.open().ledger.transaction() as connection:
        places = sorted(connection.execute(sa.select(tables.step.c.step)).scalars())
    assert dpca("doctor").status == 0
    assert places == [0, 1, 2, *sorted(3 * (tile + 1) + step for tile in range(3) for step in (1, 2))]


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"--ratings-between": "5:1"}, "must be a range A:B"),
        ({"--ratings-between": "3:3"}, "must be a range A:B"),
        ({"--ratings-between": "low:high"}, "must be a range A:B"),
        ({"--rank": "6"}, "rank=6 must be at least 1 and below the 6 items"),
        ({"--delta": "0.5"}, "not below 1/records_at_most"),
        ({"--mechanism": "svd"}, "mechanism='svd' is not one of auto, "),
        ({"--settings": "speed=3"}, "has no setting 'speed'"),
        ({"--settings": "rounds=0"}, "greater than or equal to 1"),
    ],
)
@pytest.mark.usefixtures("films")
def test_an_impossible_request_is_refused_before_a_charge(
    dpca: Command, home: Path, changed: dict[str, str], rule: str
) -> None:
    before = facts_of(home)
    assert rule in dpca(*COMPLETE, *(word for pair in changed.items() for word in pair)).complaint(1)
    assert facts_of(home) == before


@pytest.mark.usefixtures("films")
def test_records_of_several_rows_are_refused(dpca: Command, tmp_path: Path) -> None:
    source = tmp_path / "wide.csv"
    source.write_text("who,a,b,c\n1,1,2,3\n1,2,2,2\n")
    words = ("dataset", "ingest", source, "--name", "many", "--features", 3, "--records-at-most", 9)
    assert dpca(*words, "--unit-column", "who", "--direct").status == 0
    assert dpca("budget", "open", "many", "--epsilon", "10", "--delta", "1e-4").status == 0
    requested = [word if word != "films" else "many" for word in COMPLETE]
    assert "may have several rows, and completion needs one row for each user" in dpca(*requested).complaint(1)


def test_the_byte_order_mark_of_a_spreadsheet_is_no_part_of_the_header(user_file: Path) -> None:
    user_file.write_text("item,rating\nalien,5\n", encoding="utf-8-sig")
    assert read_ratings(user_file) == (["alien"], [5.0])


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("item,rating\nalien,much\n", "a rating that is not a number"),
        ("item,rating\nalien\n", "a rating that is not a number"),
        ("item,rating\n", "contains no rating"),
        ("", "no columns item and rating"),
        ("film,stars\nalien,5\n", "no columns item and rating"),
    ],
)
@pytest.mark.parametrize("words", [("recommend",), ("completion", "predict")], ids=" ".join)
def test_a_file_without_ratings_is_refused_in_one_line(
    user_file: Path, dpca: Command, words: tuple[str, ...], text: str, rule: str
) -> None:
    user_file.write_text(text)
    assert rule in dpca(*words, "taste", user_file).complaint(1)


def test_a_subspace_is_refused_as_embeddings_and_a_missing_file_is_named(
    released: Path, user_file: Path, dpca: Command
) -> None:
    assert (released / "registry").exists()
    complaint = dpca("recommend", "sub", user_file).complaint(1)
    assert "sub@1 is a subspace, but a set of item embeddings is needed" in complaint
    assert "cannot be read" in dpca("completion", "predict", "sub", user_file.with_name("none.csv")).complaint(1)


@pytest.mark.usefixtures("films")
def test_embeddings_are_evaluated_privately_at_no_charge_or_publicly_at_a_charge(home: Path, dpca: Command) -> None:
    words = [word if word != "8" else "4" for word in COMPLETE]
    assert dpca(*words).status == 0
    evaluate = ("completion", "evaluate", "taste@1", "films", "--count", "3")
    buy = (*evaluate, "--release", "--epsilon", "2", "--delta", "1e-5", "--direct", "--yes", "--json")
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    ended = dpca(*evaluate, "--json")
    assert ended.status == 0, ended.err
    assert "NOT private" in ended.err
    found = json.loads(ended.out)
    assert (found["private"], found["users"], found["count"]) == (False, 80, 3)
    assert 0 < found["rmse"] < 5
    assert 0 <= found["ndcg"] <= 1
    assert "--delta" in dpca(*evaluate, "--release", "--epsilon", "1", "--direct", "--yes").complaint(2)
    assert "epsilon=0.0 must be greater than 0" in dpca(*[word if word != "2" else "0" for word in buy]).complaint(1)
    assert "nothing was charged" in dpca(*[word if word != "2" else "90" for word in buy]).complaint(3)
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before

    report = json.loads(dpca(*buy).out)
    assert (report["artifact"], report["mechanism"], report["private"]) == (
        "taste.evaluation@1",
        "prediction_error",
        True,
    )
    assert report["users"] == pytest.approx(80, abs=6 * report["users_std"])
    again = json.loads(dpca(*buy).out)
    assert (again["reused"], again["users"], again["spent"]) == (True, report["users"], report["spent"])
    assert "a subspace is needed" in dpca("subspace", "evaluate", "taste", "films").complaint(1)
    wrong = dpca("completion", "evaluate", "taste.evaluation", "films").complaint(1)
    assert "a set of item embeddings is needed" in wrong
    items, plays = home / "plays.txt", home / "plays.csv"
    items.write_text("\n".join(reversed(ITEMS)))
    plays.write_text(f"user,film,stars\n0,{ITEMS[0]},5\n")
    assert dpca("dataset", "ingest", plays, "--name", "plays", "--feature-names", items, *INGEST).status == 0
    assert "have other names" in dpca("completion", "evaluate", "taste@1", "plays").complaint(1)


def test_an_audit_reads_the_offset_of_an_item_or_the_absolute_value_of_its_factor() -> None:
    nothing: Any = None
    read, offsets = of_item(nothing, nothing), np.array([0.5, 2.0])
    assert read(ItemFactors(offsets=offsets, factors=-np.array([[3.0, 1.0], [4.0, 5.0]]), user_step={})) == 3.0
    assert read(ItemFactors(offsets=offsets, user_step={})) == 0.5


TWICE = "user,film,stars\n" + "".join(f"{user},{film},4\n" for user in range(40) for film in ("a", "b", "c", "a"))


@pytest.mark.parametrize(
    ("words", "between", "rule"),
    [
        ((), "1:5", "ingest it again with --duplicates last"),
        (("--keep-zeros",), "0:5", "ingest it again with --duplicates last"),
        (("--duplicates", "last"), "0:5", "ingested without its zeros"),
        (("--duplicates", "mean"), "-1:1", "ingested without its zeros"),
        (("--duplicates", "last"), "-5:0", "ingested without its zeros"),
        (("--duplicates", "last"), "1:5", None),
        (("--duplicates", "sum"), "1:5", None),
        (("--duplicates", "last", "--keep-zeros"), "0:5", None),
    ],
)
def test_ratings_that_were_added_up_or_dropped_are_refused_before_a_charge(
    home: Path, dpca: Command, tmp_path: Path, words: tuple[str, ...], between: str, rule: str | None
) -> None:
    """Fit a dataset whose ratings were added up or whose zeros were dropped: it is refused before any charge.

    The refusal depends on the options of the ingest alone, so it reveals nothing about rows.
    """
    (tmp_path / "twice.csv").write_text(TWICE)
    (tmp_path / "items.txt").write_text("a\nb\nc\n")
    ingest = ("dataset", "ingest", tmp_path / "twice.csv", "--name", "films", "--feature-names", tmp_path / "items.txt")
    columns = ("--columns", "row=user,column=film,value=stars", "--records-at-most", 100, "--direct")
    assert dpca(*ingest, *columns, *words).status == 0
    assert dpca("budget", "open", "films", "--epsilon", "10", "--delta", "1e-4").status == 0
    at = COMPLETE.index("--ratings-between")
    requested = dpca(*COMPLETE[: at + 1], between, *COMPLETE[at + 2 :])
    if rule is None:
        assert requested.status == 0
    else:
        assert rule in requested.complaint(1)
        assert Workspace.read_only().ledger.statement("films").spent == 0


def test_ratings_of_a_user_that_name_one_item_twice_are_refused(tmp_path: Path) -> None:
    (tmp_path / "me.csv").write_text("item,rating\na,4\na,5\n")
    with pytest.raises(BadSource, match="rates one item twice"):
        read_ratings(tmp_path / "me.csv")
