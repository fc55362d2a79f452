"""Child process that runs a temporary Prefect server for its parent.

``python -m flows.orchestration.server_process SOCKET PARENT`` serves a socket that its parent bound. The first line of
its standard input is the password of the server. The process ends together with its parent, when its standard input
ends. On Linux, a signal also ends it, whatever it is doing.
"""

import ctypes
import os
import signal
import socket
import sys
from threading import Thread

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def serve(descriptor: int, parent: int) -> None:
    """Serve until the parent ends or closes the standard input of this process."""
    password = sys.stdin.readline().strip()
    Thread(target=_end_with_input, daemon=True).start()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if not password or os.getppid() != parent:
        return
    os.environ["PREFECT_SERVER_API_AUTH_STRING"] = password  # set before Prefect is imported and reads its settings
    import uvicorn

    application = "prefect.server.api.server:create_app"
    config = uvicorn.Config(application, factory=True, log_level="error", lifespan="on")
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=descriptor)])


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:]))
