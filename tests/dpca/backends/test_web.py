"""A registry behind a web server: artifacts are found by name with GET requests, and verified completely.

Every failure is reported in one line.
"""

import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from random import Random

import numpy as np
import pytest

from dpca.artifacts.base import canonical_json
from dpca.artifacts.embeddings import ItemEmbeddings
from dpca.artifacts.estimate import PrivateEstimate
from dpca.artifacts.files import write_artifact
from dpca.artifacts.subspace import PrivateSubspace
from dpca.artifacts.tensor import TensorComponents
from dpca.backends import web
from dpca.backends.atomic_files import digest_files
from dpca.backends.local import LocalPlace, open_place, open_published
from dpca.backends.web import WebPlace
from dpca.errors import Corrupt, Invalid, NotFound, Refused, StorageError, Unavailable
from dpca.registry.pointers import Pointer
from dpca.registry.reader import Registry
from tests.dpca.artifacts.test_subspace import SUBSPACE
from tests.storage.hostile import base, change
from tests.web_server import Answer, Files, WebServer, cut_short, flipped, issue, plain, serve_folder, status

COMPONENTS = "components/zarr.json"
CHUNK = "components/c/0/0"
PUBLISHED = Pointer(name="news", versions={1: "a" * 64}, aliases={"champion": 1}).encode()
FULL = PrivateSubspace(
    components=np.eye(2, 4),
    eigenvalues=np.array([3.0, 2.0]),
    spectrum=np.array([3.0, 2.0, 1.0]),
    further=np.eye(3, 4)[2:],
    mean=np.arange(4.0),
    leading=np.eye(3, 4),
    matrix=np.arange(10.0),
    manifest={"feature_names": ["a", "b", "c", "d"]},
)
KINDS = {
    "subspace": SUBSPACE,
    "full": FULL,
    "items": ItemEmbeddings(
        factors=np.eye(3, 2),
        offsets=np.zeros(3),
        low=1.0,
        high=5.0,
        manifest={"user_step": {"centre": 3.0, "prior": 0.0, "ridge": 1.0, "rating_bound": 4.0}},
    ),
    "estimate": PrivateEstimate(sums=np.array([6.0]), manifest={}),
    "tensor": TensorComponents(components=None, weights=None, model="topics", n_features=3, manifest={}),
}


def publish(home: Path, name: str, digest: str) -> None:
    path = home / Pointer.path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(Pointer(name=name, versions={1: digest}, aliases={"champion": 1}).encode())


def publish_files(home: Path, name: str, files: dict[str, bytes]) -> None:
    """Publish files under their digest, without checking that they are an artifact."""
    digest = digest_files(files)
    for path, payload in files.items():
        target = home / "registry" / "artifacts" / digest / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(payload)
    publish(home, name, digest)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    for name, artifact in KINDS.items():
        publish(folder, name, write_artifact(artifact, home=folder))
    return folder


