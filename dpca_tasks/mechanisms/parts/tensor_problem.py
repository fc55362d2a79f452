"""The public facts of a request for the components of a model, and their check."""

import math
from dataclasses import dataclass

from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import Terms
from dpca_tasks.mechanisms.results import ComponentModel

LARGEST = 1 << 27
"""Coordinates of a second moment: they are held in memory, 8 bytes each."""
FEWEST_WORDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorProblem(Terms):
    """The public facts of a request for the topics of documents or the means of a mixture.

    Parameters
    ----------
    n_features : int
        Declared columns D: words of a vocabulary, or coordinates of a point.
    model : {"topics", "mixture"}
        Whether a record is a document, all words of which are of one topic, or a point around one of the means, with
        noise of one variance in every coordinate.
    words_at_most : int, optional
        Of topics: the public bound on the words that are counted of a document.
    clip_norm : float, data units, optional
        Of a mixture: R, the bound on the norm of a point; longer ones are scaled down to it.
    noise_variance : float, squared data units, optional
        Of a mixture: s2, the variance of its noise, where it is publicly known; else it follows from the release.
    **others
        As for `Terms`. Of a mixture whose variance is not declared ``records_at_most`` is taken to be the number of
        records: what is left of the second moment is divided by it.
    """

    n_features: int
    model: ComponentModel
    words_at_most: int | None = None
    clip_norm: float | None = None
    noise_variance: float | None = None

    @property
    def unit(self) -> float:
        """The largest trace of one record's second moment: 1 of a document, ``R^2`` of a point."""
        return 1.0 if self.clip_norm is None else self.clip_norm**2


def check_tensor(problem: TensorProblem, *, components: int) -> None:
    """Refuse facts that are those of no model, and more components than there can be.

    Raises
    ------
    InvalidInput
        When a bound of the model is missing or out of its domain, or of the other model; when there are fewer
        components than one, or not fewer than features.
    """
    if not 1 <= components < problem.n_features:
        raise InvalidInput(
            f"components={components} must be at least 1 and below n_features={problem.n_features}; ask for fewer."
        )
    coordinates = problem.n_features * (problem.n_features + 1) // 2
    if coordinates > LARGEST:
        raise InvalidInput(
            f"the second moment of {problem.n_features} columns has {coordinates} coordinates, and {LARGEST} are held "
            "in memory; declare the columns that matter."
        )
    if problem.model == "topics":
        _check_topics(problem)
    elif problem.model == "mixture":
        _check_mixture(problem)
    else:
        raise InvalidInput(f"model={problem.model!r} must be topics or mixture; choose one.")


def _check_topics(problem: TensorProblem) -> None:
    if problem.clip_norm is not None or problem.noise_variance is not None:
        raise InvalidInput("clip_norm and noise_variance are for model=mixture; leave them out, or change the model.")
    if problem.words_at_most is None or problem.words_at_most < FEWEST_WORDS:
        raise InvalidInput(
            f"words_at_most={problem.words_at_most} must be at least {FEWEST_WORDS} for model=topics, which compares "
            "three words of a document; state a public bound on the words of one."
        )


def _check_mixture(problem: TensorProblem) -> None:
    if problem.words_at_most is not None:
        raise InvalidInput("words_at_most is for model=topics; leave it out, or change the model.")
    if problem.clip_norm is None or not 0 < problem.clip_norm < math.inf:
        raise InvalidInput(
            f"clip_norm={problem.clip_norm} must be positive and finite for model=mixture; state a public bound on the "
            "norm of a point, such as 1.3 sqrt(m^2 + D s2) for means of norm m and noise of variance s2."
        )
    most = problem.clip_norm**2 / problem.n_features
    if problem.noise_variance is not None and not 0 <= problem.noise_variance <= most:
        raise InvalidInput(
            f"noise_variance={problem.noise_variance} must be from 0 to {most:.6g}, clip_norm^2 / n_features: points "
            "of such noise are longer than clip_norm; correct one of them."
        )
