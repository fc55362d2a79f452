"""Entry point of the ``dpca`` command and of ``python -m dpca``.

The entry point first checks that no other module hides a package of the pipeline, and then runs the command.
"""

import gc
import sys
from pkgutil import resolve_name

from dpca.errors import NotInstalled
from dpca.installed import check_not_hidden, missing_package

COLLECTED_FROM = 400_000
"""Number of new objects after which cyclic garbage is collected. Almost all objects that a command creates belong to
imported modules and live until its end. With the default of 2,000, collections take a fifth of a short command."""


def main() -> int:
    """Run the ``dpca`` command, and report a missing or hidden package in one line."""
    gc.set_threshold(COLLECTED_FROM)
    try:
        check_not_hidden()
        command = resolve_name("flows.cli:main")
    except NotInstalled as error:
        message = str(error)
    except ModuleNotFoundError as error:
        message = str(missing_package(error, what="the dpca command"))
    else:
        status: int = command()
        return status
    sys.stderr.write(f"dpca: {message}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
