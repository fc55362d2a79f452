"""Program for `.venv-tools`: an S3 server that keeps its objects when killed, and enforces each account's policy.

The library moto keeps objects in memory. Here each modifying request is written to a journal before it is answered, and
the server replays the journal when it starts. Accounts and keys come from the environment, policies from
``deployments/s3``; signatures are verified.
"""

import base64
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

from moto import settings
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.iam.models import iam_backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
from werkzeug.test import run_wsgi_app

from tests.integration import BUCKET, S3_ACCOUNTS

POLICIES = Path(__file__).parents[2] / "deployments" / "s3"
_CHANGES = ("PUT", "POST", "DELETE")
_AUTHORIZATION = "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"

Environ = dict[str, Any]


class Journalled:
    """The server's WSGI application, with a journal of the requests that it answered."""

    def __init__(self, application: Any, journal: BinaryIO) -> None:
        self._application, self._journal = application, journal
        self._one_at_a_time = Lock()

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer one request; a modifying request is on disk before its answer is sent."""
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        request = {name: value for name, value in environ.items() if isinstance(value, str)}
        with self._one_at_a_time:
            inner = environ | {"wsgi.input": BytesIO(body)}
            answer: Iterable[bytes]
            answer, status, headers = run_wsgi_app(self._application, inner, buffered=True)
            if environ["REQUEST_METHOD"] in _CHANGES and status.startswith("2"):
                line = json.dumps({"environ": request, "body": base64.b64encode(body).decode()})
                self._journal.write(line.encode() + b"\n")
                self._journal.flush()
                os.fsync(self._journal.fileno())
        start_response(status, list(headers))
        return answer

    def replay(self) -> None:
        """Replay the journal; a half-written last entry was never answered."""
        whole, _, _ = self._journal.read().rpartition(b"\n")
        for line in whole.splitlines():
            request = json.loads(line)
            self._call(request["environ"], base64.b64decode(request["body"]))
        self._journal.truncate(len(whole) + 1 if whole else 0)
        self._journal.seek(0, os.SEEK_END)

    def create_bucket(self) -> None:
        """Create the bucket as the operator, unless it exists."""
        self._call(
            {
                "REQUEST_METHOD": "PUT",
                "PATH_INFO": f"/{BUCKET}",
                "HTTP_HOST": "127.0.0.1",
                "HTTP_AUTHORIZATION": _AUTHORIZATION,
            },
            b"",
        )

    def _call(self, environ: Environ, body: bytes) -> None:
        plain = {"wsgi.url_scheme": "http", "SERVER_NAME": "127.0.0.1", "SERVER_PORT": "80", "QUERY_STRING": ""}
        stream = {"wsgi.input": BytesIO(body), "wsgi.errors": sys.stderr, "CONTENT_LENGTH": str(len(body))}
        run_wsgi_app(self._application, {**plain, **environ, **stream}, buffered=True)


def add_account(name: str, key_id: str, secret: str) -> None:
    """Create an account with a key, and the policy of the same name."""
    accounts = iam_backends[DEFAULT_ACCOUNT_ID]["aws"]
    accounts.create_user(region_name="us-east-1", user_name=name)
    policy = json.loads((POLICIES / f"{name}.json").read_text())
    for statement in policy["Statement"]:
        # moto supports conditions only in trust policies, and would deny these statements
        statement.pop("Condition", None)
    accounts.put_user_policy(name, "all", json.dumps(policy))
    key = accounts.create_access_key(name)
    key.access_key_id, key.secret_access_key = key_id, secret


def main(port: int, journal: Path) -> None:
    """Serve until the process ends."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    journal.touch()
    with journal.open("r+b") as file:
        application = Journalled(DomainDispatcherApplication(create_backend_app), file)
        application.create_bucket()
        application.replay()
        for name, key in json.loads(os.environ[S3_ACCOUNTS]).items():
            add_account(name, *key)
        settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
        make_server("127.0.0.1", port, application, threaded=True).serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
