"""Errors of the numerical and privacy core, grouped by what the caller does next.

::

    DpcaError
    ├── InvalidInput (ValueError)   change the named argument and call again
    ├── Refused                     the request breaks a privacy rule; change the request
    ├── StepMismatch                the step is not the one reserved or stored; nothing was released
    │   └── StepTaken               another process answered the step in the meantime; run the mechanism again
    ├── IncompleteSum               blocks were lost or counted twice; run the release again
    ├── MessageRefused              a message of a joint release is not the expected one; it changed nothing
    ├── SiteSilent                  a site of a joint release did not answer; repeat the request to its roster
    └── WorkerFailed                a worker could not map a block; its log, inside the trust boundary, holds the reason

A message states what was found, the rule, and the next action. It never contains a value that depends on private
rows.
"""


class DpcaError(Exception):
    """Any error of the core."""


class InvalidInput(DpcaError, ValueError):
    """An argument is outside its domain."""


class Refused(DpcaError):
    """The request would break a privacy rule."""


class StepMismatch(DpcaError):
    """A step of a release differs from the step that was reserved or already stored."""


class StepTaken(StepMismatch):
    """Another process answered a step first, from different public inputs; a new run continues from those inputs."""


class IncompleteSum(DpcaError):
    """The partials of a sum overlap or leave a gap."""


class MessageRefused(DpcaError):
    """A message of a joint release is cut, oversized, forged, late, or of another phase, attempt or roster."""


class SiteSilent(DpcaError):
    """Sites of a joint release did not answer an attempt; ``names`` lists the sites if there are several."""

    def __init__(self, message: str = "", *, names: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.names = names


class WorkerFailed(DpcaError):
    """A worker failed on a block; the message contains the kind of failure and nothing else."""
