"""Web pages with lists: they can be filtered, ordered and downloaded; a version's page starts with its key facts."""

import csv
import getpass
import io
import json

import pytest

from flows.web.lists import LISTS, csv_of
from flows.web.pages import Site
from tests.flows.web.test_pages import Page


def rows_of(answer_csv: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(answer_csv.decode())))


@pytest.mark.parametrize(
    ("page", "column", "count"),
    [("index", "name", 8), ("names/visits-map", "artifact", 3), ("budgets/people", "mechanism", 6)],
)
def test_a_list_is_downloaded_as_csv_with_the_rows_of_the_page(site: Site, page: str, column: str, count: int) -> None:
    answer = site.answer(f"{page}.csv")
    assert (answer.status, answer.media) == (200, "text/csv; charset=utf-8")
    facts = json.loads(site.answer(f"{page}.json").content)
    rows = rows_of(answer.content)
    assert len(rows) == count
    assert [row[column] for row in rows] == [row[column] or "" for row in facts[LISTS[facts["page"]]]]
    hrefs = [tag["href"] for tag in Page(site.answer(f"{page}.html").content).of("a")]
    assert page.rpartition("/")[2] + ".csv" in hrefs


def test_rows_are_found_by_a_text_and_ordered_by_a_column(site: Site) -> None:
    found = rows_of(site.answer("names/visits-map.csv", find="CHAMPION").content)
    assert [row["artifact"] for row in found] == ["visits-map@1"]
    for order, expected in (("version", [1, 2, 3]), ("-version", [3, 2, 1]), ("unknown", [3, 2, 1])):
        rows = rows_of(site.answer("names/visits-map.csv", order=order).content)
        assert [int(row["version"]) for row in rows] == expected
    page = Page(site.answer("names/visits-map.html", find="champion", order="-version").content)
    assert {"find", "order"} <= {tag.get("id") for _, tag in page.tags}
    assert "visits-map@2" not in page.words.partition("Versions")[2]
    assert "names/visits-map.html" not in page.words


def test_pages_without_a_list_have_no_csv(site: Site) -> None:
    assert site.answer("versions/visits-map@1.csv").status == 404


def test_a_text_that_a_spreadsheet_would_run_is_quoted() -> None:
    rows = {"names": [{"name": "=1+1"}, {"name": "@sum"}, {"name": "map"}]}
    assert csv_of("overview", rows).splitlines() == ["name", "'=1+1", "'@sum", "map"]


def test_the_page_of_a_version_starts_with_verdict_guarantee_budget_and_user(site: Site) -> None:
    words = " ".join(Page(site.answer("versions/visits-map@1.html").content).words.split())
    first = words.partition("Eigenvalues")[0]
    for text in (
        "3 of 3 components stand.",
        "(0.5, 1e-6)-differential privacy",
        "epsilon 7.",
        f"by {getpass.getuser()}",
    ):
        assert text in first
    assert "Loadings of all components" in words
    assert "feature-1" in words
    assert "share of all variance" in words


def test_every_number_of_a_page_has_three_digits(site: Site) -> None:
    words = Page(site.answer("budgets/people.html").content).words
    remaining = json.loads(site.answer("budgets/people.json").content)["remaining"]
    assert f"{remaining:.6g}" not in words
    assert f"{int(remaining * 100) / 100:.2f}" in words


def test_moves_of_aliases_show_who_and_why(site: Site) -> None:
    words = Page(site.answer("names/visits-map.html").content).words
    assert getpass.getuser() in words
    assert "promoted by hand" in words


def test_any_two_versions_are_compared_by_name(site: Site) -> None:
    forms = [
        tag for tag in Page(site.answer("versions/visits-map@1.html").content).of("form") if "compare" in tag["action"]
    ]
    assert len(forms) == 1
    assert site.answer("differences/visits-map@1/visits-two@1.html").status == 200
