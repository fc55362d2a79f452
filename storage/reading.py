"""The ledger for commands that only read: nothing is created, upgraded, locked, recovered or written.

So they work on a home folder that is read-only, and on a full disk. What a command that writes would first mend, such
as a pointer that a crash left behind, they leave to it.
"""

from storage.backends.private import require_private
from storage.database.engine import connect_to_read, transaction
from storage.home import database_url, home, key_folder, state_folder, store
from storage.ledger import journal
from storage.ledger.ledger import Ledger
from storage.ledger.secret_keys import KeyFolder
from storage.ledger.witness import Witnesses
from storage.registry.agreement import compare_names


def ledger_to_read() -> Ledger:
    """Open the ledger of this home to read it; where there is none yet, or an older one, open it to write.

    Raises
    ------
    Unavailable
        When the database cannot be read.
    Refused
        When the database was restored from a copy, belongs to other keys, or lacks what the registry shows, or when
        others can enter the home.
    """
    if home().is_dir():
        require_private(home(), name="DPCA_HOME")
    engine = connect_to_read(database_url())
    if engine is None:
        return Ledger.open()
    folder = key_folder()
    with transaction(engine) as connection:
        ledger_id = journal.head(connection).ledger
        witness = Witnesses(beside=folder, apart=state_folder() / ledger_id)
        witness.check(connection)
        compare_names(connection, store())
    return Ledger(engine, home=home(), keys=KeyFolder(folder), witness=witness, ledger_id=ledger_id)
