"""Fixture: the ``papers`` command, called in this process."""

from collections.abc import Callable

import pytest

from flows.reports import activity
from papers.__main__ import main
from tests.flows.conftest import Ending

type Papers = Callable[..., Ending]


@pytest.fixture
def papers(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Papers:
    """Return a function that runs the ``papers`` command and returns its exit status and output."""
    # so rarely that even a slow machine adds no progress lines to the output that a test reads
    monkeypatch.setattr(activity, "PLAIN_EVERY", 3600.0)

    def call(*words: object) -> Ending:
        capsys.readouterr()
        status = main([str(word) for word in words])
        printed = capsys.readouterr()
        return Ending(status=status, out=printed.out, err=printed.err)

    return call
