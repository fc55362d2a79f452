"""Mechanisms that decompose moment tensors (topics, mixtures): one file each, and a table of their classes by name."""

from dpca_tasks.mechanisms.registered import Mechanisms

MECHANISMS = Mechanisms.of_folder(__name__, besides=("non_private", "tensor_releases"))
"""The private mechanisms by name; all of them are audited."""

REFERENCES = Mechanisms(__name__, {"otd": "non_private"})
"""The reference mechanisms by name. They are not private: each use needs ``--i-know-this-is-not-private``."""
