"""What earlier versions of the program asked, for tests of the steps that they stored."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dpca_tasks.privacy import gate


@contextmanager
def earlier_version() -> Iterator[None]:
    """Admit new steps in former forms, as the versions did whose present forms they were."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate, "check_asked_now", lambda *_: None)
        yield
