"""Commands of ``dpca demo``, ``doctor``, ``serve``, ``pages`` and ``backup``.

They try an installation, check it, show its contents, and back it up.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.app import App
from flows.reports.activity import activity
from flows.reports.terminal import STDERR, outcome_line, print_facts, print_json

backup_app = App(help="Back up a home, test the backup, and restore it.")
pages_app = App(help="Write the pages of `dpca serve` as files.")

Backup = Annotated[Path, typer.Argument(help="A folder written by dpca backup create.")]
Key = Annotated[
    str | None,
    typer.Option(
        help="Public key that must have signed BACKUP, which is the audit trail's key; by default this home's."
    ),
]
Passphrase = Annotated[
    Path | None, typer.Option(help="Also check BACKUP with the passphrase in the first line of this file.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def demo(
    home: Annotated[
        Path | None,
        typer.Option(help="Folder of the demo; by default a separate folder in the platform's data folder."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Release a private subspace of the shipped a9a data, publish it, and read it back as a consumer.

    Everything stays in a separate home, whatever DPCA_HOME and the other location settings are.
    """
    with activity("starting"):
        from dpca.installed import missing_package
        from dpca.registry.reader import Registry
        from flows import demo as job
        from flows.families.restated_subspace import noise_edge_of
        from flows.reports.release_charts import scree_chart, write_chart
        from flows.reports.spectrum import Spectrum

    with job.own_home(home) as folder:
        with activity("preparing"):
            job.prepare(STDERR.print)
        with activity("releasing"):
            report = job.release()
        if report["reused"]:
            STDERR.print("this release exists already: it is reused, and nothing was spent")
        subspace = Registry.open().load(f"{job.SUBSPACE}@{job.ALIAS}")
    scores = subspace.transform([[1.0] * subspace.n_features])
    STDERR.print(f"read back as a consumer: one row of {subspace.n_features} features has {scores.shape[1]} scores")
    file, plot = folder / "demo-spectrum.png", ""
    spectrum = Spectrum.of(subspace, noise_edge=noise_edge_of(subspace))
    try:
        with activity("drawing the spectrum"):
            write_chart(scree_chart(spectrum, name=report["artifact"]), file)
        plot, line = str(file), f"plot of the spectrum: {file}"
    except ModuleNotFoundError as error:
        line = str(missing_package(error, what="a plot of the spectrum"))
    STDERR.print(f"{spectrum.text()}\n{subspace.outcome.get('verdict', '')}\n{line}")
    STDERR.print(
        f"to explore the demo, run `dpca serve` with DPCA_HOME={folder} in a separate shell, "
        "and open the page in a browser"
    )
    if not as_json:
        typer.echo(outcome_line(report))
    places = {"home": str(folder), "plot": plot or None}
    print_facts({**report, "alias": job.ALIAS, **places}, as_json=as_json)


