"""A place in an S3-compatible object store, through obstore.

Each process that reads or writes takes the endpoint and the credentials from its environment: ``AWS_ACCESS_KEY_ID``,
``AWS_SECRET_ACCESS_KEY``, ``AWS_SESSION_TOKEN``, ``AWS_REGION``, ``AWS_ENDPOINT_URL``, ``AWS_ALLOW_HTTP``,
``AWS_TIMEOUT`` ... They are never pickled and never appear in a message. ``datasets/`` below the prefix holds private
rows; a consumer only needs to list and read ``registry/``.

An object appears whole or not at all, and every later read sees it. Writers exclude one another by conditional puts
(``If-None-Match: *``, ``If-Match``). If a store ignores these conditions, only one guarantee is lost. A publisher
without its database connection may then replace a newer pointer file by an older one, until the next publishing
command.

An acknowledgement of the store is not sufficient. A published folder is listed, and a removed one is searched for,
before the operation counts as done. Where a listing decides something, each object missing from it is requested
directly, since a listing may be out of date.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, ClassVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import S3Store

from dpca.backends.atomic_files import MOST_BYTES, MOST_FILES, check_sizes, is_hidden, reached, relative_paths
from dpca.backends.base import Stored, each
from dpca.errors import Corrupt, Invalid, Unavailable

if TYPE_CHECKING:
    from zarr.abc.store import Store

_URL = re.compile(r"s3://([A-Za-z0-9][A-Za-z0-9._-]{1,254})((?:/[A-Za-z0-9_=-][A-Za-z0-9._=-]*)*)/?")
_MAX_RETRIES = 8  # a few seconds
_ATTEMPTS = 3  # at a write or removal that the store acknowledged but did not perform
_RETRY_TIMEOUT = timedelta(minutes=1)

_NO_CREDENTIALS = ("there are no credentials", "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
#: Text in an error, its meaning, and the next action.
_REASONS = (
    ("169.254.", *_NO_CREDENTIALS),  # the address at which cloud machines find their credentials
    ("Missing AccessKeyId", *_NO_CREDENTIALS),
    ("Missing SecretAccessKey", *_NO_CREDENTIALS),
    ("Config error", "an AWS_* variable has an invalid value", "correct that variable"),
    ("NoSuchBucket", "the bucket does not exist", "create it, or correct the URL or AWS_ENDPOINT_URL"),
    ("code: 401", "the credentials are not accepted", "correct the AWS_* variables"),
    (
        "code: 403",
        "the credentials are not accepted here",
        "correct the AWS_* variables, or request access from the bucket's owner",
    ),
    (
        "InvalidCertificate(",
        "its certificate is not trusted",
        "set SSL_CERT_FILE to the PEM file of its certificate authority",
    ),
    ("builder error", "its endpoint is not an https:// URL", "correct AWS_ENDPOINT_URL, or set AWS_ALLOW_HTTP=true"),
)
_SILENT = ("it does not answer", "check AWS_ENDPOINT_URL and the network, and run the same request again")


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """A prefix of a bucket; see `dpca.backends.base.Place`. Publishing is many puts, with the marker last.

    Parameters
    ----------
    address : str
        ``s3://bucket/prefix``. A pickle holds only the address.

    Raises
    ------
    Invalid
        If the address is no such URL, or the endpoint is no URL.
    """

    lists: ClassVar[bool] = True

    address: str
    _store: S3Store = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Parse the URL, without any request."""
        if not (found := _URL.fullmatch(self.address)):
            raise Invalid(
                "the URL of a store must be s3://bucket or s3://bucket/prefix, of letters, digits and . _ = -, without "
                "credentials, which come from the AWS_* variables; correct it"
            )
        _check_endpoint()
        bucket, prefix = found.groups()
        object.__setattr__(self, "address", self.address.removesuffix("/"))
        with self.reaching():
            store = S3Store(
                bucket,
                prefix=prefix.strip("/") or None,
                retry_config={"max_retries": _MAX_RETRIES, "retry_timeout": _RETRY_TIMEOUT},
            )
        object.__setattr__(self, "_store", store)

    def __reduce__(self) -> tuple[type["ObjectPlace"], tuple[str]]:
        """Pickle only the address."""
        return ObjectPlace, (self.address,)

    def at(self, path: str) -> str:
        """Return the address of a path."""
        return f"{self.address}/{path}"

    def read(self, path: str, *, most: int = MOST_BYTES) -> Stored:
        """Read a small object and its tag."""
        with self.reaching():
            found = obstore.get(self._store, path)
            if found.meta["size"] > most:
                raise Corrupt(
                    f"{self.at(path)} holds {found.meta['size']} bytes, more than {most}, the limit of a published "
                    "file; restore it from a copy"
                )
            return Stored(bytes(found.bytes()), found.meta["e_tag"])

    def write(self, path: str, payload: bytes, *, over: Stored | None) -> bool:
        """Put a small object, on condition that the present object is the one in `over`."""
        return self._put(path, payload, tag=None if over is None else over.tag)

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder."""
        with self.reaching():
            found = obstore.list_with_delimiter(self._store, folder)
        paths = [*found["common_prefixes"], *(entry["path"] for entry in found["objects"])]
        return sorted(PurePosixPath(path).name for path in paths)

    def paths(self, folder: str) -> list[str]:
        """Return the paths of the objects below a prefix."""
        found = (path.removeprefix(f"{folder}/") for path in self._paths(folder))
        return sorted(path for path in found if not is_hidden(path))

    def tags(self, folder: str) -> dict[str, str | None]:
        """Return the tags of the objects in a folder."""
        with self.reaching():
            found = obstore.list_with_delimiter(self._store, folder)
        return {PurePosixPath(entry["path"]).name: entry["e_tag"] for entry in found["objects"]}

    def holds(self, folder: str, *, marker: str) -> bool:
        """Return whether the marker exists."""
        try:
            with self.reaching():
                obstore.get(self._store, _join(folder, marker))  # a HEAD response has no reason for a failure
        except FileNotFoundError:
            return False
        return True

    def read_folder(self, folder: str, *, most: int = MOST_BYTES) -> dict[str, bytes]:
        """Read all objects below a prefix, several at a time."""
        sizes: dict[str, int] = {}
        with self.reaching():
            for entry in chain.from_iterable(obstore.list(self._store, folder)):
                sizes[entry["path"]] = entry["size"]
                if len(sizes) > MOST_FILES:
                    break
        if not sizes:
            raise FileNotFoundError(f"nothing exists at {self.at(folder)}")
        check_sizes(self.at(folder), sizes.values(), most=most)
        payloads = each(lambda path: self.read(path, most=sizes[path]).payload, sizes)
        return {path.removeprefix(f"{folder}/"): payload for path, payload in zip(sizes, payloads, strict=True)}

    def publish(self, staged: Path, folder: str, *, marker: str) -> bool:
        """Put all files, several at a time, and then the marker.

        Guarantees
        ----------
        Of several publishers, one puts the marker. The others have put equal files, or the caller gave each publisher a
        separate address. On return, the store was seen to hold the marker and every file at its size. If the store lost
        a file after an equal folder was published, the file is put again.
        """
        shown = [path for path in relative_paths(staged) if path != marker and not path.startswith(".")]
        sizes = {_join(folder, path): (staged / path).stat().st_size for path in shown}
        sources = {_join(folder, path): staged / path for path in shown}

        def put(path: str) -> None:
            with self.reaching():
                obstore.put(self._store, path, sources[path])

        payload, last = (staged / marker).read_bytes(), _join(folder, marker)
        standing = self._found(last)
        if standing not in (None, payload):
            return False
        missing = [*sizes] if standing is None else self._missing(folder, sizes)
        for _ in range(_ATTEMPTS):
            each(put, missing)
            missing = self._missing(folder, sizes) if missing else []
            if not missing:
                break
        else:
            raise self._untrue(folder, "acknowledged a write that it did not store")
        reached("folder.synced")
        is_ours = standing is None and self._put_marker(last, payload)
        reached("folder.renamed")
        return is_ours

    def remove(self, folder: str, *, marker: str) -> None:
        """Delete the marker, then all other objects, until none is left."""
        for _ in range(_ATTEMPTS):
            with self.reaching():
                obstore.delete(self._store, _join(folder, marker))
                if paths := self._paths(folder):
                    obstore.delete(self._store, paths)
            if not [path for path in (_join(folder, marker), *paths) if self._size(path) is not None]:
                return
        raise self._untrue(folder, "acknowledged a removal, but still has files")

    def zarr_store(self) -> "Store":
        """Return a store of the prefix."""
        from zarr.storage import ObjectStore

        return ObjectStore(self._store, read_only=True)

    @contextmanager
    def reaching(self) -> Iterator[None]:
        """Convert client errors into a one-line error; a missing object stays a ``FileNotFoundError``."""
        try:
            yield
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise self._unavailable(error) from None
            raise FileNotFoundError(f"no object of this name exists in {self.address}") from None
        except BaseError as error:
            raise self._unavailable(error) from None

    def _put(self, path: str, payload: bytes, *, tag: str | None) -> bool:
        with self.reaching():
            try:
                obstore.put(self._store, path, payload, mode={"e_tag": tag} if tag else "create", use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return False
        return True

    def _put_marker(self, path: str, payload: bytes) -> bool:
        """Put the marker of a folder and read it back; return whether this publisher put it."""
        is_ours = self._put(path, payload, tag=None)
        for _ in range(_ATTEMPTS):
            found = self._found(path)
            if found == payload:
                return is_ours
            if found is not None and not is_ours:
                return False
            with self.reaching():  # it was lost, or stored only in part
                obstore.put(self._store, path, payload, use_multipart=False)
        raise self._untrue(path, "acknowledged a write that it did not store")

    def _found(self, path: str) -> bytes | None:
        """Read a small object if it exists."""
        try:
            return self.read(path).payload
        except FileNotFoundError:
            return None

    def _missing(self, folder: str, sizes: Mapping[str, int]) -> list[str]:
        """Return the files that the store lacks at their size; those missing from a listing are requested directly."""
        with self.reaching():
            listed = {entry["path"]: entry["size"] for entry in chain.from_iterable(obstore.list(self._store, folder))}
        doubtful = [path for path, size in sizes.items() if listed.get(path) != size]
        found = zip(doubtful, each(self._size, doubtful), strict=True)
        return [path for path, size in found if size != sizes[path]]

    def _size(self, path: str) -> int | None:
        """Return the size of an object; None if it does not exist."""
        try:
            with self.reaching():
                return int(obstore.get(self._store, path).meta["size"])  # a HEAD response has no reason for a failure
        except FileNotFoundError:
            return None

    def _untrue(self, folder: str, what: str) -> Unavailable:
        return Unavailable(f"the store {what} at {self.at(folder)}; check the store, and run the same request again")

    def _paths(self, folder: str) -> list[str]:
        with self.reaching():
            return [entry["path"] for entry in obstore.list(self._store, folder).collect()]

    def _unavailable(self, error: Exception) -> Unavailable:
        text = str(error)
        found, move = next(((found, move) for sign, found, move in _REASONS if sign in text), _SILENT)
        return Unavailable(f"{self.address} cannot be used: {found}; {move}")


def _check_endpoint() -> None:
    # The client accepts any text as a URL, and fails at the first request.
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        if (url := os.environ.get(name)) and not re.fullmatch(r"https?://[A-Za-z0-9._:\[\]-]+(/[\w./-]*)?", url):
            raise Invalid(f"{name} must be the URL of an S3 service, such as https://s3.example.org:9000; correct it")


def _join(folder: str, name: str) -> str:
    return str(PurePosixPath(folder, name))
