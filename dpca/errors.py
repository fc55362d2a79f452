"""The errors of datasets, ledger and registry, grouped by what the caller does next.

::

    StorageError
    ├── Invalid (ValueError)     change the named argument and call again
    ├── NotFound (KeyError)      name something that exists
    ├── Conflict                 it exists with other terms; choose another name or the same terms
    ├── Refused                  the record does not allow it; an operator may decide otherwise
    │   └── Finished             another process finished the release; take the result that stands
    ├── BudgetExhausted          the budget does not admit the release; nothing was charged
    ├── BadSource (ValueError)   the data to ingest breaks a rule; fix the source
    ├── Corrupt                  stored bytes are not the ones that were written; restore them
    ├── Unavailable (OSError)    a folder or database cannot be used; fix it
    └── NotInstalled (ImportError)  a package that is needed is not installed; install its extra

A message says what was found, the rule, and the next move, in one line.
"""


class StorageError(Exception):
    """Any error of the storage."""


class Invalid(StorageError, ValueError):
    """An argument is outside its domain."""


class NotFound(StorageError, KeyError):
    """Nothing has this name."""

    def __str__(self) -> str:
        """Return the message itself; ``KeyError`` would quote it."""
        return str(self.args[0]) if self.args else ""


class Conflict(StorageError):
    """Something else is stored under this name or key."""


class Refused(StorageError):
    """A rule of the storage does not allow this."""


class Finished(Refused):
    """Another process finished the release in the meantime."""


class BudgetExhausted(StorageError):
    """The budget does not admit a release; nothing was charged."""


class BadSource(StorageError, ValueError):
    """A source cannot be ingested."""


class Corrupt(StorageError):
    """Stored bytes are not the ones that were written."""


class Unavailable(StorageError, OSError):
    """A folder or database cannot be used."""


class NotInstalled(StorageError, ImportError):
    """A package that is needed is not installed."""