def doctor(
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Check all entries, rows and manifests, instead of the new ones and a sample of the old ones."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check settings, versions, permissions, database, ledger, store, cluster, clock and Prefect; report what to fix.

    No dataset is read and nothing is charged. The exit code is 1 if something must be fixed. A run checks all new
    entries of ledger and registry, what was spent, and the next part of the entries that earlier runs checked.
    """
    with activity("examining"):
        from flows.doctor import examine

        findings = examine(everything=everything)
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            typer.echo(f"{finding.verdict:<4}  {finding.check:<8}  {finding.found}")
            if finding.advice:
                typer.echo(f"{'':<16}-> {finding.advice}")
    if any(finding.verdict == "fix" for finding in findings):
        raise typer.Exit(1)


def serve(
    host: Annotated[
        str, typer.Option(help="Address to listen at; an address other than loopback requires a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 chooses any free port.")] = 8410,
    token_file: Annotated[
        Path | None,
        typer.Option(help="A file of mode 0600 with the token that clients must send; by default DPCA_SERVE_TOKEN."),
    ] = None,
    curator: Annotated[bool, typer.Option("--curator", help="Also show the list of datasets.")] = False,
) -> None:
    """Serve published versions, their quality and differences, and budgets as web pages, until terminated.

    The workspace is opened read-only, and nothing is written. The facts of every page are also available as JSON.
    """
    from flows.web.serving import serve_pages

    serve_pages(host=host, port=port, token_file=token_file, curator=curator, ready=_print)


def _print(address: str) -> None:
    typer.echo(f"listening at {address}")


@backup_app.command()
def create(
    output: Annotated[Path, typer.Argument(help="A new folder, outside the home.")],
    datasets: Annotated[
        bool, typer.Option("--datasets", help="Also copy raw rows; everyone with the backup can then read them.")
    ] = False,
    passphrase_file: Annotated[
        Path | None,
        typer.Option(
            help="Include the signing keys, sealed with the first line of this file; by default they are left out."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Back up database and registry as of one journal entry, completely or not at all, without keys of releases."""
    from storage.backups.contents import facts_of
    from storage.backups.copying import create_backup, note_date

    passphrase = _read(passphrase_file)
    with activity("copying"):
        contents = create_backup(output, datasets=datasets, passphrase=passphrase)
    note_date(contents.ledger, what="made", entries=contents.entries)
    print_facts({"backup": str(output), **facts_of(contents)}, as_json=as_json)
    if contents.missing:
        first, *others = contents.missing
        lost = f"{first} and {len(others)} more are" if others else f"{first} is"
        STDERR.print(f"warning: {lost} lost or damaged")


@backup_app.command()
def verify(backup: Backup, key: Key = None, passphrase_file: Passphrase = None, as_json: Json = False) -> None:
    """Check the signature of BACKUP, and that no file has changed; `rehearse` also tests that it can be restored."""
    from storage.backups.contents import facts_of
    from storage.backups.signatures import open_backup

    passphrase = _read(passphrase_file)
    with activity("checking every file"):
        contents = open_backup(backup, key=key, passphrase=passphrase)
    print_facts({"backup": str(backup), **facts_of(contents)}, as_json=as_json)


@backup_app.command()
def rehearse(backup: Backup, key: Key = None, passphrase_file: Passphrase = None, as_json: Json = False) -> None:
    """Restore BACKUP into a temporary location, check all of it, and remove it; exit code 1 if any check fails."""
    from dpca.home import database_url
    from storage.backups.copying import note_date, rehearse_backup

    passphrase = _read(passphrase_file)
    with activity("rehearsing"):
        found = rehearse_backup(backup, database_url=database_url(), key=key, passphrase=passphrase)
    note_date(found.ledger, what="rehearsed", entries=found.entries)
    if as_json:
        print_facts(asdict(found), as_json=True)
        return
    typer.echo(
        f"restored on {found.database} in {found.seconds:.1f} s: {found.entries} entries of "
        f"ledger {found.ledger[:8]} are consistent, {found.populations} populations have the same spending, "
        f"{found.versions} versions are complete ({found.missing} files were missing); the ledger is locked "
        "until it is accepted"
    )


@backup_app.command()
def restore(
    backup: Backup,
    only: Annotated[
        list[str] | None, typer.Option(metavar="PART", help="database, keys or store; by default all of them.")
    ] = None,
    passphrase_file: Annotated[
        Path | None, typer.Option(help="Check BACKUP and open its sealed keys with the first line of this file.")
    ] = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Restore BACKUP into an empty home; the ledger stays locked until `dpca budget accept-restored`."""
    from storage.backups.contents import facts_of
    from storage.backups.copying import PARTS, Target, restore_backup

    passphrase = _read(passphrase_file)
    target = Target.configured()
    with activity("restoring"):
        contents = restore_backup(backup, into=target, only=only or PARTS, passphrase=passphrase, key=key)
    print_facts({"home": str(target.home), **facts_of(contents)}, as_json=as_json)
    if contents.keys and passphrase is None:
        STDERR.print("the sealed keys were not restored; give --passphrase-file to restore them")
    STDERR.print("next: restore a newer copy if there is one, or resume with `dpca budget accept-restored`")


def _read(passphrase_file: Path | None) -> str | None:
    from storage.backups.signatures import read_passphrase

    return None if passphrase_file is None else read_passphrase(passphrase_file)


@pages_app.callback()
def pages() -> None:
    """Write the pages of `dpca serve` as files."""


@pages_app.command()
def build(
    output: Annotated[Path, typer.Argument(metavar="OUT", help="The new folder, written completely or not at all.")],
    as_json: Json = False,
) -> None:
    """Write the pages of `dpca serve` as files, for any web server or to be opened from a folder.

    Links are relative. The list of datasets is not included.
    """
    from flows.reports.activity import activity
    from flows.web.pages import build_site

    with activity("writing pages") as seen:
        pages = build_site(output, notify=seen.parts)
    print_facts({"site": str(output), "pages": pages}, as_json=as_json)
