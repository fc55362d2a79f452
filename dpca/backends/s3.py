"""A storage place in an S3-compatible object store, accessed through the library obstore.

Each process that reads or writes takes the endpoint and the credentials from its environment: ``AWS_ACCESS_KEY_ID``,
``AWS_SECRET_ACCESS_KEY``, ``AWS_SESSION_TOKEN``, ``AWS_REGION``, ``AWS_ENDPOINT_URL``, ``AWS_ALLOW_HTTP``,
``AWS_TIMEOUT`` and others. Credentials are never pickled and never appear in a message. The folder ``datasets/`` below
the prefix holds private rows. A consumer needs permission to list and read only the folder ``registry/``.

The store must make an object visible whole or not at all, and every later read must return it. Conditional puts
(``If-None-Match: *``, ``If-Match``) prevent concurrent writers from overwriting each other. If a store ignores these
conditions, only one guarantee is lost: a publisher that has lost its database connection may replace a newer pointer
file by an older one. The next publishing command corrects this.

An acknowledgement of the store is not trusted. A publication is complete only when the published files were found
again, and a removal only when the removed files were not. A listing may be out of date, so each object that is missing
from a listing is also requested directly.
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
_ATTEMPTS = 3  # number of attempts at a write or removal that the store acknowledges but does not perform
_RETRY_TIMEOUT = timedelta(minutes=1)

_NO_CREDENTIALS = ("there are no credentials", "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
#: Rows of: a text in an error of the client, its meaning, and the next action.
_REASONS = (
    ("169.254.", *_NO_CREDENTIALS),  # the cloud metadata address, which a client without credentials tries
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
    """A prefix in a bucket as a `Place`. A folder is published by one put per file, with the marker file last.

    Parameters
    ----------
    address : str
        ``s3://bucket/prefix``. A pickled `ObjectPlace` contains only this address, no credentials.

    Raises
    ------
    Invalid
        If `address` does not have this form, or ``AWS_ENDPOINT_URL`` is not a URL.
    """

    lists: ClassVar[bool] = True

    address: str
    _store: S3Store = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Parse the address and create the client, without sending a request."""
        if not (found := _URL.fullmatch(self.address)):
            raise Invalid(
                "the URL of a store must be s3://bucket or s3://bucket/prefix, with only letters, digits and . _ = - "
                "in its names; correct it, and set credentials by the AWS_* variables instead of in the URL"
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
        """Pickle only the address, without the client and its credentials."""
        return ObjectPlace, (self.address,)

    def at(self, path: str) -> str:
        """Return the ``s3://`` URL of a path within this place."""
        return f"{self.address}/{path}"

    def read(self, path: str, *, most: int = MOST_BYTES) -> Stored:
        """Read a small object and its ETag."""
        with self.reaching():
            found = obstore.get(self._store, path)
            if found.meta["size"] > most:
                raise Corrupt(
                    f"{self.at(path)} has {found.meta['size']} bytes, but at most {most} are allowed; restore it from "
                    "a copy"
                )
            return Stored(bytes(found.bytes()), found.meta["e_tag"])

    def write(self, path: str, payload: bytes, *, over: Stored | None) -> bool:
        """Put a small object if the present object is still the one in `over`; otherwise write nothing, return False.

        If `over` is None, the object is put only if no object exists.
        """
        return self._put(path, payload, tag=None if over is None else over.tag)

    def names(self, folder: str) -> list[str]:
        """Return the sorted names of the objects and prefixes directly below a prefix."""
        with self.reaching():
            found = obstore.list_with_delimiter(self._store, folder)
        paths = [*found["common_prefixes"], *(entry["path"] for entry in found["objects"])]
        return sorted(PurePosixPath(path).name for path in paths)

    def paths(self, folder: str) -> list[str]:
        """Return the relative paths of all objects below a prefix, without hidden ones."""
        found = (path.removeprefix(f"{folder}/") for path in self._paths(folder))
        return sorted(path for path in found if not is_hidden(path))

    def tags(self, folder: str) -> dict[str, str | None]:
        """Return the ETag of each object directly below a prefix, by name."""
        with self.reaching():
            found = obstore.list_with_delimiter(self._store, folder)
        return {PurePosixPath(entry["path"]).name: entry["e_tag"] for entry in found["objects"]}

    def holds(self, folder: str, *, marker: str) -> bool:
        """Return whether a published folder exists, that is, whether its marker exists."""
        try:
            with self.reaching():
                obstore.get(self._store, _join(folder, marker))  # use GET, as a failed HEAD states no reason
        except FileNotFoundError:
            return False
        return True

    def read_folder(self, folder: str, *, most: int = MOST_BYTES) -> dict[str, bytes]:
        """Read all objects below a prefix into memory, several at a time; return the contents by relative path."""
        sizes: dict[str, int] = {}
        with self.reaching():
            for entry in chain.from_iterable(obstore.list(self._store, folder)):
                sizes[entry["path"]] = entry["size"]
                if len(sizes) > MOST_FILES:
                    break
        if not sizes:
            raise FileNotFoundError(f"no object exists below {self.at(folder)}")
        check_sizes(self.at(folder), sizes.values(), most=most)
        payloads = each(lambda path: self.read(path, most=sizes[path]).payload, sizes)
        return {path.removeprefix(f"{folder}/"): payload for path, payload in zip(sizes, payloads, strict=True)}

    def publish(self, staged: Path, folder: str, *, marker: str) -> bool:
        """Put all files of a staged folder, several at a time, and then its marker.

        Guarantees
        ----------
        If several processes publish the same folder, exactly one of them puts the marker. Their files must be equal.
        When this method returns, the store was found to hold the marker and every file with its full size. If the
        folder was published before and the store has lost a file since, the file is put again.
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
        """Delete the marker of a folder, then all of its other objects, and repeat this until no object is left."""
        for _ in range(_ATTEMPTS):
            with self.reaching():
                obstore.delete(self._store, _join(folder, marker))
                if paths := self._paths(folder):
                    obstore.delete(self._store, paths)
            if not [path for path in (_join(folder, marker), *paths) if self._size(path) is not None]:
                return
        raise self._untrue(folder, "acknowledged a removal, but still has files")

    def zarr_store(self) -> "Store":
        """Return a read-only Zarr store with the objects below the prefix."""
        from zarr.storage import ObjectStore

        return ObjectStore(self._store, read_only=True)

    @contextmanager
    def reaching(self) -> Iterator[None]:
        """Within this context, raise client errors as `Unavailable`, or ``FileNotFoundError`` for a missing object."""
        try:
            yield
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise self._unavailable(error) from None
            raise FileNotFoundError(f"the requested object does not exist in {self.address}") from None
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
        """Put the marker of a folder and read it back; return True if this process, and no other, put the marker."""
        is_ours = self._put(path, payload, tag=None)
        for _ in range(_ATTEMPTS):
            found = self._found(path)
            if found == payload:
                return is_ours
            if found is not None and not is_ours:
                return False
            with self.reaching():  # put the marker again, because the store lost it or stored only a part
                obstore.put(self._store, path, payload, use_multipart=False)
        raise self._untrue(path, "acknowledged a write that it did not store")

    def _found(self, path: str) -> bytes | None:
        """Return the content of a small object, or None if the object does not exist."""
        try:
            return self.read(path).payload
        except FileNotFoundError:
            return None

    def _missing(self, folder: str, sizes: Mapping[str, int]) -> list[str]:
        """Return the paths that the store does not hold with the expected size.

        An object that a listing shows with another size, or not at all, is also requested directly.
        """
        with self.reaching():
            listed = {entry["path"]: entry["size"] for entry in chain.from_iterable(obstore.list(self._store, folder))}
        doubtful = [path for path, size in sizes.items() if listed.get(path) != size]
        found = zip(doubtful, each(self._size, doubtful), strict=True)
        return [path for path, size in found if size != sizes[path]]

    def _size(self, path: str) -> int | None:
        """Return the size of an object in bytes; None if the object does not exist."""
        try:
            with self.reaching():
                return int(obstore.get(self._store, path).meta["size"])  # use GET, as a failed HEAD states no reason
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
    # Check the URL of the endpoint here, because the client accepts any text and fails only at the first request.
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        if (url := os.environ.get(name)) and not re.fullmatch(r"https?://[A-Za-z0-9._:\[\]-]+(/[\w./-]*)?", url):
            raise Invalid(f"{name} must be the URL of an S3 service, such as https://s3.example.org:9000; correct it")


def _join(folder: str, name: str) -> str:
    return str(PurePosixPath(folder, name))
