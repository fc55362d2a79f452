"""Quality of a release in rounds, estimated from its last answer given all earlier ones."""

from collections.abc import Sequence

from dpca_tasks.refinement.leading_pairs import Refinement
from dpca_tasks.refinement.refined_release import Assessment
from dpca_tasks.refinement.rounds import Answer


def assessed(answers: Sequence[Answer], refinement: Refinement, *, centred: bool) -> Assessment:
    """Assess the components that `dpca_tasks.refinement.rounds.components` found.

    Parameters
    ----------
    answers : sequence of Answer
        The answers of all rounds, at least two.
    refinement : Refinement
        The components from the estimate of all rounds; their rule is run again on copies of the last answer.
    centred : bool
        Whether records were centred.
    """
    raise NotImplementedError
