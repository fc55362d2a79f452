"""Entry point of a site's process, with the randomness, the clock and the noise of the world that started it."""

import json
import os
import sys

from tests.two_worlds import chance  # noqa: F401  # before the product: default arguments bind `os.urandom`
from tests.two_worlds.world import Terms
from tests.two_worlds.world import enter as enter_world


def enter() -> None:
    """Enter the world given by the environment; the name of the command's configuration file labels this process."""
    terms = Terms(**json.loads(os.environ["TWO_WORLDS"]))
    enter_world(terms, sys.argv[-1].rpartition("/")[2])
