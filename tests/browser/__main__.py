"""Program that checks the web pages in a headless Chromium, or writes the pictures of the guide.

``python -m tests.browser`` runs the checks. With ``--screenshots FOLDER`` it writes the five main pages as PNG instead.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.web.pages import build_site
from tests.browser.home import NAME, POPULATION, TOKEN, Secrets, environment, make_home, served
from tests.browser.scan import as_shown, found_in, responses
from tests.flows.web.conftest import Maker, add_versions, subspace
from tests.leaks.guessing import RECORD
from tests.tools import python

ROOT = Path(__file__).parents[2]
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
VERSIONS, SECONDS = 1000, 1.0


class Failed(Exception):
    """Error: a page fails a check."""


@dataclass(frozen=True, slots=True)
class Chromium:
    """The Chromium browser of the system, controlled through a program of `.venv-tools`."""

    program: str

    def do(self, name: str, *words: str, **options: Any) -> Any:
        """Run a job of `tests.browser.checks` with these arguments, and return the job's result.

        Raises
        ------
        Failed
            If a page fails a check.
        """
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        job = {"program": self.program, "flags": flags, "name": name, "words": words, "options": options}
        command = [str(python()), "-m", "tests.browser.checks"]
        done = subprocess.run(command, cwd=ROOT, input=json.dumps(job), capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failed(done.stderr)
        return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    """Run all checks in a temporary folder; the last line of the output has the numbers of checks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--screenshots", type=Path, metavar="FOLDER", help="write pictures of the main pages to FOLDER")
    requested = parser.parse_args()
    program = next(
        (found for name in ("chromium", "chromium-browser", "chrome") if (found := shutil.which(name))), None
    )
    if program is None:
        print("browser: there is no Chromium; install it (Debian: apt-get install chromium)", file=sys.stderr)
        return 1
    root = Path(tempfile.mkdtemp(prefix="dpca-browser-"))
    began = time.monotonic()

    def announce(text: str) -> None:
        print(f"[{time.monotonic() - began:5.1f} s] {text}", flush=True)

    try:
        with environment(root):
            secrets = make_home(root)
            announce("a home with versions of every family is made")
            browser = Chromium(program)
            with served(root) as address:
                if requested.screenshots is not None:
                    browser.do(
                        "take_pictures", address, TOKEN, paths=MAIN, folder=str(requested.screenshots.absolute())
                    )
                    announce(f"{len(MAIN)} pictures are in {requested.screenshots}")
                else:
                    _check(browser, address, secrets, root, announce)
    except (Failed, AssertionError) as failure:
        print(f"browser: {' '.join(str(failure).split())}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return 0


def _check(browser: Chromium, address: str, secrets: Secrets, root: Path, announce: Callable[[str], None]) -> None:
    seen = browser.do("check_views", address, TOKEN, main=list(MAIN.values()), others=OTHERS)
    announce(f"{seen['views']} views pass axe, light, dark and at 320 pixels; {seen['charts']} charts are drawn")
    announce(f"{seen['stops']} stops by keyboard, each visible and in order")
    build_site(root / "public", notify=lambda done, total: None)
    browser.do("check_files", index=(root / "public" / "index.html").as_uri(), links=[NAME, f"{NAME}@3"])
    announce("the static site opens from its folder")
    count = _scan(address, secrets)
    announce(f"{count} responses give nothing away, and what is planted is found")
    add_versions(NAME, VERSIONS - 3)
    took = browser.do("time_list", address, TOKEN, path=MAIN["name"], versions=VERSIONS)
    announce(f"{VERSIONS:,} versions are listed in {took:.2f} s")
    if took >= SECONDS:
        raise Failed(f"{VERSIONS} versions took {took:.2f} s, and the limit is {SECONDS}")
    print(f"views={seen['views']} stops={seen['stops']} responses={count} leaks=0")


def _scan(address: str, secrets: Secrets) -> int:
    """Search every response for secrets; then publish a page with a row's value, which the search must find."""
    shown = as_shown(secrets)
    count = 0
    for path, content in responses(address, TOKEN):
        count += 1
        if hits := found_in(content, secrets, shown):
            raise Failed(f"{path} contains the secret {hits[0]}")
    message = [f"a row of {RECORD[0]!r}"]
    Maker().publish("planted", lambda **facts: subspace(seed=9, warnings=message, **facts), population="readers")
    about = ((path, content) for path, content in responses(address, TOKEN) if "planted" in path)
    planted = {path for path, content in about if found_in(content, secrets, shown)}
    if planted != {"versions/planted@1.html", "versions/planted@1.json"}:
        raise Failed(f"a planted value must be found on two pages, and was found on {sorted(planted)}")
    return count


if __name__ == "__main__":
    sys.exit(main())