@pytest.fixture
def server(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    monkeypatch.setattr(web, "_PAUSES", (0.0, 0.0))
    with serve_folder(home) as found:
        yield found


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return issue(tmp_path_factory.mktemp("tls") / "files")


class TestReading:
    @pytest.mark.parametrize("name", KINDS)
    def test_artifacts_of_every_kind_equal_those_read_from_the_folder(
        self, server: WebServer, home: Path, name: str
    ) -> None:
        far, near = (Registry.open(address) for address in (f"{server.url}/registry", home))
        assert far.show(f"{name}@champion") == near.show(f"{name}@champion")
        for array, values in near.load(name).arrays().items():
            np.testing.assert_array_equal(getattr(far.load(name), array), values)

    def test_each_file_is_read_once_and_with_get_requests_only(self, server: WebServer) -> None:
        Registry.open(f"{server.url}/registry").load("full")
        assert {method for method, _ in server.requested} == {"GET"}
        assert len(set(server.requested)) == len(server.requested)

    def test_an_array_of_several_chunks_is_read_whole(
        self, server: WebServer, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("dpca.artifacts.files._CHUNK_VALUES", 8)
        publish(home, "chunked", write_artifact(FULL, home=home))
        assert Registry.open(server.url).verify("chunked").digest != Registry.open(server.url).verify("full").digest
        np.testing.assert_array_equal(Registry.open(server.url).load("chunked").leading, FULL.leading)

    @pytest.mark.parametrize("end", ["", "/", "/registry", "/registry/"])
    def test_the_url_names_the_registry_or_the_folder_above_it(self, server: WebServer, end: str) -> None:
        registry = Registry.open(server.url + end)
        assert registry.place.address == server.url
        assert registry.verify("full").version == 1

    def test_a_pickled_registry_opens_the_same_place(self, server: WebServer) -> None:
        place = open_published(f"{server.url}/registry")
        assert pickle.loads(pickle.dumps(place)) == place
        assert server.url.encode() in pickle.dumps(place)

    def test_an_optional_array_may_be_answered_with_403_as_object_stores_do(self, server: WebServer) -> None:
        server.answers = {"further/zarr.json": status(403), "mean/zarr.json": status(403)}
        assert Registry.open(server.url).verify("subspace").version == 1
        with pytest.raises(Corrupt, match="has digest"):
            Registry.open(server.url).verify("full")

    def test_reading_a_folder_imports_no_client(self, home: Path) -> None:
        program = (
            "import sys\n"
            "from dpca.registry.reader import Registry\n"
            "Registry.open(sys.argv[1]).load('full')\n"
            "print(sorted({'httpx', 'ssl', 'obstore'} & set(sys.modules)))\n"
        )
        done = subprocess.run([sys.executable, "-c", program, home], capture_output=True, text=True, check=True)
        assert done.stdout == "[]\n"


class TestCertificates:
    def test_a_known_authority_is_trusted_and_any_other_is_refused(
        self, home: Path, tls: Files, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with serve_folder(home, tls=tls) as server:
            assert server.url.startswith("https://")
            monkeypatch.delenv("SSL_CERT_DIR", raising=False)
            monkeypatch.setenv("SSL_CERT_FILE", str(tls.ca))
            assert Registry.open(f"{server.url}/registry").verify("full").version == 1
            monkeypatch.delenv("SSL_CERT_FILE")
            server.requested.clear()
            with pytest.raises(Unavailable, match=r"no trusted certificate.*set SSL_CERT_FILE") as caught:
                Registry.open(f"{server.url}/registry").load("full")
            assert "\n" not in str(caught.value)
            assert not server.requested

    @pytest.mark.parametrize("content", [None, "no certificate"])
    def test_an_unusable_setting_is_named(
        self, tmp_path: Path, content: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if content is not None:
            (tmp_path / "ca.pem").write_text(content)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        with pytest.raises(Unavailable, match="SSL_CERT_FILE"):
            Registry.open("https://127.0.0.1:1/registry")


def too_long(request: BaseHTTPRequestHandler, _: bytes) -> None:
    """Respond with a Content-Length above the limit of a pointer file, and send no body."""
    request.send_response(200)
    request.send_header("Content-Length", str(1 << 40))
    request.end_headers()
    request.close_connection = True


def endless(request: BaseHTTPRequestHandler, _: bytes) -> None:
    """Respond without Content-Length, and send more bytes than any manifest has."""
    request.send_response(200)
    request.send_header("Connection", "close")
    request.end_headers()
    request.wfile.write(b" " * (1 << 22))
    request.close_connection = True


def compressed(request: BaseHTTPRequestHandler, content: bytes) -> None:
    request.send_response(200)
    request.send_header("Content-Encoding", "gzip")
    request.send_header("Content-Length", str(len(content)))
    request.end_headers()
    request.wfile.write(content)


def late(request: BaseHTTPRequestHandler, content: bytes) -> None:
    time.sleep(0.5)
    plain(request, content)


FAILURES: list[tuple[str, Answer, type[StorageError], str]] = [
    ("full.json", status(404), NotFound, "'full' cannot be read at .*/registry"),
    ("full.json", status(403), NotFound, "'full' cannot be read at .*/registry"),
    ("full.json", status(401), Unavailable, "requires credentials"),
    ("full.json", status(301, Location="https://elsewhere.example/\r\n x"), Unavailable, "redirects to 'https://els"),
    ("full.json", status(304), Unavailable, "answers 304; it must answer 200"),
    ("full.json", status(206), Unavailable, "answers 206; it must answer 200"),
    ("full.json", status(418), Unavailable, "answers 418; it must answer 200"),
    ("full.json", status(503), Unavailable, "answers 503.*later"),
    ("full.json", too_long, Corrupt, "more than 16777216 bytes"),
    ("full.json", compressed, Unavailable, "is sent compressed"),
    ("full.json", cut_short, Unavailable, "sent an incomplete answer"),
    ("full.json", flipped, Corrupt, r"full\.json is damaged"),
    ("full.json", late, Unavailable, "does not answer in time"),
    ("manifest.json", status(404), Corrupt, "cannot be read.*answers 404"),
    ("manifest.json", flipped, Corrupt, "is not valid|has digest"),
    (COMPONENTS, status(404), Corrupt, "has digest"),
    (COMPONENTS, flipped, Corrupt, "is not valid|has digest"),
    (COMPONENTS, endless, Corrupt, "more than 65536 bytes"),
    ("subspace.zarr/zarr.json", status(404), Corrupt, "cannot be read.*answers 404"),
    (CHUNK, status(404), Corrupt, "cannot be read.*answers 404"),
    (CHUNK, flipped, Corrupt, "has digest"),
    (CHUNK, cut_short, Unavailable, "sent an incomplete answer"),
]


class TestFailures:
    @pytest.mark.parametrize(
        ("path", "answer", "error", "shown"), FAILURES, ids=[f"{number}" for number in range(len(FAILURES))]
    )
    def test_each_failure_is_one_line_with_the_action_to_take(
        self,
        server: WebServer,
        monkeypatch: pytest.MonkeyPatch,
        path: str,
        answer: Answer,
        error: type[StorageError],
        shown: str,
    ) -> None:
        monkeypatch.setattr(web, "_TIMEOUT", 0.2)
        server.answers = {path: answer}
        with pytest.raises(error, match=shown) as caught:
            Registry.open(f"{server.url}/registry").load("full")
        assert "\n" not in str(caught.value)

    def test_a_temporary_failure_is_retried(self, server: WebServer) -> None:
        left = [status(503), cut_short]

        def at_last(request: BaseHTTPRequestHandler, content: bytes) -> None:
            (left.pop() if left else plain)(request, content)

        server.answers = {"full.json": at_last}
        assert Registry.open(server.url).resolve("full").version == 1
        assert len(server.requested) == 3

    def test_an_unreachable_server_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(web, "_PAUSES", ())
        with pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:1/registry/names/full\.json cannot be reached"):
            Registry.open("http://127.0.0.1:1/registry").load("full")

    def test_an_artifact_of_a_later_kind_suggests_an_upgrade(self, server: WebServer, home: Path) -> None:
        publish_files(home, "later", {"manifest.json": canonical_json({"format": 1, "kind": "hologram"})})
        with pytest.raises(Invalid, match=r"kind hologram.*upgrade"):
            Registry.open(server.url).load("later")

    @pytest.mark.parametrize("manifest", [b"[]", b"{", b"{}", canonical_json({"kind": ["private_subspace"]})])
    def test_files_that_are_not_an_artifact_are_reported(self, server: WebServer, home: Path, manifest: bytes) -> None:
        publish_files(home, "odd", {"manifest.json": manifest})
        with pytest.raises(Corrupt, match="is not valid") as caught:
            Registry.open(server.url).load("odd")
        assert "\n" not in str(caught.value)

    def test_no_chunk_is_requested_if_an_array_declares_too_many(self, server: WebServer, home: Path) -> None:
        source = LocalPlace(home).read_folder(f"registry/artifacts/{Registry.open(home).resolve('full').digest}")
        described = source[f"subspace.zarr/{COMPONENTS}"].replace(b"4", b"9" * 12)
        publish_files(home, "huge", source | {f"subspace.zarr/{COMPONENTS}": described})
        with pytest.raises(StorageError, match=r"bytes; this machine reads|files|is not valid"):
            Registry.open(server.url).load("huge")
        assert not [path for _, path in server.requested if "/c/" in path]


def ending(registry: Registry) -> str:
    try:
        registry.load("news@champion")
    except StorageError as error:
        return "refused in several lines" if "\n" in str(error) else "refused"
    return "loaded"


def test_forged_artifacts_load_as_from_a_folder_or_are_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "_PAUSES", ())
    rng, ends = Random(20_261_123), []
    sound = LocalPlace(tmp_path).read_folder(f"registry/artifacts/{write_artifact(base(), home=tmp_path)}")
    with serve_folder(tmp_path) as server:
        far = Registry.open(server.url)
        for _ in range(60):
            files, pointer = change(sound, PUBLISHED, rng)
            publish_files(tmp_path, "news", files)
            if pointer is not None:
                (tmp_path / Pointer.path("news")).write_bytes(pointer)
            ends.append((ending(far), ending(Registry.open(tmp_path))))
    assert set(ends) <= {("loaded", "loaded"), ("refused", "refused"), ("refused", "loaded")}
    assert ends.count(("loaded", "loaded")) > 5
    assert ends.count(("refused", "refused")) > 30
    # extra files in a folder are refused locally, but a web reader does not see them
    assert ends.count(("refused", "loaded")) < 5


class TestUse:
    @pytest.mark.parametrize(
        "url",
        [
            *(
                "https://",
                "https:///registry",
                "https://user:secret@host/registry",
                "https://host/registry?token=secret",
            ),
            *("https://host/registry#secret", "https://host/../registry", "https://host/.x/", "https://ho st/registry"),
            *("http://host.example/registry", "http://10.0.0.1/registry", "http://localhost.example/registry"),
        ],
    )
    def test_an_invalid_registry_url_is_refused_without_quoting_it(self, url: str) -> None:
        with pytest.raises(Invalid, match="must be https://host/path/registry") as caught:
            Registry.open(url)
        assert "secret" not in str(caught.value)

    def test_only_a_registry_can_be_opened_at_a_url(self) -> None:
        with pytest.raises(Invalid, match="s3://bucket/prefix"):
            open_place("https://host/datasets")

    def test_a_web_registry_cannot_be_listed(self, server: WebServer) -> None:
        registry = Registry.open(server.url)
        for use in (registry.names, registry.list):
            with pytest.raises(Invalid, match=r"cannot be listed.*give the name of an artifact"):
                use()
        assert not server.requested

    def test_a_web_registry_is_read_only(self, server: WebServer, tmp_path: Path) -> None:
        place = WebPlace(server.url)
        for use in (
            lambda: place.write("registry/x", b"", over=None),
            lambda: place.publish(tmp_path, "registry/x", marker="manifest.json"),
            lambda: place.remove("registry/x", marker="manifest.json"),
            place.zarr_store,
        ):
            with pytest.raises(Refused, match="read-only"):
                use()
        assert not server.requested
