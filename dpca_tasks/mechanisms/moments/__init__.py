"""Moment mechanisms by name, one file each, with a common interface."""

from dpca_tasks.mechanisms.registered import Mechanisms

MECHANISMS = Mechanisms.of_folder(__name__)
"""The private mechanisms by name; all of them are audited."""
