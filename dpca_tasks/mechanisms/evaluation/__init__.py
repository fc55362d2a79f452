"""Evaluations of what was released, on the rows of a dataset: private estimates, and the curator's own diagnostics."""

from typing import Any

from dpca_tasks.mechanisms.evaluation.captured_share import CapturedShare

SUBSPACE_MECHANISMS: dict[str, type[Any]] = {CapturedShare.name: CapturedShare}
"""The private estimates of subspaces by name."""
