"""``dpca serve`` as a separate process, with a token, for the duration of a check."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TOKEN = "browser-0123456789abcdef"


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve the current home; yield the server's address. Any other output of the server is an error."""
    token = folder / "token"
    token.write_text(f"{TOKEN}\n")
    token.chmod(0o600)
    command = [sys.executable, "-c", "import sys; from flows.cli import main; sys.exit(main(sys.argv[1:]))"]
    words = [*command, "serve", "--port", "0", "--curator", "--token-file", str(token)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        assert process.stdout is not None
        yield process.stdout.readline().removeprefix("listening at ").strip()
    finally:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert (out, err) == ("", ""), err
