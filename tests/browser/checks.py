"""A program for `.venv-tools` that opens pages in a headless Chromium and checks each of them.

A page must work without an error, by keyboard alone, by the rules of the accessibility checker axe, and without
horizontal scrolling. A job is JSON on standard input: the path of the browser, the name of the job, and its arguments.
The last line printed is the result.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

NARROW, WIDE = ViewportSize(width=320, height=640), ViewportSize(width=1000, height=760)
THEMES: tuple[dict[str, Any], ...] = ({}, {"scheme": "dark"}, {"narrow": True})
_MOST_STOPS, _TRIES = 60, 5
_FOCUSED = """() => {
  const at = document.activeElement, style = getComputedStyle(at), box = at.getBoundingClientRect();
  const kinds = 'a[href], button, select, input:not([type=hidden]), summary, [tabindex="0"]';
  const all = [...document.querySelectorAll(kinds)];
  return {name: at.tagName, order: all.indexOf(at), outline: style.outlineStyle, width: parseFloat(style.outlineWidth),
          seen: box.right > 0 && box.bottom > 0 && box.left < innerWidth && box.top < innerHeight};
}"""


class Failed(Exception):
    """Error: a page fails a check."""


@contextmanager
def clean_page(
    browser: Browser, *, scheme: Literal["light", "dark"] = "light", narrow: bool = False, state: Any = None
) -> Iterator[Page]:
    """Yield a page on which any console error, failed request or request to another host fails the check."""
    size = NARROW if narrow else WIDE
    context = browser.new_context(viewport=size, color_scheme=scheme, storage_state=state, reduced_motion="reduce")
    page, wrong = context.new_page(), []
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("requestfailed", lambda request: wrong.append(f"{request.url} failed"))
    try:
        yield page
        if wrong:
            raise Failed(f"{page.url}: {wrong[0]}")
    finally:
        context.close()


def log_in(browser: Browser, address: str, token: str) -> Any:
    """Log in with the token by keyboard alone; return the cookies."""
    context = browser.new_context(viewport=WIDE)
    page = context.new_page()
    page.goto(address)
    page.focus("#token")
    page.keyboard.type(token)
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:text('Releases')")
    state = context.storage_state()
    context.close()
    return state


def passes_axe(page: Page) -> int:
    """Check a page, with all tables expanded, by axe's accessibility rules; return the number of passed rules."""
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    found = Axe().run(page, options={"resultTypes": ["violations", "passes"]}).response
    for violation in found["violations"]:
        where = violation["nodes"][0]
        raise Failed(f"{page.url}: {violation['id']}: {where['target']} {where['failureSummary']}")
    return len(found["passes"])


def fits_narrow(page: Page) -> None:
    """Check that a page does not scroll horizontally in a window of 320 pixels."""
    width = page.evaluate("document.documentElement.scrollWidth")
    if width > NARROW["width"]:
        raise Failed(f"{page.url} is {width} pixels wide on a screen of {NARROW['width']}")


def works_by_keyboard(page: Page) -> int:
    """Check the skip link, the tab order, the visible focus and the expandable details of a page by keyboard.

    Return the number of Tab stops.
    """
    page.keyboard.press("Tab")
    first = page.evaluate(_FOCUSED)
    if first["order"] != 0 or not first["seen"] or page.evaluate("document.activeElement.className") != "skip":
        raise Failed(f"{page.url}: the first Tab press must focus a visible skip link ({first})")
    page.keyboard.press("Enter")
    if page.evaluate("document.activeElement.id") != "content":
        raise Failed(f"{page.url}: the skip link must lead to the main content")
    last, stops = 0, 1
    while stops < _MOST_STOPS:
        page.keyboard.press("Tab")
        at = page.evaluate(_FOCUSED)
        if at["name"] == "BODY" or at["order"] == 0:
            break  # the Tab key moved the focus past the last element, or back to the first one
        if at["order"] <= last or not at["seen"] or at["outline"] == "none" or not at["width"] >= 2:
            raise Failed(f"{page.url}: Tab stop {stops} is out of order, invisible or not outlined ({at})")
        last, stops = at["order"], stops + 1
        if at["name"] == "SUMMARY":
            before = page.evaluate("document.activeElement.parentElement.open")
            page.keyboard.press("Enter")
            if page.evaluate("document.activeElement.parentElement.open") == before:
                raise Failed(f"{page.url}: an expandable summary does not open by keyboard")
            page.keyboard.press("Enter")
    return stops


