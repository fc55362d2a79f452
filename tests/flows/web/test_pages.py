"""Web pages and the static site: facts and JSON agree, links are valid, and errors have a page.

Nothing is loaded from other hosts. The static site consists of the served pages as files: complete or absent, with
links to its own files.

Lists on pages can be filtered, ordered and downloaded; a version's page starts with its key facts.
"""

import csv
import getpass
import io
import json
import os
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from posixpath import dirname, join, normpath
from time import sleep
from urllib.parse import unquote

import pytest

from flows.web import differences, pages
from flows.web.pages import LISTS, Site, csv_of
from storage.workspace import Workspace
from tests.docs.reader import DOCS, shell_blocks
from tests.flows.conftest import Command, facts_of, isolate
from tests.flows.web.conftest import SPACED, add_versions

THEMES = ("light", "dark")
VOID = {"meta", "link", "img", "input", "source", "br"}


class Page(HTMLParser):
    """Parser of a page into tags with attributes, and text; it requires that tags are closed in order."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.words = ""
        self._open: list[str] = []
        self.feed(content.decode())
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data

    def of(self, name: str) -> list[dict[str, str]]:
        return [attributes for tag, attributes in self.tags if tag == name]


def addresses(site: Site) -> Iterator[tuple[str, Page]]:
    """Follow every link from the index, and yield path and answer of each page."""
    seen, left = set(), ["index.html"]
    while left:
        path = left.pop()
        if path in seen:
            continue
        seen.add(path)
        answer = site.answer(path)
        assert answer.status == 200, path
        if not path.endswith(".html"):
            continue
        page = Page(answer.content)
        yield path, page
        named = [tag["href"] for kind in ("a", "link") for tag in page.of(kind)]
        named += [tag.get("src", tag.get("srcset", "")) for kind in ("img", "source") for tag in page.of(kind)]
        for href in named:
            if href.startswith(("#", "data:")):
                continue
            assert not re.match(r"[a-z]+:|/", href), href
            left.append(normpath(join(dirname(path), unquote(href.partition("#")[0]))))


@pytest.fixture(scope="module")
def walked(sample_home: Path) -> dict[str, Page]:
    with pytest.MonkeyPatch.context() as patch:
        isolate(patch, home=sample_home)
        return dict(addresses(Site(live=True)))


def test_every_page_is_reached_from_the_index_by_relative_links(shared: Path, walked: dict[str, Page]) -> None:
    kinds = {path.partition("/")[0] for path in walked}
    assert kinds == {"index.html", "names", "versions", "differences", "budgets"}
    names = Workspace.read_only().registry.list()
    assert {f"versions/{row}.html" for row in names} <= walked.keys()


def test_pages_run_no_script_and_load_nothing_from_other_hosts(walked: dict[str, Page]) -> None:
    for path, page in walked.items():
        assert not page.of("script") + page.of("iframe") + page.of("style"), path
        for tag, attributes in page.tags:
            assert not [name for name in attributes if name.startswith("on") or name == "style"], (path, tag)
            for name in ("src", "href", "action", "srcset"):
                assert not re.match(r"(?:https?:)?//", attributes.get(name, "")), path


def test_pages_have_titles_landmarks_and_texts_for_screen_readers(walked: dict[str, Page]) -> None:
    for path, page in walked.items():
        assert page.of("html") == [{"lang": "en"}], path
        assert len(page.of("h1")) == len(page.of("main")) == len(page.of("title")) == 1, path
        ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
        assert len(ids) == len(set(ids)), path
        assert page.of("a")[0]["href"] == "#content", path
        assert len(page.of("caption")) == len(page.of("table")), path
        for attributes in (*page.of("img"), *page.of("meter")):
            assert attributes.get("alt") or attributes.get("aria-label"), path
        for attributes in page.of("input"):
            assert attributes["type"] == "hidden" or attributes["id"] in [tag["for"] for tag in page.of("label")], path


def test_the_json_next_to_a_page_has_its_numbers(site: Site, walked: dict[str, Page]) -> None:
    for path, page in walked.items():
        facts = json.loads(site.answer(path.removesuffix(".html") + ".json").content)
        assert [tag["href"] for tag in page.of("link") if tag.get("type") == "application/json"]
        reported = [row["eigenvalue"] for row in (facts.get("spectrum") or {}).get("rows", [])]
        reported += [row["loading"] for part in facts.get("parts", []) for row in part["loadings"]]
        left = [row["remaining"] for row in facts.get("history", [])]
        left += [row["epsilon_each"] for row in facts.get("pacing", []) if not facts["voided"]]
        reported += [row["right"] for row in facts.get("eigenvalues") or [] if row["right"] is not None]
        reported += [row["epsilon"] for row in facts.get("versions", []) if row["private"] and row["epsilon"]]
        for value in reported:
            assert pages.number(value) in page.words, (path, value)
        for value in left:
            assert pages.left(value) in page.words, (path, value)


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (
            "versions/visits-map@1.html",
            ("3 of 3 components stand.", "100", "feature-", "(0.5, 1e-6)", "champion", "share of all variance"),
        ),
        ("versions/report-topics@1.html", ("2 topics of 12 words", "topic 2", "feature-")),
        ("versions/taste@1.html", ("2 factors and an offset of 12 items", "offsets of items", "joint differential")),
        (
            "versions/visits-map.evaluation@1.html",
            ("share of all variance, standard deviation", "0.02", "visits-map@1"),
        ),
        ("versions/joint-map@1.html", ("north", "south")),
        ("versions/nightly@1.html", ("tick 1 of 3", "night 1")),
        ("versions/exact@1.html", ("NOT PRIVATE", "no guarantee")),
        ("names/exact.html", ("NOT PRIVATE",)),
        ("budgets/open.html", ("void",)),
        ("budgets/people.html", ("52", "fit")),
    ],
)
def test_each_family_has_a_page_with_its_description(
    walked: dict[str, Page], path: str, shown: tuple[str, ...]
) -> None:
    for text in shown:
        assert text in walked[path].words, text


def test_charts_are_drawn_once_for_both_themes_and_have_their_numbers_in_a_table(
    site: Site, walked: dict[str, Page]
) -> None:
    shown = {path: page for path, page in walked.items() if page.of("picture")}
    assert {"versions/visits-map@1.html", "budgets/people.html"} <= shown.keys()
    for path, page in shown.items():
        assert len(page.of("table")) >= len(page.of("picture")), path
        for image, source in zip(page.of("img"), page.of("source"), strict=True):
            assert "the table below has the same numbers" in image["alt"]
            assert source["srcset"] == image["src"].replace("-light", "-dark")
            assert source["media"] == "(prefers-color-scheme: dark)"
    address = "charts/versions/visits-map@1/scree"
    differences._scree.cache_clear()
    light, dark, again = (site.answer(f"{address}-{theme}.svg") for theme in ("light", "dark", "light"))
    assert (light.status, light.media) == (200, "image/svg+xml")
    assert light.content is again.content
    assert light.content != dark.content
    for wrong in ("versions/taste@1/scree-light", "versions/visits-map@1/scree-red", "budgets/none/burn-down-dark"):
        assert site.answer(f"charts/{wrong}.svg").status == 404


def test_concurrent_requests_draw_charts_one_at_a_time(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    unfinished: list[int] = []
    most: list[int] = []

    def drawn(figure: object) -> bytes:
        unfinished.append(1)
        most.append(len(unfinished))
        sleep(0.02)
        unfinished.pop()
        return b"drawn"

    monkeypatch.setattr(differences, "render", drawn)
    differences._scree.cache_clear()
    differences._loadings.cache_clear()
    requested = [
        f"charts/versions/visits-two@1/{what}-{theme}.svg" for what in ("scree", "loadings") for theme in THEMES
    ]
    with ThreadPoolExecutor(4) as threads:
        assert {answer.content for answer in threads.map(site.answer, requested)} == {b"drawn"}
    assert most == [1] * 2  # each chart is drawn once: the dark one is the light one with replaced colors
    differences._scree.cache_clear()
    differences._loadings.cache_clear()


def test_names_chosen_by_users_are_escaped(walked: dict[str, Page]) -> None:
    assert SPACED in walked["index.html"].words
    assert not walked["index.html"].of("b")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("names/none.html", 404),
        ("names/none.json", 404),
        ("versions/visits-map@9.html", 404),
        ("versions/visits-map@0.html", 404),
        ("versions/none@1.json", 404),
        ("differences/visits-map@1/taste@1.html", 404),
        ("budgets/nobody.html", 404),
        ("datasets.html", 404),
        ("../../etc/passwd", 404),
        ("names/visits-map", 404),
        ("names/visits-map.html/", 404),
        ("x" * 5000, 404),
        ("names/\N{SNOWMAN}\n.html", 404),
    ],
)
def test_a_missing_page_has_an_error_page(site: Site, path: str, status: int) -> None:
    answer = site.answer(path)
    assert answer.status == status
    reported(answer.content, is_json=path.endswith(".json"))


def reported(content: bytes, *, is_json: bool = False) -> str:
    """Return the text of an error page, and check that it contains no path and no traceback."""
    assert os.environ["DPCA_HOME"].encode() not in content
    assert b"Traceback" not in content
    if is_json:
        facts = json.loads(content)
        assert facts["page"] == "trouble"
        return str(facts["text"])
    page = Page(content)
    assert len(page.of("h1")) == 1
    return page.words


def damage(home: Path, kind: str) -> None:
    match kind:
        case "artifact":
            for path in home.glob("registry/artifacts/*/subspace.zarr/components/c/0/0"):
                path.write_bytes(path.read_bytes()[:-1] + b"\x07")
        case "manifest":
            for path in home.glob("registry/artifacts/*/manifest.json"):
                path.write_text("{")
        case "artifacts gone":
            shutil.rmtree(home / "registry" / "artifacts")
        case "ledger":
            (home / "dpca.sqlite").write_bytes(b"no database at all" * 100)
        case "another ledger's names":
            (home / "registry" / "names" / "stranger.json").write_text("{}")
        case "keys":
            (home / "keys" / "witness.json").write_text("{")
        case "open to others":
            home.chmod(0o755)


TROUBLES = ("ledger", "another ledger's names", "keys", "open to others")


@pytest.mark.parametrize("kind", [*TROUBLES, "artifact", "manifest", "artifacts gone"])
def test_damage_gives_a_503_page_without_paths_and_other_pages_still_work(sample: Path, kind: str) -> None:
    site = Site(live=True)
    damage(sample, kind)
    for path in ("versions/visits-map@1.html", "versions/visits-map@1.json"):
        answer = site.answer(path)
        assert answer.status == 503
        reported(answer.content, is_json=path.endswith(".json"))
    whole = site.answer("names/visits-map.html")
    assert whole.status == (503 if kind in TROUBLES else 200)
    sample.chmod(0o700)


def test_an_unexpected_error_gives_an_error_page_without_its_text(shared: Path) -> None:
    def broken() -> Workspace:
        raise RuntimeError(f"sums [0.739085] of {shared}")

    answer = Site(live=True, open_workspace=broken).answer("index.html")
    assert answer.status == 500
    assert b"0.739085" not in answer.content
    reported(answer.content)


def test_an_empty_or_missing_home_is_reported_and_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir(mode=0o700)
    for name in ("empty", "none"):
        isolate(monkeypatch, home=tmp_path / name)
        answer = Site(live=True).answer("")
        assert answer.status == 200
        assert "Nothing is published yet" in Page(answer.content).words
        assert "No budget is open yet" in Page(answer.content).words
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
    assert list((tmp_path / "empty").iterdir()) == []


def test_reading_every_page_changes_nothing_in_the_home(sample: Path) -> None:
    before = facts_of(sample)
    paths = [path for path, _ in addresses(Site(live=True, curator=True))]
    assert len(paths) > 20
    assert facts_of(sample) == before


def test_the_curator_sees_declared_facts_of_datasets_and_no_count(shared: Path) -> None:
    requested = Site(live=True, curator=True)
    (row,) = json.loads(requested.answer("datasets.json").content)["datasets"]
    reported = {"dataset", "population", "n_features", "records_at_most", "ingested"}
    assert row.keys() == reported | {"unit", "rows_per_unit", "unit_in_words"}
    assert (row["dataset"], row["population"], row["n_features"], row["records_at_most"]) == ("news", "people", 3, None)
    assert "news" in Page(requested.answer("datasets.html").content).words
    assert "datasets.html" in [tag["href"] for tag in Page(requested.answer("index.html").content).of("a")]
    assert Site(live=True).answer("datasets.json").status == 404


def test_every_link_of_every_file_leads_to_a_file(
    sample: Path, dpca: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    typed = shell_blocks(DOCS / "how-to" / "web-page.md")[-1]
    assert typed == "dpca pages build public\n"
    ended, out = dpca(*typed.split()[1:], "--json"), tmp_path / "public"
    assert ended.status == 0, ended
    written = {path.relative_to(out).as_posix(): path for path in out.rglob("*") if path.is_file()}
    assert {"index.html", "index.json", "names/visits-map.html", "versions/taste@2.json"} <= written.keys()
    assert not [path for path in written if "dataset" in path]
    for name, path in written.items():
        if not name.endswith(".html"):
            continue
        page = Page(path.read_bytes())
        assert not page.of("form")
        named = [tag["href"] for kind in ("a", "link") for tag in page.of(kind)]
        named += [tag.get("src", tag.get("srcset", "")) for kind in ("img", "source") for tag in page.of(kind)]
        for href in named:
            if not href.startswith(("#", "data:")):
                assert not re.match(r"[a-z]+:|/", href)
                assert normpath(join(dirname(name), href.partition("#")[0])) in written, (name, href)
    assert f'"pages": {sum(name.endswith(".html") for name in written)}' in ended.out


def test_a_page_has_the_same_facts_as_the_served_one(sample: Path, dpca: Command, tmp_path: Path) -> None:
    assert dpca("pages", "build", tmp_path / "site").status == 0
    for page in ("versions/visits-map@1.json", "budgets/people.json", "differences/visits-map@1/visits-map@2.json"):
        assert (tmp_path / "site" / page).read_bytes() == Site(live=True).answer(page).content


def test_charts_are_drawn_of_the_newest_versions_and_of_those_with_an_alias(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_versions("visits-map", 3)
    monkeypatch.setattr(pages, "DRAWN", 2)
    pages.build_site(tmp_path / "site", notify=lambda *_: None)
    drawn = {path.name for path in (tmp_path / "site" / "charts" / "versions").glob("visits-map@*")}
    listed = json.loads((tmp_path / "site" / "names" / "visits-map.json").read_text())
    newest = len(listed["versions"])
    expected = {newest, newest - 1, *listed["aliases"].values()}
    assert drawn == {f"visits-map@{version}" for version in expected}
    assert len(expected) < newest
    undrawn = min({*range(1, newest + 1)} - expected)
    assert "charts/" not in (tmp_path / "site" / "versions" / f"visits-map@{undrawn}.html").read_text()


@pytest.mark.parametrize("kind", ["artifact", "ledger"])
def test_a_site_with_a_failing_page_is_not_written(sample: Path, dpca: Command, tmp_path: Path, kind: str) -> None:
    damage(sample, kind)
    dpca("pages", "build", tmp_path / "out" / "site").complaint(1)
    (tmp_path / "out").mkdir()
    dpca("pages", "build", tmp_path / "out" / "site").complaint(1)
    assert list((tmp_path / "out").iterdir()) == []


def test_an_existing_site_is_not_overwritten(sample: Path, dpca: Command, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    assert "must be a new folder" in dpca("pages", "build", tmp_path / "there").complaint(1)
    assert "must be a new folder" in dpca("pages", "build", tmp_path / "none" / "site").complaint(1)


def test_an_empty_home_gives_a_site_of_one_page(dpca: Command, home: Path, tmp_path: Path) -> None:
    assert '"pages": 1' in dpca("pages", "build", tmp_path / "site", "--json").out
    assert not home.exists()


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
