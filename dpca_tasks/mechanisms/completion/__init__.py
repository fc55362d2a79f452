"""Mechanisms that complete a matrix of ratings: one file for each mechanism, and a table of their classes by name."""

from dpca_tasks.mechanisms.registered import Mechanisms

MECHANISMS = Mechanisms.of_folder(__name__, besides=("als", "ratings"))
"""The private mechanisms by name; all of them are audited."""

REFERENCES = Mechanisms(__name__, {"als": "als", "ials": "als"})
"""The reference mechanisms by name. They are not private: each use needs ``--i-know-this-is-not-private``."""
