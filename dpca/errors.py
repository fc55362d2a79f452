"""The errors of datasets, ledger and registry, grouped by the caller's next action.

::

    StorageError
    ├── Invalid (ValueError)     change the named argument and call again
    ├── NotFound (KeyError)      name something that exists
    ├── Conflict                 it exists with other terms; choose another name or the same terms
    ├── Refused                  a rule does not allow it; an operator may decide otherwise
    │   └── Finished             another process finished the release; use that process's result
    ├── BudgetExhausted          the budget does not admit the release; nothing was charged
    ├── BadSource (ValueError)   the data to ingest breaks a rule; fix the source
    ├── Corrupt                  stored bytes are not the ones that were written; restore them
    ├── Unavailable (OSError)    a folder or database cannot be used; fix it
    └── NotInstalled (ImportError)  a package that is needed is not installed; install its extra

A message states the finding, the rule and the next action, in one line.
"""


class StorageError(Exception):
    """Base class of all storage errors."""


class Invalid(StorageError, ValueError):
    """An argument is outside its domain."""


class NotFound(StorageError, KeyError):
    """No object has this name."""

    def __str__(self) -> str:
        """Return the message without the quotes that ``KeyError`` adds."""
        return str(self.args[0]) if self.args else ""


class Conflict(StorageError):
    """A different object is stored under this name or key."""


class Refused(StorageError):
    """A rule of the storage does not allow this action."""


class Finished(Refused):
    """Another process finished the release in the meantime."""


class BudgetExhausted(StorageError):
    """The budget does not admit a release; nothing was charged."""


class BadSource(StorageError, ValueError):
    """A source cannot be ingested."""


class Corrupt(StorageError):
    """Stored bytes differ from the bytes written."""


class Unavailable(StorageError, OSError):
    """A folder or database cannot be used."""


class NotInstalled(StorageError, ImportError):
    """A required package is not installed."""
