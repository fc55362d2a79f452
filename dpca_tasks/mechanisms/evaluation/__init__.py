"""Evaluations of releases on the rows of a dataset: private estimates, and the curator's non-private diagnostics."""

from typing import Any

from dpca_tasks.mechanisms.evaluation.captured_share import CapturedShare
from dpca_tasks.mechanisms.evaluation.prediction_error import PredictionError

SUBSPACE_MECHANISMS: dict[str, type[Any]] = {CapturedShare.name: CapturedShare}
"""The private evaluations of subspaces by name."""

COMPLETION_MECHANISMS: dict[str, type[Any]] = {PredictionError.name: PredictionError}
"""The private evaluations of item embeddings by name."""
