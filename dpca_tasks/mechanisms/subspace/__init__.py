"""Mechanisms that release a subspace (PCA): one file for each mechanism, and a table of their classes by name."""

from dpca_tasks.mechanisms.registered import Mechanisms

MECHANISMS = Mechanisms.of_folder(__name__, besides=("computed_directions", "non_private"))
"""The private mechanisms by name; all of them are audited."""

REFERENCES = Mechanisms(__name__, {"non_private": "non_private"})
"""The reference mechanisms by name. They are not private: each use needs ``--i-know-this-is-not-private``."""
