"""S3 server on loopback: a child process of `.venv-tools` that ends with its test."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.request import Request, urlopen

import pytest

from tests.tools import python

ACCESS_KEY, SECRET_KEY = "an-access-key", "a-secret-key"

_PROGRAM = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(*server.get_host_and_port(), sep=":", flush=True)
sys.stdin.read()
server.stop()
"""

# Before `check_credentials` is called, signatures are not verified, but unsigned requests may read nothing.
_AUTHORIZATION = (
    f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server with one bucket."""

    host: str
    bucket: str

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables that point a client to the server."""
        return {
            "AWS_ENDPOINT_URL": f"http://{self.host}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        }

    def url(self, prefix: str) -> str:
        """Return the URL of a prefix of the bucket."""
        return f"s3://{self.bucket}/{prefix}"

    def call(self, method: str, path: str, payload: bytes = b"") -> bytes:
        """Send a plain HTTP request as the operator of the server."""
        headers = {"Content-Type": "application/octet-stream", "Authorization": _AUTHORIZATION}
        with urlopen(Request(f"http://{self.host}/{path}", data=payload, method=method, headers=headers)) as answer:
            return bytes(answer.read())

    def flip_a_byte(self, address: str) -> None:
        """Flip one byte in the middle of an object; a second call restores it."""
        path = address.removeprefix("s3://")
        sound = self.call("GET", path)
        middle = len(sound) // 2
        self.call("PUT", path, sound[:middle] + bytes([sound[middle] ^ 1]) + sound[middle + 1 :])

    def check_credentials(self) -> None:
        """Refuse every key from now on, because no key is registered."""
        self.call("POST", "moto-api/reset-auth", b"0")

    def enter(self, patch: pytest.MonkeyPatch) -> None:
        """Set the environment of this process, and so of its children, to this server."""
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in self.environment.items():
            patch.setenv(name, value)


@contextmanager
def serve(bucket: str = "a-bucket") -> Iterator[Server]:
    """Run a server with one empty bucket."""
    with subprocess.Popen(
        [python(), "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        server = Server(host=process.stdout.readline().strip(), bucket=bucket)
        server.call("PUT", bucket)
        yield server
