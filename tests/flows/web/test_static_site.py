"""The static site is the served one as files: whole or not at all, with links that lead to files of it."""

import json
import re
from pathlib import Path
from posixpath import dirname, join, normpath

import pytest

from flows.web import static_site
from flows.web.pages import Site
from tests.docs.reader import DOCS, shell_blocks
from tests.flows.conftest import Command
from tests.flows.web.sample_home import add_versions
from tests.flows.web.test_pages import Page, damage


def test_every_link_of_every_file_leads_to_a_file(
    sample: Path, dpca: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    typed = shell_blocks(DOCS / "how-to" / "web-page.md")[-1]
    assert typed == "dpca site build public\n"
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
    assert dpca("site", "build", tmp_path / "site").status == 0
    for page in ("versions/visits-map@1.json", "budgets/people.json", "differences/visits-map@1/visits-map@2.json"):
        assert (tmp_path / "site" / page).read_bytes() == Site(live=True).answer(page).content


def test_charts_are_drawn_of_the_newest_versions_and_of_those_with_an_alias(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_versions("visits-map", 3)
    monkeypatch.setattr(static_site, "DRAWN", 2)
    static_site.build_site(tmp_path / "site", tell=lambda *_: None)
    drawn = {path.name for path in (tmp_path / "site" / "charts" / "versions").glob("visits-map@*")}
    listed = json.loads((tmp_path / "site" / "names" / "visits-map.json").read_text())
    newest = len(listed["versions"])
    expected = {newest, newest - 1, *listed["aliases"].values()}
    assert drawn == {f"visits-map@{version}" for version in expected}
    assert len(expected) < newest
    undrawn = min({*range(1, newest + 1)} - expected)
    assert "charts/" not in (tmp_path / "site" / "versions" / f"visits-map@{undrawn}.html").read_text()


@pytest.mark.parametrize("kind", ["artifact", "ledger"])
def test_a_page_that_cannot_be_made_leaves_nothing(sample: Path, dpca: Command, tmp_path: Path, kind: str) -> None:
    damage(sample, kind)
    dpca("site", "build", tmp_path / "out" / "site").complaint(1)
    (tmp_path / "out").mkdir()
    dpca("site", "build", tmp_path / "out" / "site").complaint(1)
    assert list((tmp_path / "out").iterdir()) == []


def test_nothing_is_written_over(sample: Path, dpca: Command, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    assert "must be a new folder" in dpca("site", "build", tmp_path / "there").complaint(1)
    assert "must be a new folder" in dpca("site", "build", tmp_path / "none" / "site").complaint(1)


def test_an_empty_home_is_a_site_of_one_page(dpca: Command, home: Path, tmp_path: Path) -> None:
    assert '"pages": 1' in dpca("site", "build", tmp_path / "site", "--json").out
    assert not home.exists()
