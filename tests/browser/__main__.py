"""Show the pages to a headless Chromium, and hold each against what it must pass; or write the pictures of the guide.

``python -m tests.browser`` checks; with ``--screenshots FOLDER`` it writes the five main pages as PNG instead.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from flows.web.static_site import build_site
from tests.browser.checks import (
    Failed,
    clean_page,
    fits_narrow,
    log_in,
    passes_axe,
    pictures_are_drawn,
    works_by_keyboard,
)
from tests.browser.home import NAME, POPULATION, Secrets, environment, make_home
from tests.browser.scan import as_shown, found_in, responses
from tests.browser.server import TOKEN, served
from tests.flows.web.sample_home import Maker, add_versions, subspace
from tests.leaks.canaries import RECORD

MAIN = {
    "overview": "index.html",
    "name": f"names/{NAME}.html",
    "version": f"versions/{NAME}@3.html",
    "difference": f"differences/{NAME}@2/{NAME}@3.html",
    "budget": f"budgets/{POPULATION}.html",
}
OTHERS = (
    "versions/report-topics@1.html",
    "versions/taste@1.html",
    "versions/joint-map@1.html",
    "datasets.html",
)
LOOKS: tuple[dict[str, Any], ...] = ({}, {"scheme": "dark"}, {"narrow": True})
VERSIONS, SECONDS, TRIES = 1000, 1.0, 5


def main() -> int:
    """Run everything in a folder that goes away; the last line counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--screenshots", type=Path, metavar="FOLDER", help="write pictures of the main pages there")
    asked = parser.parse_args()
    program = next(
        (found for name in ("chromium", "chromium-browser", "chrome") if (found := shutil.which(name))), None
    )
    if program is None:
        print("browser: there is no Chromium; install it (Debian: apt-get install chromium)", file=sys.stderr)
        return 1
    root = Path(tempfile.mkdtemp(prefix="dpca-browser-"))
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:5.1f} s] {text}", flush=True)

    try:
        with environment(root), sync_playwright() as playwright:
            secrets = make_home(root)
            say("a home with versions of every family is made")
            flags = ["--no-sandbox"] if os.geteuid() == 0 else []
            browser = playwright.chromium.launch(executable_path=program, args=flags)
            with served(root) as address:
                state = log_in(browser, address, TOKEN)
                if asked.screenshots is not None:
                    _picture(browser, address, state, asked.screenshots)
                    say(f"{len(MAIN)} pictures are in {asked.screenshots}")
                else:
                    _check(browser, address, state, secrets, root, say)
            browser.close()
    except (Failed, AssertionError) as failure:
        print(f"browser: {' '.join(str(failure).split())}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return 0


def _check(
    browser: Browser, address: str, state: Any, secrets: Secrets, root: Path, say: Callable[[str], None]
) -> None:
    runs = pictures = stops = 0
    for look in LOOKS:
        with clean_page(browser, state=state, **look) as page:
            for path in (*MAIN.values(), *(() if look else OTHERS)):
                page.goto(address + path)
                pictures += pictures_are_drawn(page)
                if look.get("narrow"):
                    fits_narrow(page)
                passes_axe(page)
                runs += 1
    say(f"{runs} views pass axe, light, dark and at 320 pixels; {pictures} charts are drawn")
    with clean_page(browser, state=state) as page:
        for path in MAIN.values():
            page.goto(address + path)
            stops += works_by_keyboard(page)
    say(f"{stops} stops by keyboard, each visible and in order")
    _show_files(browser, root)
    say("the static site opens from its folder")
    count = _scan(address, secrets)
    say(f"{count} responses give nothing away, and what is planted is found")
    add_versions(NAME, VERSIONS - 3)
    took = _time_list(browser, address, state)
    say(f"{VERSIONS:,} versions are listed in {took:.2f} s")
    if took >= SECONDS:
        raise Failed(f"{VERSIONS} versions took {took:.2f} s, and may take {SECONDS}")
    print(f"views={runs} stops={stops} responses={count} leaks=0")


def _scan(address: str, secrets: Secrets) -> int:
    """Search every response, then plant a row's value and find it."""
    shown = as_shown(secrets)
    count = 0
    for path, content in responses(address, TOKEN):
        count += 1
        if hits := found_in(content, secrets, shown):
            raise Failed(f"{path} gives away {hits[0]}")
    said = [f"a row of {RECORD[0]!r}"]
    Maker().publish("planted", lambda **facts: subspace(seed=9, warnings=said, **facts), population="readers")
    about = ((path, content) for path, content in responses(address, TOKEN) if "planted" in path)
    planted = {path for path, content in about if found_in(content, secrets, shown)}
    if planted != {"versions/planted@1.html", "versions/planted@1.json"}:
        raise Failed(f"a planted value was found on {sorted(planted)}")
    return count


def _show_files(browser: Browser, root: Path) -> None:
    build_site(root / "public", tell=lambda done, total: None)
    with clean_page(browser, scheme="dark") as page:
        page.goto((root / "public" / "index.html").as_uri())
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        for link in (NAME, f"{NAME}@3"):
            with page.expect_navigation(wait_until="load"):
                page.click(f"a:text-is('{link}')")
        if not pictures_are_drawn(page) or page.evaluate("getComputedStyle(document.body).backgroundColor") != ground:
            raise Failed("the static site has no charts or no style")


def _time_list(browser: Browser, address: str, state: Any) -> float:
    """Return the seconds from the request of the list to its last pixel, the least of a few."""
    script = "() => { const [at] = performance.getEntriesByType('navigation'); return at.loadEventEnd - at.startTime; }"
    times = []
    with clean_page(browser, state=state) as page:
        for _ in range(TRIES):
            page.goto(address + MAIN["name"], wait_until="load")
            page.wait_for_timeout(50)
            if page.locator("tbody tr th a").count() < VERSIONS:
                raise Failed("the list does not have every version")
            times.append(page.evaluate(script) / 1000.0)
    return float(min(times))


def _picture(browser: Browser, address: str, state: Any, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in MAIN.items():
        with clean_page(browser, state=state) as page:
            page.goto(address + path)
            pictures_are_drawn(page)
            page.screenshot(path=folder / f"web-{name}.png", animations="disabled")


if __name__ == "__main__":
    sys.exit(main())
