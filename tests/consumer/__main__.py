"""Program that installs ``requirements-consumer.lock`` and this package alone, and uses an artifact with them.

The artifact is signed, and read from a folder, over https and from s3. The web and S3 servers run in the environment
that made the artifact. Then each part of the registry is tampered with, and must be refused under the pinned key. The
``dpca`` command and a short program run in a folder whose own ``storage.py`` and ``flows`` must not be imported, and
the program's types are checked.
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

from dpca.artifacts.files import write_artifact
from dpca.artifacts.subspace import PrivateSubspace
from dpca.backends.base import Place
from dpca.backends.local import open_place
from dpca.registry.pointers import FOLDER as POINTERS
from dpca.registry.pointers import Pointer
from dpca.registry.roots import SIGNED_FOLDER, Publisher, SignedPointer
from storage.registry.signing import Signer, init_root, update_root
from tests.consumer.child import UNWANTED
from tests.deployments.lock import CONSUMER
from tests.s3 import Server, serve
from tests.storage.registry.conftest import PINNED, ROOT_KEY, Publication, files, put_back
from tests.web_server import issue, serve_folder

ROOT = CONSUMER.parent
CHILD = Path(__file__).with_name("child.py")
PAGE = ROOT / "docs" / "how-to" / "consume.md"
NAME = "news"
MOST_MILLISECONDS = 150.0
RUNS = 5
PROGRAM = """import dpca
import numpy as np

news = dpca.load("news@1")
print(news.transform(np.ones((2, news.n_features))).shape)
"""


def make_subspace() -> PrivateSubspace:
    """Return a subspace of rows centered at a mean."""
    stream = np.random.default_rng(0)
    components = np.linalg.qr(stream.normal(size=(50, 4)))[0].T
    return PrivateSubspace(components=components, mean=stream.normal(size=50), manifest={"mechanism": "analyze_gauss"})


def publish(address: str | Path, *, home: Path) -> None:
    """Publish the subspace as ``news@1`` in a folder or store, signed with a root key."""
    place = open_place(address)
    made = Publication(home=home, place=place, signer=Signer(keys=home / "keys"))
    init_root(place, [ROOT_KEY], publishers={made.publisher: Publisher()})
    made.versions[1] = write_artifact(make_subspace(), home=home, place=place)
    made.point()


def flip(place: Place) -> None:
    """Flip one bit of the signed pointer file of ``news``."""
    payload = bytearray(place.read(SignedPointer.path(NAME)).payload)
    payload[len(payload) // 2] ^= 1
    put_back(place, {SignedPointer.path(NAME): bytes(payload)})


def forge(place: Place) -> None:
    """Change the pointer file to name another artifact, without changing the signed pointer file."""
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
"""Manipulations of a signed registry that a consumer has read before; the last one cannot be undone."""


def refusals(python: Path | str, address: str, place: Place, environment: dict[str, str]) -> dict[str, str]:
    """Tamper with a registry in each way; return the error line of each refusal, or an empty text without a refusal."""
    found = {}
    for kind, tamper in TAMPERED.items():
        sound = files(place, SIGNED_FOLDER, POINTERS)
        tamper(place)
        found[kind] = str(use(python, address, environment).get("refused", ""))
        put_back(place, sound)
    return found


@contextmanager
def published(folder: Path, objects: Server) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """Publish the subspace to a folder, a web server and an S3 store.

    Yield the address of each registry, and the environment variables with which a consumer reaches them.
    """
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
    """Return the shell commands of the page consume.md that create the consumer's environment from the lock."""
    blocks = re.findall(r"(?ms)^```sh\n(python3 -m venv .*?)^```$", PAGE.read_text(encoding="utf-8"))
    (found,) = (block for block in blocks if "--require-hashes" in block)
    return str(found)


def install(folder: Path) -> Path:
    """Create the consumer's environment by the commands of consume.md, and return the path of its Python."""
    with chdir(ROOT):
        hatchling.build.build_wheel(str(folder))
    shutil.copy(CONSUMER, folder)
    script = commands_that_install().replace("python3 -m venv", f"{sys.executable} -m venv")
    subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return folder / "consumer" / "bin" / "python"


def use(python: Path | str, address: str, environment: dict[str, str], *options: str) -> dict[str, Any]:
    """Load and apply the artifact at an address in a separate process, and return what ``child.py`` measured."""
    command = [python, CHILD, address, NAME, PINNED, *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    measures: dict[str, Any] = json.loads(done.stdout)
    return measures


def use_by_hand(python: Path, home: Path, folder: Path) -> dict[str, bool]:
    """Run what a new user would type, in a folder with modules named like ours; return which steps worked."""
    (folder / "flows").mkdir(parents=True)
    for hostile in ("storage.py", "flows/__init__.py"):
        (folder / hostile).write_text("raise RuntimeError('this was run')\n")
    (folder / "five.py").write_text(PROGRAM)
    np.save(folder / "rows.npy", np.ones((3, 50)))
    command = python.with_name("dpca")
    typed: dict[str, tuple[list[str | Path], str]] = {
        "pip check": ([python, "-m", "pip", "check"], "No broken requirements found."),
        "registry show": ([command, "registry", "show", f"{NAME}@1"], "news@1"),
        "registry list": ([command, "registry", "list"], "news@1"),
        "registry verify": ([command, "registry", "verify", NAME], "verified"),
        "transform": ([command, "transform", NAME, "rows.npy", "--output", "scores.npy"], "components  4"),
        "a program": ([python, "five.py"], "(2, 4)"),
        "mypy --strict": (
            [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "five.py"],
            "Success: no issues found",
        ),
        "a missing extra": ([command, "dataset", "list"], "install dpca-pipeline["),
        "a hidden package": ([python, "-m", "dpca", "registry", "list"], "hides the package"),
    }
    found = {}
    for what, (words, expected) in typed.items():
        environment = {"DPCA_HOME": str(home), "DPCA_STATE_FOLDER": str(folder / "state"), "HOME": str(folder)}
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        found[what] = expected in done.stdout + done.stderr and "Traceback" not in done.stderr
        if not found[what]:
            print(f"{what}: {done.stdout}{done.stderr}", file=sys.stderr)
    return found


def main() -> int:
    """Check the consumer's environment, print the results, and return 1 if a check failed."""
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
        by_hand = use_by_hand(python, Path(addresses["folder"]), Path(name) / "work")
        sound = sound and all(by_hand.values())
        print(
            "beside hostile modules:", ", ".join(f"{what} {'works' if ok else 'FAILS'}" for what, ok in by_hand.items())
        )
        with pytest.MonkeyPatch.context() as patch:
            objects.enter(patch)
            for kind in ("s3", "https"):  # the https server serves the registry in the folder
                place = open_place(addresses["s3" if kind == "s3" else "folder"])
                lines = refusals(python, addresses[kind], place, variables)
                sound = sound and all(lines.values())
                print(
                    f"{kind:7} refused under the pinned key:", ", ".join(what for what, line in lines.items() if line)
                )
        print("installed of what a curator needs:", ", ".join(runs[0]["found"]) or "none of " + ", ".join(UNWANTED))
    print(
        f"import dpca, beyond numpy and scipy.sparse: {min(times):.0f} ms of processor time "
        f"(at most {MOST_MILLISECONDS:.0f}; least of {len(times)})"
    )
    return 0 if sound and min(times) <= MOST_MILLISECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
