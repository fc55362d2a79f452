"""``dpca registry key``, ``root``, ``trust`` and ``resign``: who signs what is published, and whom consumers trust."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.reports.terminal import print_facts

if TYPE_CHECKING:
    from storage.registry.roots import Root

key_app = typer.Typer(help="Show, make or change the key that signs what this ledger publishes.")
root_app = typer.Typer(help="Keep the root of a registry: which publishers' keys may sign which names.")

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Out = Annotated[Path | None, typer.Option(help="Write the public half to this file, too.")]
RootKeys = Annotated[list[Path], typer.Option("--key", help="File of a root's private key; may be given again.")]


@key_app.command()
def show(out: Out = None, as_json: Json = False) -> None:
    """Print the public half of the publisher's key, and of the one that waits to follow it."""
    from storage.errors import NotFound
    from storage.home import key_folder
    from storage.registry.signed_files import public_name
    from storage.registry.signed_pointers import PUBLISHERS_KEY
    from storage.registry.signing import NEXT_KEY, read_key

    path, after = key_folder() / PUBLISHERS_KEY, key_folder() / NEXT_KEY
    if not path.exists():
        raise NotFound(f"{path} is not there; the first publication makes it, or `dpca registry key new`.")
    publisher, waiting = public_name(read_key(path)), public_name(read_key(after)) if after.exists() else None
    _write(out, publisher)
    print_facts({"publisher": publisher, "next": waiting}, as_json=as_json)


@key_app.command()
def new(as_json: Json = False) -> None:
    """Make the publisher's key before the first publication does."""
    from storage.home import key_folder, writable_home
    from storage.registry.signed_files import public_name
    from storage.registry.signed_pointers import PUBLISHERS_KEY
    from storage.registry.signing import make_new_key

    writable_home()
    print_facts({"publisher": public_name(make_new_key(key_folder() / PUBLISHERS_KEY))}, as_json=as_json)


@key_app.command()
def rotate(out: Out = None, as_json: Json = False) -> None:
    """Make the next publisher's key; it signs as soon as the root delegates to it, and the old one is then removed."""
    from storage.home import key_folder
    from storage.registry.signing import Signer

    made = Signer(keys=key_folder()).rotate()
    _write(out, made)
    print_facts({"next": made}, as_json=as_json)


@root_app.command()
def init(
    out: Annotated[list[Path], typer.Option(help="File for a root's private key; again for several keys.")],
    threshold: Annotated[int, typer.Option(help="How many of them must sign a later version.")] = 1,
    as_json: Json = False,
) -> None:
    """Make a root: new keys in files of yours, and its first version, which delegates every name to this ledger's key.

    Move the files to where this machine cannot read them. Consumers pin the public keys, which are printed, and written
    to FILE.pub.
    """
    from storage.errors import Invalid
    from storage.home import key_folder, store
    from storage.registry.root_keys import init_root
    from storage.registry.roots import Publisher, newest_root
    from storage.registry.signed_files import public_name
    from storage.registry.signing import Signer, make_new_key
    from storage.workspace import Workspace

    if not 1 <= threshold <= len(out) or len(set(out)) < len(out):
        raise Invalid(f"threshold={threshold} must be 1 to {len(out)}, the number of files; correct it, or name more")
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
    delegate: Annotated[list[str] | None, typer.Option(help="A publisher's public key that may sign.")] = None,
    names: Annotated[
        list[str] | None,
        typer.Option(help="A name that the delegated keys may publish, or a beginning: map-*"),
    ] = None,
    retire: Annotated[list[str] | None, typer.Option(help="A publisher's key: what it signed stays valid.")] = None,
    revoke: Annotated[list[str] | None, typer.Option(help="A publisher's key: all that it signed is void.")] = None,
    add: Annotated[list[str] | None, typer.Option(help="The public key of a further keeper of the root.")] = None,
    drop: Annotated[list[str] | None, typer.Option(help="The public key of a keeper no more.")] = None,
    threshold: Annotated[int | None, typer.Option(help="How many keys of the root must sign from now on.")] = None,
    as_json: Json = False,
) -> None:
    """Write the next version of the root, signed by enough keys of the version before and of its own.

    A public key is given as 64 hex digits, or as a file that holds them.
    """
    from storage.home import store
    from storage.registry.root_keys import update_root
    from storage.registry.signing import read_key

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
    out: Annotated[Path, typer.Option(help="File for the private key; the public half is written to FILE.pub.")],
    as_json: Json = False,
) -> None:
    """Make the key of a further keeper of the root; `root update --add FILE.pub` lets it sign."""
    from storage.registry.signed_files import public_name
    from storage.registry.signing import make_new_key

    key = public_name(make_new_key(out.absolute()))
    _write(out.with_name(f"{out.name}.pub"), key)
    print_facts({"key": key}, as_json=as_json)


@root_app.command("show")
def show_root(as_json: Json = False) -> None:
    """Print the newest root: its keys, and the publishers that it delegates to."""
    from storage.errors import NotFound
    from storage.home import store
    from storage.registry.roots import newest_root

    place = store()
    root = newest_root(place)
    if root is None:
        raise NotFound(f"{place.at('registry')} has no root; make one with `dpca registry root init`.")
    _print(root, as_json=as_json)


def trust(
    key: Annotated[list[str], typer.Argument(help="Root keys, in hex or as files; several must all have signed.")],
    registry: Annotated[
        str | None, typer.Option(help="Its folder, s3:// or https:// address; by default this home's.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Pin them in the place of others.")] = False,
    as_json: Json = False,
) -> None:
    """Pin the root key of a registry: from then on this user refuses what was not signed under it."""
    from storage.registry.reader import Registry
    from storage.registry.remembered import pin

    keys = _keys(key)
    opened = Registry.open(registry, trust=keys)
    assert opened.trust is not None
    root = opened.trust.root(opened.place)
    pin(opened.place.address, keys, replace=replace)
    print_facts({"registry": opened.place.address, "pinned": keys, "root": root.version}, as_json=as_json)


def resign(
    above: Annotated[
        int, typer.Option(min=0, help="Number the signed pointers above this, after a loss of files and database.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Sign every version and pointer anew, after every byte was checked and compared with the ledger."""
    from storage.workspace import Workspace

    print_facts({"signed": Workspace.open().resign(above=above)}, as_json=as_json)


def _print(root: "Root", *, as_json: bool) -> None:
    publishers = {key: f"{row.state}: {_listed(row.names)}" for key, row in root.publishers.items()}
    facts: dict[str, Any] = {"version": root.version, "threshold": root.threshold, "root": list(root.keys)}
    print_facts(facts | ({"publishers": publishers} if as_json else publishers), as_json=as_json)


def _keys(given: Sequence[str] | None) -> list[str]:
    """Return public keys that are given in hex, or as files that hold them."""
    from storage.errors import Unavailable

    try:
        return [
            Path(word).read_text(encoding="ascii").strip() if Path(word).is_file() else word for word in given or ()
        ]
    except (OSError, ValueError):
        raise Unavailable("a file of a public key cannot be read; name one that holds 64 hex digits") from None


def _write(path: Path | None, key: str) -> None:
    from storage.backends.atomic_files import write_atomically, writing

    if path is not None:
        with writing(path.absolute().parent):
            write_atomically(path.absolute(), f"{key}\n".encode())


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words)
