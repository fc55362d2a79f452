"""Who is let in: on loopback whoever asks for loopback by name, elsewhere whoever has the token.

A page of another site can make a browser send requests to loopback under a name that it made resolve there. Such a
request carries that name as its host, and is refused. A token is shown as ``Authorization: Bearer``, or once in a form,
which gives a cookie that ends with this process.
"""

import asyncio
import hmac
import ipaddress
import os
import secrets
import stat
import time
from pathlib import Path
from urllib.parse import parse_qs

from starlette.requests import Request

from flows.parties.connections import HEAD
from storage.backends.atomic_files import read_with_status
from storage.errors import Corrupt, Invalid, Refused

VARIABLE = "DPCA_SERVE_TOKEN"
COOKIE = "dpca_session"
GUESSES, WINDOW = 10, 60.0
"""Wrong tokens of a client, and the seconds for which they count."""
_CLIENTS = 4096  # that are remembered
_SHORTEST = 16
_LONGEST = 4096


class Access:
    """Decides which requests are answered.

    Parameters
    ----------
    token : str, optional
        Without one everybody who reaches the port is let in.
    loopback : bool
        Whether it stands on loopback, where requests must name loopback as their host.
    """

    def __init__(self, *, token: str | None, loopback: bool) -> None:
        self._token, self._loopback = token, loopback
        self._session = secrets.token_urlsafe(32)
        self._wrong: dict[str, list[float]] = {}

    @property
    def asks(self) -> bool:
        """Whether there is a token to show."""
        return self._token is not None

    def knows_host(self, request: Request) -> bool:
        """Tell whether a request names a host that this process may be asked as."""
        host = request.headers.get("host", "")
        name = host.rpartition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
        return not self._loopback or is_loopback(name)

    def admits(self, request: Request) -> bool:
        """Tell whether a request shows the token, or the cookie that was given for it."""
        if self._token is None:
            return True
        if _same(request.cookies.get(COOKIE, ""), self._session):
            return True
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        return bool(scheme) and self._accepts(request, shown.strip() if scheme.lower() == "bearer" else "")

    async def session(self, request: Request) -> str | None:
        """Return the cookie for a form that holds the token; None for any other."""
        body = b""
        try:
            async with asyncio.timeout(HEAD):
                async for part in request.stream():
                    body += part
                    if len(body) > _LONGEST:
                        return None
        except TimeoutError:
            return None
        try:
            shown = parse_qs(body.decode("ascii"), max_num_fields=4).get("token", [""])[0]
        except ValueError:
            return None
        return self._session if self._accepts(request, shown.strip()) else None

    def is_throttled(self, request: Request) -> bool:
        """Return whether a client has shown so many wrong tokens that no other is compared for now."""
        return len(self._recent(_client(request))) >= GUESSES

    def _accepts(self, request: Request, shown: str) -> bool:
        if self._token is None or self.is_throttled(request):
            return False
        if _same(shown, self._token):
            return True
        client = _client(request)
        self._wrong[client] = [*self._recent(client), time.monotonic()]
        while len(self._wrong) > _CLIENTS:
            del self._wrong[next(iter(self._wrong))]
        return False

    def _recent(self, client: str) -> list[float]:
        return [at for at in self._wrong.get(client, ()) if time.monotonic() - at < WINDOW]


def _client(request: Request) -> str:
    """Return the address of a client; of IPv6 its network, all addresses of which one client can have."""
    host = request.client.host if request.client is not None else ""
    try:
        return str(ipaddress.ip_network((host, 64), strict=False)) if ":" in host else host
    except ValueError:
        return host


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine alone, by its name or number."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_token(path: Path | None) -> str | None:
    """Return the token of a file, or else of ``DPCA_SERVE_TOKEN``; None where there is neither.

    Raises
    ------
    Invalid
        When the file cannot be read, or the token is too short to be secret.
    Refused
        When other users can read or write the file.
    """
    if path is None:
        token = os.environ.get(VARIABLE) or None
    else:
        try:
            content, status = read_with_status(path, most=_LONGEST)  # what has the mode is what is read
            if status.st_mode & 0o077:
                raise Refused(
                    f"token file {path} has mode {stat.S_IMODE(status.st_mode):04o}, and must be a file that no other "
                    f"user can read; run `chmod 600 {path}`."
                )
            token = content.decode()
        except (Corrupt, IsADirectoryError):
            raise Refused(f"token file {path} must be a file of one line; write random characters into one.") from None
        except OSError as error:
            raise Invalid(f"token file {path} cannot be read ({error.strerror}); name one with --token-file.") from None
        except ValueError:
            raise Invalid(f"token file {path} is no text; write one line of random characters into it.") from None
    if token is not None and (len(token.strip()) < _SHORTEST or not token.strip().isprintable()):
        raise Invalid(
            f"the token has fewer than {_SHORTEST} characters, or some that are not printable; take a random one, such "
            "as `openssl rand -hex 24` prints."
        )
    return None if token is None else token.strip()


def _same(shown: str, expected: str) -> bool:
    return hmac.compare_digest(shown.encode("utf-8", "replace"), expected.encode())
