"""``dpca backup``: copy a home, prove that the copy restores, and restore it."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from flows.reports.activity import activity
from flows.reports.terminal import STDERR, print_facts

app = typer.Typer(help="Back up a home, rehearse the backup, and restore it.")

Backup = Annotated[Path, typer.Argument(help="A folder that dpca backup create wrote.")]
Key = Annotated[
    str | None, typer.Option(help="The published key of the audit trail, which signed BACKUP; by default this home's.")
]
Passphrase = Annotated[Path | None, typer.Option(help="Check BACKUP by the first line of this file, too.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command()
def create(
    output: Annotated[Path, typer.Argument(help="A new folder, outside the home.")],
    datasets: Annotated[
        bool, typer.Option("--datasets", help="Copy raw rows, too; whoever gets the backup then has them.")
    ] = False,
    passphrase_file: Annotated[
        Path | None, typer.Option(help="Seal keys that sign under the first line of this file; without it none is in.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Copy database and registry at one point of the journal, whole or not at all; keys of releases never."""
    from storage.backups.contents import facts_of
    from storage.backups.creating import create_backup
    from storage.backups.kept_dates import note_date

    passphrase = _read(passphrase_file)
    with activity("copying"):
        contents = create_backup(output, datasets=datasets, passphrase=passphrase)
    note_date(contents.ledger, what="made", entries=contents.entries)
    print_facts({"backup": str(output), **facts_of(contents)}, as_json=as_json)
    if contents.missing:
        first, *others = contents.missing
        lost = f"{first} and {len(others)} more are" if others else f"{first} is"
        STDERR.print(f"warning: {lost} lost or damaged")


@app.command()
def verify(backup: Backup, key: Key = None, passphrase_file: Passphrase = None, as_json: Json = False) -> None:
    """Check that BACKUP is signed, and every file the one that was written; `rehearse` proves more."""
    from storage.backups.contents import facts_of
    from storage.backups.signatures import open_backup

    passphrase = _read(passphrase_file)
    with activity("checking every file"):
        contents = open_backup(backup, key=key, passphrase=passphrase)
    print_facts({"backup": str(backup), **facts_of(contents)}, as_json=as_json)


@app.command()
def rehearse(backup: Backup, key: Key = None, passphrase_file: Passphrase = None, as_json: Json = False) -> None:
    """Restore BACKUP into a throw-away place, check all of it, and remove it; exit code 1 unless all of it holds."""
    from storage.backups.kept_dates import note_date
    from storage.backups.rehearsing import rehearse_backup
    from storage.home import database_url

    passphrase = _read(passphrase_file)
    with activity("rehearsing"):
        found = rehearse_backup(backup, database_url=database_url(), key=key, passphrase=passphrase)
    note_date(found.ledger, what="rehearsed", entries=found.entries)
    if as_json:
        print_facts(asdict(found), as_json=True)
        return
    typer.echo(
        f"restored on {found.database} in {found.seconds:.1f} s: {found.entries} entries of ledger {found.ledger[:8]} "
        f"hold together, {found.populations} populations have spent what they had, {found.versions} versions are whole "
        f"({found.missing} files were missing), and it is locked until it is accepted"
    )


@app.command()
def restore(
    backup: Backup,
    only: Annotated[
        list[str] | None, typer.Option(metavar="PART", help="database, keys or store; all of them by default.")
    ] = None,
    passphrase_file: Annotated[
        Path | None, typer.Option(help="Check BACKUP and open its sealed keys with the first line of this file.")
    ] = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Restore BACKUP into an empty home; the ledger stays locked until `dpca budget accept-restored`."""
    from storage.backups.contents import facts_of
    from storage.backups.restoring import PARTS, Target, restore_backup

    passphrase = _read(passphrase_file)
    target = Target.configured()
    with activity("restoring"):
        contents = restore_backup(backup, into=target, only=only or PARTS, passphrase=passphrase, key=key)
    print_facts({"home": str(target.home), **facts_of(contents)}, as_json=as_json)
    if contents.keys and passphrase is None:
        STDERR.print("the sealed keys were left in the backup; give --passphrase-file to restore them")
    STDERR.print("next: restore a newer copy where there is one, or go on with `dpca budget accept-restored`")


def _read(passphrase_file: Path | None) -> str | None:
    from storage.backups.sealed_keys import read_passphrase

    return None if passphrase_file is None else read_passphrase(passphrase_file)
