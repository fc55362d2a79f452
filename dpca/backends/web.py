"""A storage place on a web server that serves a registry, read by one GET request per file.

A web server cannot list a folder, so `dpca.artifacts.files` requests each file by its name. The server is not trusted:
the size of a response is limited, compressed responses are refused, and the caller checks the digests of the files.
Proxies and certificate authorities are taken from the environment: ``HTTPS_PROXY``, ``NO_PROXY``, ``SSL_CERT_FILE``.
"""

import re
import ssl
import time
import weakref
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NoReturn

import httpx

from dpca.backends.atomic_files import MOST_BYTES
from dpca.backends.base import Stored
from dpca.errors import Corrupt, Invalid, Refused, Unavailable

if TYPE_CHECKING:
    from zarr.abc.store import Store

_URL = re.compile(
    r"(https?)://([A-Za-z0-9](?:[A-Za-z0-9.-]*)|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"
    r"((?:/[A-Za-z0-9_~%+=@-][A-Za-z0-9._~%+=@-]*)*)/*"
)
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_REGISTRY = "/registry"
_TIMEOUT = httpx.Timeout(30.0, connect=10.0)  # at most 30 seconds between two chunks of a response, 10 to connect
_PAUSES = (0.25, 1.0)  # seconds to wait before the second and the third attempt of a request
_PASSING = (408, 429, 500, 502, 503, 504)
_ABSENT = (403, 404, 410)  # includes 403, with which an object store that denies listing reports a missing object
_NOT_LET_IN = (401, 407)
_SHOWN = 100


