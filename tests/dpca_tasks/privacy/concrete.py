"""Search for all concrete classes of the package that derive from an abstract class."""

import importlib
import inspect
import pkgutil
import sys
from pathlib import Path

from dpca_tasks import errors

FOLDER = str(Path(inspect.getfile(errors)).parent)


def concrete(base):
    """Return the subclasses of ``base`` in dpca_tasks that are public and not abstract."""
    for module in pkgutil.walk_packages([FOLDER], "dpca_tasks."):
        importlib.import_module(module.name)
    found, left = [], [base]
    while left:
        kind = left.pop()
        left += kind.__subclasses__()
        # for a dataclass with slots, Python creates a second class; the first one is skipped
        stands = getattr(sys.modules[kind.__module__], kind.__name__, None) is kind
        if stands and kind.__module__.startswith("dpca_tasks.") and not inspect.isabstract(kind):
            found.append(kind)
    # dict.fromkeys removes duplicates of classes with several bases
    return [kind for kind in dict.fromkeys(found) if not kind.__name__.startswith("_")]
