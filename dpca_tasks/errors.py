"""Errors of the numerical and privacy core, grouped by the caller's next action.

::

    DpcaError
    ├── InvalidInput (ValueError)   change the named argument and call again
    ├── Refused                     the request breaks a privacy rule; change the request
    ├── StepMismatch                a step differs from the one reserved or already stored; nothing was released
    │   └── StepTaken               another process answered the step in the meantime; run the mechanism again
    ├── IncompleteSum               a sum lacks blocks or counts some twice; run the release again
    ├── MessageRefused              a message of a release by several sites is invalid and was ignored; see its text
    ├── SiteSilent                  a site did not answer in a release by several sites; query the same sites again
    └── WorkerFailed                a worker failed on a block; read the reason in the log of that worker

A message states what was found, the rule, and the next action. It never contains a value that depends on private
rows.
"""


class DpcaError(Exception):
    """Base class of all errors raised by the numerical and privacy core, ``dpca_tasks``."""


class InvalidInput(DpcaError, ValueError):
    """An argument has an invalid value."""


class Refused(DpcaError):
    """The request would break a privacy rule."""


class StepMismatch(DpcaError):
    """A step of a release differs from the step that the ledger reserved, or from the stored result of that step."""


class StepTaken(StepMismatch):
    """Another process answered this step of a release first, from other public inputs.

    Run the mechanism again: the new run continues from the stored inputs of the other process.
    """


class IncompleteSum(DpcaError):
    """The partial sums of a sum over all records overlap, or do not cover every record."""


class MessageRefused(DpcaError):
    """A message between the sites of a joint release and their server is refused.

    The message is truncated, oversized, forged or late, or belongs to another phase, attempt or set of sites.
    """


class SiteSilent(DpcaError):
    """Sites did not answer in a release by several sites; ``names`` lists the silent sites where they are known."""

    def __init__(self, message: str = "", *, names: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.names = names


class WorkerFailed(DpcaError):
    """A worker failed on a block of rows; the message states only the kind of failure, never data."""
