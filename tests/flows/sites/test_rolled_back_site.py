"""A site whose home is rolled back between two rounds answers nothing until the newest home is back.

The site runs on: it has the release's curator in memory and a certificate that everybody knows.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dpca_tasks.errors import DpcaError
from flows.federation_demo import Federation, aggregator
from flows.parties.calling import Caller
from flows.sites import aggregation
from storage.errors import StorageError
from tests.flows.sites.joint import METHODS, at_home, logs, request

SITE = "site-1"


@contextmanager
def rolled_back(federation: Federation, copy: Path) -> Iterator[None]:
    """Put a copy in the place of the site's home, and the home back at the end."""
    home = federation.home(SITE)
    newest = home.with_name("newest")
    home.rename(newest)
    shutil.copytree(copy, home)
    yield
    shutil.rmtree(home)
    newest.rename(home)


@pytest.mark.parametrize("since", ["before the release", "after its first round"])
def test_a_site_rolled_back_between_rounds_answers_nothing_and_goes_on_when_its_home_is_back(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, since: str
) -> None:
    asked = request(federation, **METHODS["dps_pca"], run_key=f"rolled back to {since}")
    copy, answered, ask = tmp_path / "copy", list[int](), Caller.ask
    with aggregator(federation):
        if since == "before the release":
            shutil.copytree(federation.home(SITE), copy)
        releases = aggregation.reserve_roster(asked)

        def stop_after_two(caller: Caller, path: str, facts: Any, *others: Any, **more: Any) -> Any:
            is_message = caller.name == SITE and path.endswith("/message")
            if is_message and len(answered) == 1 and not copy.exists():
                shutil.copytree(federation.home(SITE), copy)
            if is_message and len(answered) == 2:
                raise KeyboardInterrupt
            frame = ask(caller, path, facts, *others, **more)
            if is_message:
                answered.append(facts["round"])
            return frame

        with monkeypatch.context() as patch:
            patch.setattr(Caller, "ask", stop_after_two)
            with pytest.raises(KeyboardInterrupt):
                aggregation.compute_roster(asked, releases)
        assert answered == [0, 1]
        with rolled_back(federation, copy):
            before = (federation.home(SITE) / "dpca.sqlite").read_bytes()
            with pytest.raises((DpcaError, StorageError), match=f"{SITE}: .*restored"):
                aggregation.compute_roster(asked, releases)
            assert (federation.home(SITE) / "dpca.sqlite").read_bytes() == before
        assert "Traceback" not in logs(federation)
        digest = aggregation.compute_roster(asked, releases)
        assert len(digest) == 64
    mine = next(each.partition(":")[2] for each in releases if each.startswith(SITE))
    with at_home(federation, SITE) as home:
        same = [row for row in home.ledger.statement("rows").releases if row.id == mine]
        assert [row.state for row in same] == ["noising"]
        assert home.ledger.verify() > 0
