"""Commands of ``dpca registry``.

They list, inspect, verify, promote, export and sign published releases. ``dpca registry key`` manages the keys that
sign, ``root`` manages the root that names these keys, and ``trust`` pins a root.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.commands.app import App
from flows.reports.terminal import SHOWN, print_earlier, print_facts, print_json, print_rows

if TYPE_CHECKING:
    from dpca.registry.reader import Registry
    from dpca.registry.roots import Root
    from flows.reports.spectrum import Spectrum

app = App(help="List, verify, promote, export, sign and trust published artifacts.")
key_app = App(help="Show, create or change the key that signs publications of this ledger.")
root_app = App(help="Manage the root of a registry: the publishers' keys and the names that each may sign.")
app.add_typer(key_app, name="key")
app.add_typer(root_app, name="root")

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Ref = Annotated[str, typer.Argument(metavar="NAME[@REF]", help="name, name@3, name@alias or name@sha256:...")]
Out = Annotated[Path | None, typer.Option(help="Also write the public key to this file.")]
RootKeys = Annotated[list[Path], typer.Option("--key", help="File of a root's private key; may be repeated.")]
Required = Annotated[bool, typer.Option("--require-signature", help="Refuse a registry without a pinned root key.")]


@app.command("list")
def list_(
    name: Annotated[str | None, typer.Argument(help="Only this name; by default all.")] = None,
    limit: Annotated[
        int, typer.Option(min=0, help="Number of newest versions of a name to list; 0 lists all.")
    ] = SHOWN,
    require_signature: Required = False,
    as_json: Json = False,
) -> None:
    """List the newest versions of every name."""
    from dpca.registry.reader import Registry

    found = Registry.open(require_signature=require_signature or None).list(name, newest=limit or None)
    texts = {True: True, False: False} if as_json else {True: "yes", False: "NOT PRIVATE"}
    rows = [
        {"artifact": str(row), "private": texts[row.private], "digest": row.digest, "aliases": [*row.aliases]}
        for row in found
    ]
    oldest: dict[str, int] = {}
    for row in found:
        oldest.setdefault(row.name, row.version)
    print_earlier(sum(version - 1 for version in oldest.values()) if limit else 0, "versions")
    columns = ("artifact", "private", "aliases", "digest")
    print_rows(rows, columns, as_json=as_json, empty="nothing is published yet")


@app.command()
def show(
    reference: Ref,
    spectrum: Annotated[bool, typer.Option("--spectrum", help="Show eigenvalues and the noise floor.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the spectrum to this PNG or SVG file.")] = None,
    component: Annotated[
        int | None,
        typer.Option(help="With --plot: draw the largest loadings of this component instead, counted from 1."),
    ] = None,
    theme: Annotated[str, typer.Option(help="Theme of the plot: light or dark.")] = "light",
    require_signature: Required = False,
    as_json: Json = False,
) -> None:
    """Show the quality, guarantee and origin of a release; --json has all facts."""
    from dpca.registry.reader import Registry
    from flows.reports.release_page import release_page

    registry = Registry.open(require_signature=require_signature or None)
    facts = registry.show(reference)
    if component is not None and plot is None:
        raise typer.BadParameter("--component needs a plot; name the file of the plot with --plot.")
    found = _spectrum(registry, reference) if spectrum or (plot is not None and component is None) else None
    if plot is not None:
        _draw(registry, reference, plot, spectrum=found, component=component, name=facts["artifact"], theme=theme)
    if as_json:
        print_json(facts if found is None else facts | {"spectrum": found.facts()})
        return
    typer.echo(release_page(facts))
    if found is not None:
        typer.echo("")
        typer.echo(found.text())


@app.command()
def promote(
    artifact: Annotated[str, typer.Argument(metavar="NAME@VERSION", help="The version that the alias will point at.")],
    alias: Annotated[str, typer.Argument(help="The alias to move.")],
    as_json: Json = False,
) -> None:
    """Point an alias at a version."""
    from flows.releases.stages import promote_version

    print_facts(promote_version(artifact, alias), as_json=as_json)


@app.command()
def history(
    name: Annotated[str, typer.Argument(help="A published name.")],
    limit: Annotated[int, typer.Option(min=0, help="Number of newest moves to show; 0 shows all.")] = SHOWN,
    as_json: Json = False,
) -> None:
    """Show when each alias of a name was moved, by whom, from which version to which, and why."""
    from storage.workspace import Workspace

    moves = Workspace.read_only().alias_history(name, newest=limit + 1 if limit else None)
    if limit and len(moves) > limit:
        moves = moves[1:]
        print_earlier(None, "moves")
    rows: list[dict[str, Any]] = [
        {
            "time": move.time,
            "alias": move.alias,
            "from": move.before,
            "to": move.version,
            "actor": move.actor,
            "why": dict(move.why) if as_json else ", ".join(f"{fact} {value}" for fact, value in move.why.items()),
        }
        for move in moves
    ]
    columns = ("time", "alias", "from", "to", "actor", "why")
    print_rows(rows, columns, as_json=as_json, empty=f"no alias of {name} was moved yet")


@app.command()
def verify(
    reference: Ref,
    registry: Annotated[
        str | None, typer.Option(help="Folder, s3:// or https:// address of the registry; by default this home's.")
    ] = None,
    require_signature: Required = False,
    as_json: Json = False,
) -> None:
    """Check every byte of an artifact against its digest, and its signature if a root key is pinned."""
    from dpca.registry.reader import Registry

    opened = Registry.open(registry, require_signature=require_signature or None)
    found = opened.verify(reference)
    signed = {} if opened.trust is None else {"signed": True}
    print_facts({"artifact": str(found), "digest": found.digest, "verified": True, **signed}, as_json=as_json)


@app.command()
def export(
    reference: Ref,
    output: Annotated[Path, typer.Option(help="File to write; for mlflow, the new folder.")],
    format_: Annotated[
        str, typer.Option("--format", help="npz (arrays and facts); for a subspace also onnx, mlflow and sklearn.")
    ] = "npz",
    require_signature: Required = False,
    as_json: Json = False,
) -> None:
    """Write an artifact as one portable file, or as an ONNX, MLflow or scikit-learn model."""
    from dpca.registry.reader import Registry

    found = Registry.open(require_signature=require_signature or None).export(reference, output, format=format_)
    print_facts({"artifact": str(found), "output": str(output)}, as_json=as_json)


@key_app.command("show")
def show_key(out: Out = None, as_json: Json = False) -> None:
    """Print the publisher's public key, and the next one if there is one."""
    from dpca.errors import NotFound
    from dpca.home import key_folder
    from dpca.registry.roots import PUBLISHERS_KEY, public_name
    from storage.registry.signing import NEXT_KEY, read_key

    path, after = key_folder() / PUBLISHERS_KEY, key_folder() / NEXT_KEY
    if not path.exists():
        raise NotFound(f"{path} does not exist; the first publication or `dpca registry key new` creates it.")
    publisher, waiting = public_name(read_key(path)), public_name(read_key(after)) if after.exists() else None
    _write(out, publisher)
    print_facts({"publisher": publisher, "next": waiting}, as_json=as_json)