def pictures_are_drawn(page: Page) -> int:
    """Check that every picture of a page is loaded; return the number of pictures."""
    sizes = page.evaluate("[...document.images].map(each => each.complete ? each.naturalWidth : 0)")
    if not all(sizes):
        raise Failed(f"{page.url}: a chart is not loaded")
    return len(sizes)


def check_views(browser: Browser, address: str, token: str, *, main: list[str], others: list[str]) -> dict[str, int]:
    """Check the main pages in all themes and widths, and the other pages in one; return the numbers of checks.

    The numbers are those of page views, charts, and elements reached by the Tab key.
    """
    views = charts = stops = 0
    state = log_in(browser, address, token)
    for inspect in THEMES:
        with clean_page(browser, state=state, **inspect) as page:
            for path in (*main, *(() if inspect else others)):
                page.goto(address + path)
                charts += pictures_are_drawn(page)
                if inspect.get("narrow"):
                    fits_narrow(page)
                passes_axe(page)
                views += 1
    with clean_page(browser, state=state) as page:
        for path in main:
            page.goto(address + path)
            stops += works_by_keyboard(page)
    return {"views": views, "charts": charts, "stops": stops}


def check_files(browser: Browser, *, index: str, links: list[str]) -> None:
    """Follow links of the static site from its index.

    The last page must show its charts and have the same background as the index in the dark theme.
    """
    with clean_page(browser, scheme="dark") as page:
        page.goto(index)
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        for link in links:
            with page.expect_navigation(wait_until="load"):
                page.click(f"a:text-is('{link}')")
        if not pictures_are_drawn(page) or page.evaluate("getComputedStyle(document.body).backgroundColor") != ground:
            raise Failed("a page of the static site has no charts, or another background than the index")


def time_list(browser: Browser, address: str, token: str, *, path: str, versions: int) -> float:
    """Return the shortest of several times in seconds, from the request of a list page until the page is drawn."""
    script = "() => { const [at] = performance.getEntriesByType('navigation'); return at.loadEventEnd - at.startTime; }"
    times = []
    with clean_page(browser, state=log_in(browser, address, token)) as page:
        for _ in range(_TRIES):
            page.goto(address + path, wait_until="load")
            page.wait_for_timeout(50)
            if page.locator("tbody tr th a").count() < versions:
                raise Failed("the list page does not show every version")
            times.append(page.evaluate(script) / 1000.0)
    return float(min(times))


def take_pictures(browser: Browser, address: str, token: str, *, paths: dict[str, str], folder: str) -> None:
    """Write a picture of each page to a folder."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    state = log_in(browser, address, token)
    for name, path in paths.items():
        with clean_page(browser, state=state) as page:
            page.goto(address + path)
            pictures_are_drawn(page)
            page.screenshot(path=Path(folder) / f"web-{name}.png", animations="disabled")


JOBS = {job.__name__: job for job in (check_views, check_files, time_list, take_pictures)}


def main() -> int:
    """Run the job from standard input; return 1 and print a line on standard error if a page fails a check."""
    job = json.load(sys.stdin)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=job["program"], args=job["flags"])
        try:
            result = JOBS[job["name"]](browser, *job["words"], **job["options"])
        except Failed as failure:
            print(" ".join(str(failure).split()), file=sys.stderr)
            return 1
        finally:
            browser.close()
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
