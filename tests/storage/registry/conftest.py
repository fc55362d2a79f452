"""Fixtures: a separate state folder for each test, and a signed registry.

A small signed registry, in memory or in a folder, tests what consumers refuse.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpca.artifacts.files import write_artifact
from dpca.artifacts.subspace import PrivateSubspace
from dpca.backends.base import Place
from dpca.backends.local import LocalPlace
from dpca.errors import Corrupt, Refused
from dpca.registry.pointers import Pointer
from dpca.registry.reader import Registry
from dpca.registry.roots import PUBLISHERS_KEY, Publisher, SignedPointer, public_name
from storage.registry.signing import Signer, decoded, init_root, make_key, number_of, read_stored

NAME = "news"


def key_of(number: int) -> Ed25519PrivateKey:
    """Return a fixed private key."""
    return Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)


ROOT_KEY = key_of(1)


PINNED = public_name(ROOT_KEY)


def subspace(epsilon: float = 1.0) -> PrivateSubspace:
    """Return a subspace that states an epsilon; the arrays differ between epsilons."""
    privacy = {"epsilon": epsilon, "delta": 1e-6, "relation": "add_remove"}
    facts = {"mechanism": "analyze_gauss", "privacy": privacy, "release": "0" * 32}
    return PrivateSubspace(components=np.roll(np.eye(2, 6), int(epsilon), axis=1), manifest=facts)


@dataclass(kw_only=True)
class Publication:
    """A publisher without a ledger: the registry's place, the signing key, and the published versions."""

    home: Path
    place: Place
    signer: Signer
    versions: dict[int, str] = field(default_factory=dict)

    @property
    def publisher(self) -> str:
        """The publisher's public key."""
        return public_name(self.signer.key(self.place))

    def publish(
        self, *, name: str = NAME, epsilon: float = 1.0, aliases: Mapping[str, int] | None = None, plain: bool = True
    ) -> str:
        """Publish an artifact under the next version of a name; return its digest."""
        digest = write_artifact(subspace(epsilon), home=self.home, place=self.place)
        self.versions[len(self.versions) + 1] = digest
        self.point(name=name, aliases=aliases, plain=plain)
        return digest

    def point(self, *, name: str = NAME, aliases: Mapping[str, int] | None = None, plain: bool = True) -> None:
        """Write the signed pointer of a name, and the pointer file."""
        pointer = Pointer(name=name, versions=dict(self.versions), aliases=dict(aliases or {}))
        over, standing = (read_stored(self.place, of.path(name)) for of in (SignedPointer, Pointer))
        before = decoded(name, over)
        payload = None if standing is None else standing.payload
        number = number_of(before) + 1
        assert self.signer.write(self.place, pointer, over=over, before=before, plain=payload, number=number)
        if plain:
            self.place.write(Pointer.path(name), pointer.encode(), over=standing)

    def change_key(self) -> str:
        """Replace the publisher's key by a new one, and return its public half."""
        (self.signer.keys / PUBLISHERS_KEY).unlink()
        make_key(self.signer.keys / PUBLISHERS_KEY)
        return self.publisher


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set a separate state folder for the test, which has the ledger's witness and the consumer's memory."""
    folder = tmp_path / "state"
    monkeypatch.setenv("DPCA_STATE_FOLDER", str(folder))
    return folder


@pytest.fixture
def publishers_home(tmp_path: Path, state: Path) -> Path:
    """Return the empty home of a publisher, which is not the current home."""
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def made(publishers_home: Path) -> Publication:
    """Return a registry with one signed version of ``news``, under a root key."""
    return publication(publishers_home, LocalPlace(publishers_home))


def publication(
    home: Path, place: Place, *, names: Sequence[str] = ("*",), keys: Sequence[Ed25519PrivateKey] = (ROOT_KEY,)
) -> Publication:
    """Create a registry with a root key and one signed version of ``news``."""
    made = Publication(home=home, place=place, signer=Signer(keys=home / "keys"))
    init_root(place, keys, publishers={made.publisher: Publisher(names=tuple(names))}, threshold=len(keys))
    made.publish()
    return made


def numbered(place: Place, name: str = NAME) -> int:
    """Return the number that the current signed pointer contains."""
    return number_of(decoded(name, read_stored(place, SignedPointer.path(name))))


def files(place: Place, *folders: str) -> dict[str, bytes]:
    """Return the small files of some folders of a registry."""
    return {
        f"{folder}/{file}": place.read(f"{folder}/{file}").payload for folder in folders for file in place.names(folder)
    }


def put_back(place: Place, found: Mapping[str, bytes]) -> None:
    """Overwrite files of a registry with the given ones."""
    for path, payload in found.items():
        place.write(path, payload, over=read_stored(place, path))


def consumer(made: Publication, *keys: str) -> Registry:
    """Open a registry as a consumer who has pinned these root keys."""
    return Registry.open(made.place.address, trust=keys or PINNED)


def refusal(registry: Registry, reference: str = NAME) -> str:
    """Return the one line with which a reference is refused."""
    with pytest.raises((Refused, Corrupt)) as caught:
        registry.load(reference)
    assert "\n" not in str(caught.value)
    return str(caught.value)