@key_app.command()
def new(as_json: Json = False) -> None:
    """Create the publisher's key before the first publication does."""
    from dpca.home import key_folder, writable_home
    from dpca.registry.roots import PUBLISHERS_KEY, public_name
    from storage.registry.signing import make_new_key

    writable_home()
    print_facts({"publisher": public_name(make_new_key(key_folder() / PUBLISHERS_KEY))}, as_json=as_json)


@key_app.command()
def rotate(out: Out = None, as_json: Json = False) -> None:
    """Create the next publisher's key; once the root delegates to this key, it signs, and the old key is removed."""
    from dpca.home import key_folder
    from storage.registry.signing import Signer

    made = Signer(keys=key_folder()).rotate()
    _write(out, made)
    print_facts({"next": made}, as_json=as_json)


@root_app.command()
def init(
    out: Annotated[list[Path], typer.Option(help="File for a root's private key; may be repeated for several keys.")],
    threshold: Annotated[int, typer.Option(help="Number of root keys that must sign a later version.")] = 1,
    as_json: Json = False,
) -> None:
    """Create the keys of a root in new files, and its first version, which delegates all names to this ledger's key.

    Move the files to where this machine cannot read them. Consumers pin the public keys, which are printed and written
    to FILE.pub.
    """
    from dpca.errors import Invalid
    from dpca.home import key_folder, store
    from dpca.registry.roots import Publisher, newest_root, public_name
    from storage.registry.signing import Signer, init_root, make_new_key
    from storage.workspace import Workspace

    if not 1 <= threshold <= len(out) or len(set(out)) < len(out):
        raise Invalid(
            f"threshold={threshold} must be from 1 to {len(out)}, the number of files; correct it, or name more files"
        )
    workspace, place = Workspace.open(), store()
    publisher = public_name(Signer(keys=key_folder()).key(place))
    keys = [] if newest_root(place) is not None else [make_new_key(path.absolute()) for path in out]
    root = init_root(place, keys, publishers={publisher: Publisher()}, threshold=threshold)
    for path, key in zip(out, keys, strict=True):
        _write(path.with_name(f"{path.name}.pub"), public_name(key))
    workspace.resign()
    _print(root, as_json=as_json)


@root_app.command()
def update(
    key: RootKeys,
    delegate: Annotated[list[str] | None, typer.Option(help="Public key of a publisher that may sign.")] = None,
    names: Annotated[
        list[str] | None,
        typer.Option(help="A name that the delegated keys may publish, or a prefix: map-*"),
    ] = None,
    retire: Annotated[
        list[str] | None, typer.Option(help="Public key of a publisher; its earlier signatures stay valid.")
    ] = None,
    revoke: Annotated[
        list[str] | None, typer.Option(help="Public key of a publisher; all its signatures become invalid.")
    ] = None,
    add: Annotated[list[str] | None, typer.Option(help="Public key of an additional keeper of the root.")] = None,
    drop: Annotated[list[str] | None, typer.Option(help="Public key of a removed keeper of the root.")] = None,
    threshold: Annotated[int | None, typer.Option(help="Number of root keys that must sign from now on.")] = None,
    as_json: Json = False,
) -> None:
    """Write the next version of the root, signed by enough keys of both the previous and the new version.

    Give a public key as 64 hex digits, or as a file that holds them.
    """
    from dpca.home import store
    from storage.registry.signing import read_key, update_root

    root = update_root(
        store(),
        [read_key(path) for path in key],
        delegate=dict.fromkeys(_keys(delegate), names or ["*"]),
        retire=_keys(retire),
        revoke=_keys(revoke),
        add=_keys(add),
        drop=_keys(drop),
        threshold=threshold,
    )
    _print(root, as_json=as_json)


