"""Start-up of every Python process of a trial: the mutation applies to workers and commands too."""

import os

if "DPCA_MUTATION" in os.environ:
    from tests.mutants.targets import install

    install(os.environ["DPCA_MUTATION"])
