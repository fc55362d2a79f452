"""A program: install ``requirements-consumer.lock`` and this package alone, and use an artifact with nothing else.

The artifact is signed, and read from a folder, over https and from s3, whose servers run in the environment that made
it. Then it is tampered with in each place, and must be refused under the pinned key.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

import hatchling.build
import numpy as np
import pytest

from storage.artifacts.files import write_artifact
from storage.artifacts.subspace import PrivateSubspace
from storage.backends.base import Place
from storage.backends.opening import open_place
from storage.registry.pointers import FOLDER as POINTERS
from storage.registry.pointers import Pointer
from storage.registry.root_keys import init_root, update_root
from storage.registry.roots import Publisher
from storage.registry.signed_pointers import FOLDER, SignedPointer
from storage.registry.signing import Signer
from tests.certificates import issue
from tests.consumer.child import UNWANTED
from tests.deployments.lock import CONSUMER
from tests.s3 import Server, serve
from tests.storage.registry.signed_registries import PINNED, ROOT_KEY, Publication, files, put_back
from tests.web_server import serve_folder

ROOT = CONSUMER.parent
CHILD = Path(__file__).with_name("child.py")
PAGE = ROOT / "docs" / "how-to" / "consume.md"
NAME = "news"
MOST_MILLISECONDS = 60.0
RUNS = 5


def make_subspace() -> PrivateSubspace:
    """Return a subspace around a mean."""
    stream = np.random.default_rng(0)
    components = np.linalg.qr(stream.normal(size=(50, 4)))[0].T
    return PrivateSubspace(components=components, mean=stream.normal(size=50), manifest={"mechanism": "analyze_gauss"})


def publish(address: str | Path, *, home: Path) -> None:
    """Publish the subspace as ``news@1`` in a place, signed under a root."""
    place = open_place(address)
    made = Publication(home=home, place=place, signer=Signer(keys=home / "keys"))
    init_root(place, [ROOT_KEY], publishers={made.publisher: Publisher()})
    made.versions[1] = write_artifact(make_subspace(), home=home, place=place)
    made.point()


def flip(place: Place) -> None:
    """Flip one bit of the signed pointer."""
    payload = bytearray(place.read(SignedPointer.path(NAME)).payload)
    payload[len(payload) // 2] ^= 1
    put_back(place, {SignedPointer.path(NAME): bytes(payload)})


def forge(place: Place) -> None:
    """Let the pointer name another artifact, and its own checksum be right."""
    put_back(place, {Pointer.path(NAME): Pointer(name=NAME, versions={1: "0" * 64}, aliases={}).encode()})


def revoke(place: Place) -> None:
    """Revoke the publisher's key."""
    found = json.loads(place.read(SignedPointer.path(NAME)).payload)
    update_root(place, [ROOT_KEY], revoke=[*found["signatures"]])


TAMPERED: dict[str, Callable[[Place], None]] = {
    "a flipped bit": flip,
    "a forged pointer": forge,
    "a revoked key": revoke,
}
"""What is done to a signed registry that a consumer read before; the last cannot be taken back."""


def refusals(python: Path | str, address: str, place: Place, environment: dict[str, str]) -> dict[str, str]:
    """Tamper with a registry in each way, and return with which line each was refused, nothing where it was not."""
    found = {}
    for kind, tamper in TAMPERED.items():
        sound = files(place, FOLDER, POINTERS)
        tamper(place)
        found[kind] = str(use(python, address, environment).get("refused", ""))
        put_back(place, sound)
    return found


@contextmanager
def published(folder: Path, objects: Server) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """Publish everywhere; yield the address of each place, and the variables by which a consumer reaches them."""
    home, at = folder / "home", objects.url(folder.name)
    tls = issue(folder / "tls")
    with pytest.MonkeyPatch.context() as patch:
        objects.enter(patch)
        publish(home, home=home)
        publish(at, home=home)
    with serve_folder(home, tls=tls) as web:
        addresses = {"folder": str(home), "https": f"{web.url}/registry", "s3": at}
        state = {"DPCA_STATE_FOLDER": str(folder / "state")}
        yield addresses, {**objects.environment, **state, "SSL_CERT_FILE": str(tls.ca)}


def commands_that_install() -> str:
    """Return the commands of the consumer's page that make its environment."""
    found = re.search(r"^```sh\n(python3 -m venv .*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found
    return found[1]


def install(folder: Path) -> Path:
    """Make the consumer's environment by the commands of its page, and return its Python."""
    with chdir(ROOT):
        hatchling.build.build_wheel(str(folder))
    shutil.copy(CONSUMER, folder)
    script = commands_that_install().replace("python3 -m venv", f"{sys.executable} -m venv")
    subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return folder / "consumer" / "bin" / "python"


def use(python: Path | str, address: str, environment: dict[str, str], *options: str) -> dict[str, Any]:
    """Use the artifact of an address in a process of its own, and return its measures."""
    command = [python, CHILD, address, NAME, PINNED, *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    measures: dict[str, Any] = json.loads(done.stdout)
    return measures


def main() -> int:
    """Check the environment, print what was found, and return 1 where it is not what it must be."""
    expected = make_subspace().transform(np.linspace(-1.0, 1.0, 100).reshape(2, -1))
    with (
        tempfile.TemporaryDirectory() as name,
        serve() as objects,
        published(Path(name), objects) as (addresses, variables),
    ):
        python = install(Path(name))
        sound, times = True, []
        for kind, address in addresses.items():
            runs = [use(python, address, variables) for _ in range(RUNS)]
            times += [run["milliseconds"] for run in runs]
            close = np.allclose(runs[0]["scores"], expected, rtol=0.0, atol=1e-12)
            sound = sound and close and not runs[0]["found"]
            print(f"{kind:7} {runs[0]['artifact']} verified, scores {'equal' if close else 'DIFFER'};", end=" ")
            print("with", ", ".join(runs[0]["used"]))
        with pytest.MonkeyPatch.context() as patch:
            objects.enter(patch)
            for kind in ("s3", "https"):  # the folder is the one behind https
                place = open_place(addresses["s3" if kind == "s3" else "folder"])
                lines = refusals(python, addresses[kind], place, variables)
                sound = sound and all(lines.values())
                print(
                    f"{kind:7} refused under the pinned key:", ", ".join(what for what, line in lines.items() if line)
                )
        print("installed of what a curator needs:", ", ".join(runs[0]["found"]) or "none of " + ", ".join(UNWANTED))
    print(
        f"import of what loads an artifact, beyond numpy and scipy.sparse: {min(times):.0f} ms of processor time "
        f"(at most {MOST_MILLISECONDS:.0f}; least of {len(times)})"
    )
    return 0 if sound and min(times) <= MOST_MILLISECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
