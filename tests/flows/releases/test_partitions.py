"""Who hears how many partitions of a sum are done."""

from threading import Thread

import pytest

from flows.releases import partitions as subject
from flows.reports import activity as watching
from flows.reports.activity import Activity


def test_a_thread_of_the_cluster_tells_terminal_display_and_log_in_the_context_of_the_stage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[str, str]] = []
    shown: list[tuple[int, int]] = []
    logged: list[tuple[str, dict[str, object]]] = []
    monkeypatch.setattr(subject, "log_event", lambda event, **facts: logged.append((event, facts)))
    seen = Activity("starting", lambda doing, far: told.append((doing, far)))
    token = watching._now.set(seen)
    try:
        progress = subject.summing(lambda done, total: shown.append((done, total)))
    finally:
        watching._now.reset(token)
    for done in (1, 2):
        thread = Thread(target=progress, args=(done, 2))
        thread.start()
        thread.join()
    assert told == [
        ("summing partitions", ""),
        ("summing partitions", "1 of 2"),
        ("summing partitions", "2 of 2"),
        ("adding noise, and what follows from the sum", ""),
    ]
    assert shown == [(1, 2), (2, 2)]
    assert logged == [("summed", {"partitions": 2})]


def test_where_nobody_waits_nothing_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    subject.summing()(1, 2)
    assert capsys.readouterr() == ("", "")