@dataclass(frozen=True, slots=True, weakref_slot=True)
class WebPlace:
    """A read-only `Place` on a web server: the folder above a served registry.

    Parameters
    ----------
    address : str
        ``https://host/path/registry``, or the URL of the folder above. ``http://`` is accepted only for this machine,
        because files sent without encryption could be replaced in transit. A pickled `WebPlace` contains only the
        address.

    Raises
    ------
    Invalid
        If `address` does not have this form.
    Unavailable
        If no HTTP client can be created with the proxies and certificates that the environment names.
    """

    lists: ClassVar[bool] = False

    address: str
    _client: httpx.Client = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Parse the address and create the HTTP client, without sending a request."""
        found = _URL.fullmatch(self.address)
        if not found or (found[1] == "http" and found[2] not in _LOOPBACK):
            raise Invalid(
                "the URL of a registry must be https://host/path/registry, without credentials, query and fragment; "
                "http:// is only for servers on this machine; correct the URL"
            )
        object.__setattr__(self, "address", self.address.rstrip("/").removesuffix(_REGISTRY))
        try:
            client = httpx.Client(timeout=_TIMEOUT, follow_redirects=False, headers={"Accept-Encoding": "identity"})
        except ImportError as error:
            wanted = " ".join(str(error).split())
            raise Unavailable(
                f"no HTTP client can be created ({wanted}); install the missing package, or use another proxy"
            ) from None
        except (OSError, ValueError, httpx.InvalidURL) as error:
            raise Unavailable(
                f"no HTTP client can be created ({type(error).__name__}); the environment variables SSL_CERT_FILE, "
                "SSL_CERT_DIR and those of proxies must be valid; correct these variables"
            ) from None
        object.__setattr__(self, "_client", client)
        weakref.finalize(self, client.close)  # keep connections open until this object is garbage collected

    def __reduce__(self) -> tuple[type["WebPlace"], tuple[str]]:
        """Pickle only the address, without the HTTP client."""
        return WebPlace, (f"{self.address}{_REGISTRY}",)

    def at(self, path: str) -> str:
        """Return the URL of a path within this place."""
        return f"{self.address}/{path}"

    def read(self, path: str, *, most: int = MOST_BYTES) -> Stored:
        """Read a file by a GET request; repeat the request twice after transient failures."""
        for pause in _PAUSES:
            try:
                return self._get(path, most=most)
            except _Passing:
                time.sleep(pause)
        try:
            return self._get(path, most=most)
        except _Passing as failure:
            raise Unavailable(str(failure)) from None

    def names(self, folder: str) -> list[str]:
        """Raise `Invalid`, because a web server cannot list a folder."""
        raise Invalid(
            f"{self.at(folder)} cannot be listed, because a web server returns files only by name; give the name of an "
            "artifact"
        )

    def paths(self, folder: str) -> list[str]:
        """Raise `Invalid`, because a web server cannot list a folder."""
        return self.names(folder)

    def tags(self, folder: str) -> dict[str, str | None]:
        """Raise `Invalid`, because a web server cannot list a folder."""
        return dict.fromkeys(self.names(folder))

    def read_folder(self, folder: str, *, most: int = MOST_BYTES) -> dict[str, bytes]:
        """Raise `Invalid`, because a web server cannot list a folder."""
        return dict.fromkeys(self.names(folder), b"")

    def holds(self, folder: str, *, marker: str) -> bool:
        """Return whether a published folder exists, that is, whether its marker can be read."""
        try:
            self.read(f"{folder}/{marker}")
        except FileNotFoundError:
            return False
        return True

    def write(self, path: str, payload: bytes, *, over: Stored | None) -> bool:
        """Raise `Refused`, because a web server accepts no writes."""
        self._refuse()

    def publish(self, staged: Path, folder: str, *, marker: str) -> bool:
        """Raise `Refused`, because a web server accepts no writes."""
        self._refuse()

    def remove(self, folder: str, *, marker: str) -> None:
        """Raise `Refused`, because a web server accepts no writes."""
        self._refuse()

    def zarr_store(self) -> "Store":
        """Raise `Refused`, because a Zarr store is only needed for datasets, which are never served."""
        self._refuse()

    def reaching(self) -> AbstractContextManager[None]:
        """Return a context that does nothing, because `read` already reports failures as `Unavailable`."""
        return nullcontext()

    def _refuse(self) -> NoReturn:
        raise Refused(
            f"{self.address} is read-only, because a web server accepts no writes; write to the home folder or store "
            "from which it is served"
        )

    def _get(self, path: str, *, most: int) -> Stored:
        """Send one GET request for a file, and refuse a response of more than `most` bytes."""
        url = self.at(path)
        try:
            with self._client.stream("GET", url) as answer:
                self._check(answer, url)
                declared = answer.headers.get("Content-Length", "")
                if declared.isdecimal() and int(declared) > most:
                    raise _too_long(url, most)
                payload = bytearray()
                for piece in answer.iter_raw():
                    payload += piece
                    if len(payload) > most:
                        raise _too_long(url, most)
                return Stored(bytes(payload), answer.headers.get("ETag"))
        except httpx.TimeoutException:
            raise _Passing(
                f"{url} does not answer in time; check the network, and run the same request again"
            ) from None
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise self._failed(url, error) from None

    def _check(self, answer: httpx.Response, url: str) -> None:
        """Raise an error unless a response has status 200 and contains the uncompressed file."""
        status = answer.status_code
        if status in _ABSENT:
            raise FileNotFoundError(f"{url} does not exist or is not public (the server answers {status})")
        if status in _NOT_LET_IN:
            raise Unavailable(
                f"{url} requires credentials, which are never sent to a web server; read the registry from s3:// or a "
                "folder"
            )
        if answer.has_redirect_location:
            target = "".join(answer.headers["Location"].split())[:_SHOWN]
            raise Unavailable(
                f"{url} redirects to {target!r}; redirects are not followed; open the registry at that URL"
            )
        if status in _PASSING:
            raise _Passing(
                f"{url} answers {status}, which is usually temporary, instead of 200; run the same request again later"
            )
        if status != httpx.codes.OK:
            raise Unavailable(f"{url} answers {status}; it must answer 200; contact the operator of that server")
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            raise Unavailable(
                f"{url} is sent compressed; files must be sent as they are stored; turn compression off on the server"
            )

    def _failed(self, url: str, error: Exception) -> Exception:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLError):
                return Unavailable(
                    f"{url} has no trusted certificate; a known authority must have signed it for that host; set "
                    "SSL_CERT_FILE to the certificates of your authority, or correct the URL"
                )
            cause = cause.__cause__ or cause.__context__
        if isinstance(error, httpx.ConnectError):
            return _Passing(f"{url} cannot be reached; check the host's name and the network, and try again")
        return _Passing(f"{url} sent an incomplete answer; a file must arrive whole; run the same request again")


class _Passing(Exception):
    """A transient failure of a request. Its message is shown to the user if repeated requests fail too."""


def _too_long(url: str, most: int) -> Corrupt:
    return Corrupt(
        f"{url} holds more than {most} bytes, the limit of a published file; request a copy from its publisher"
    )