@root_app.command("new-key")
def new_key(
    out: Annotated[Path, typer.Option(help="File for the private key; the public key is written to FILE.pub.")],
    as_json: Json = False,
) -> None:
    """Create the key of another keeper of the root; `root update --add FILE.pub` lets this key sign."""
    from dpca.registry.roots import public_name
    from storage.registry.signing import make_new_key

    key = public_name(make_new_key(out.absolute()))
    _write(out.with_name(f"{out.name}.pub"), key)
    print_facts({"key": key}, as_json=as_json)


@root_app.command("show")
def show_root(as_json: Json = False) -> None:
    """Print the newest root with its keys and the publishers that it delegates to."""
    from dpca.errors import NotFound
    from dpca.home import store
    from dpca.registry.roots import newest_root

    place = store()
    root = newest_root(place)
    if root is None:
        raise NotFound(f"{place.at('registry')} has no root; create one with `dpca registry root init`.")
    _print(root, as_json=as_json)


@app.command()
def trust(
    key: Annotated[
        list[str], typer.Argument(help="Root keys, in hex or as files; with several, each must have signed.")
    ],
    registry: Annotated[
        str | None, typer.Option(help="Folder, s3:// or https:// address of the registry; by default this home's.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the pinned keys by these.")] = False,
    as_json: Json = False,
) -> None:
    """Pin the root key of a registry for this user; artifacts that are not signed under this key are then refused."""
    from dpca.registry.reader import Registry
    from dpca.registry.trust import pin

    keys = _keys(key)
    opened = Registry.open(registry, trust=keys)
    assert opened.trust is not None
    root = opened.trust.root(opened.place)
    pin(opened.place.address, keys, replace=replace)
    print_facts({"registry": opened.place.address, "pinned": keys, "root": root.version}, as_json=as_json)


@app.command()
def resign(
    above: Annotated[
        int,
        typer.Option(
            min=0, help="Give the signed pointers numbers above this one; needed if both files and database were lost."
        ),
    ] = 0,
    as_json: Json = False,
) -> None:
    """Sign every version and pointer again, after checking every byte and comparing it with the ledger."""
    from storage.workspace import Workspace

    print_facts({"signed": Workspace.open().resign(above=above)}, as_json=as_json)


def _spectrum(registry: "Registry", reference: str) -> "Spectrum":
    from dpca.artifacts.subspace import PrivateSubspace
    from flows.families.restated_subspace import noise_edge_of
    from flows.reports.spectrum import Spectrum

    artifact = registry.load(reference, PrivateSubspace)
    return Spectrum.of(artifact, noise_edge=noise_edge_of(artifact))


def _draw(
    registry: "Registry",
    reference: str,
    plot: Path,
    *,
    spectrum: "Spectrum | None",
    component: int | None,
    name: str,
    theme: str,
) -> None:
    from dpca.artifacts.subspace import PrivateSubspace
    from flows.reports.release_charts import check_chart_file, loadings_chart, scree_chart, write_chart
    from flows.reports.spectrum import top_loadings

    check_chart_file(plot)
    if component is None and spectrum is not None:
        write_chart(scree_chart(spectrum, name=name, theme=theme), plot)
    elif component is not None:
        rows = top_loadings(registry.load(reference, PrivateSubspace), component=component)
        write_chart(loadings_chart(rows, component=component, name=name, theme=theme), plot)


def _print(root: "Root", *, as_json: bool) -> None:
    publishers = {key: f"{row.state}: {_listed(row.names)}" for key, row in root.publishers.items()}
    facts: dict[str, Any] = {"version": root.version, "threshold": root.threshold, "root": list(root.keys)}
    print_facts(facts | ({"publishers": publishers} if as_json else publishers), as_json=as_json)


def _keys(given: Sequence[str] | None) -> list[str]:
    """Return public keys in hex; each is given in hex or as the path of a file that contains it."""
    from dpca.errors import Unavailable

    try:
        return [
            Path(word).read_text(encoding="ascii").strip() if Path(word).is_file() else word for word in given or ()
        ]
    except (OSError, ValueError):
        raise Unavailable("a public key file cannot be read; name a file of 64 hex digits") from None


def _write(path: Path | None, key: str) -> None:
    from dpca.backends.atomic_files import write_atomically, writing

    if path is not None:
        with writing(path.absolute().parent):
            write_atomically(path.absolute(), f"{key}\n".encode())


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words)
