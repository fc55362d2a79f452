"""The entry of a site's process: it has the chance, the clock and the noise of the world that started it."""

import json
import os
import sys

from tests.two_worlds import chance  # noqa: F401  # before the product: default arguments bind `os.urandom`
from tests.two_worlds.world import Terms
from tests.two_worlds.world import enter as enter_world


def enter() -> None:
    """Enter the world that the environment names; the command's configuration file names this process."""
    terms = Terms(**json.loads(os.environ["TWO_WORLDS"]))
    enter_world(terms, sys.argv[-1].rpartition("/")[2])
