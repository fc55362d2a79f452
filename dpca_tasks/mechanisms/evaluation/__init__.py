"""Evaluations of releases on rows: private estimates, and diagnostics without privacy for the owner of the rows."""

from typing import Any

from dpca_tasks.mechanisms.evaluation.captured_share import CapturedShare
from dpca_tasks.mechanisms.evaluation.prediction_error import PredictionError

SUBSPACE_MECHANISMS: dict[str, type[Any]] = {CapturedShare.name: CapturedShare}
"""The mechanisms that privately evaluate subspaces, by name."""

COMPLETION_MECHANISMS: dict[str, type[Any]] = {PredictionError.name: PredictionError}
"""The mechanisms that privately evaluate item embeddings, by name."""
