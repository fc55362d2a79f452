"""The errors of the numerical and privacy core, grouped by what the caller does next.

::

    DpcaError
    ├── InvalidInput (ValueError)   change the named argument and call again
    ├── Refused                     the request breaks a privacy rule; ask for something else
    ├── StepMismatch                the step asked for is not the one reserved or kept; nothing was released
    │   └── StepTaken               another process answered the step in the meantime; run the mechanism again
    ├── IncompleteSum               blocks were lost or counted twice; run the release again
    ├── MessageRefused              a message of a joint release is not what is expected now; it changed nothing
    ├── SiteSilent                  a site of a joint release did not answer; ask its roster again
    └── WorkerFailed                a worker could not map a block; its own log, inside the trust boundary, says why

A message says what was found, the rule, and the next move. It never holds a value that depends on private
rows.
"""


class DpcaError(Exception):
    """Any error of the core."""


class InvalidInput(DpcaError, ValueError):
    """An argument is outside its domain."""


class Refused(DpcaError):
    """The request would break a privacy rule."""


class StepMismatch(DpcaError):
    """A step of a release differs from the one that was reserved, or from the one already kept."""


class StepTaken(StepMismatch):
    """Another process answered a step in the meantime, from public inputs of its own; a new run goes on from those."""


class IncompleteSum(DpcaError):
    """The partials of a sum overlap or leave a gap."""


class MessageRefused(DpcaError):
    """A message of a joint release is cut, oversized, forged, late, or of another phase, attempt or roster."""


class SiteSilent(DpcaError):
    """Sites of a joint release did not answer an attempt; ``names`` are theirs, where it is about several."""

    def __init__(self, message: str = "", *, names: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.names = names


class WorkerFailed(DpcaError):
    """A worker failed on a block; the text holds the kind of failure and nothing else."""
