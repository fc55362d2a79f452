"""Entry point of a site's process, which gets randomness, clock and noise of the world that started it."""

import json
import os
import sys

# imported before the product, because default arguments bind `os.urandom`
from tests.two_worlds import chance  # noqa: F401
from tests.two_worlds.world import Terms
from tests.two_worlds.world import enter as enter_world


def enter() -> None:
    """Set this process up for the world that the environment names.

    The name of the command's configuration file labels the process.
    """
    terms = Terms(**json.loads(os.environ["TWO_WORLDS"]))
    enter_world(terms, sys.argv[-1].rpartition("/")[2])
