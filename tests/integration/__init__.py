"""The whole pipeline on loopback, with every part real; run it with ``python -m tests.integration``."""
