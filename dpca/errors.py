"""The errors of datasets, ledger and registry, grouped by the caller's next action.

::

    StorageError
    ├── Invalid (ValueError)     an argument is not allowed; change the argument and call again
    ├── NotFound (KeyError)      no object has the requested name; use an existing name
    ├── Conflict                 an object of this name has other terms; use another name or the same terms
    ├── Refused                  a rule forbids the action; an operator may change the rule
    │   └── Finished             another process finished the release; use that process's result
    ├── BudgetExhausted          the budget does not admit the release, and nothing was charged
    ├── BadSource (ValueError)   the data to ingest breaks a rule; fix the source
    ├── Corrupt                  stored bytes differ from the bytes written; restore them
    ├── Unavailable (OSError)    a folder or database cannot be used; make it accessible
    └── NotInstalled (ImportError)  a required package is not installed; install the extra that contains it

Each error message states, in one line, what was found, the rule, and what to do next.
"""


class StorageError(Exception):
    """Base class of all errors of datasets, ledger and registry."""


class Invalid(StorageError, ValueError):
    """An argument has a value that is not allowed."""


class NotFound(StorageError, KeyError):
    """No object has the requested name."""

    def __str__(self) -> str:
        """Return the message without the quotes that ``KeyError`` adds."""
        return str(self.args[0]) if self.args else ""


class Conflict(StorageError):
    """A different object is already stored under the requested name or key."""


class Refused(StorageError):
    """A rule of the dataset, the ledger or the registry forbids the requested action."""


class Finished(Refused):
    """Another process finished the same release in the meantime."""


class BudgetExhausted(StorageError):
    """The budget does not admit a release; nothing was charged."""


class BadSource(StorageError, ValueError):
    """A data source breaks a rule, so it cannot be ingested."""


class Corrupt(StorageError):
    """Stored bytes differ from the bytes written."""


class Unavailable(StorageError, OSError):
    """A folder or database cannot be used."""


class NotInstalled(StorageError, ImportError):
    """A required package is not installed."""
