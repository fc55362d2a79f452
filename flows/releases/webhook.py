"""Calls of the webhook, each with one signed notice.

The libraries of HTTP take long to load, so `deliver_notices` imports this module only if a webhook is set.
"""

import hashlib
import hmac
import http.client
import time
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

PATIENCE = 5.0
"""Timeout of each webhook call in seconds."""


def posted(url: str, payload: bytes, *, key: str, secret: str | None, pauses: Sequence[float]) -> bool:
    """Post a notice until a call is accepted, with a pause before each repeated call; return whether one was."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": key, "User-Agent": "dpca"}
    if secret is not None:
        headers["X-Dpca-Signature"] = "sha256=" + hmac.new(secret.encode(), payload, hashlib.sha256).hexdigest()
    for pause in (*pauses, None):
        requested = urllib.request.Request(url, data=payload, headers=headers, method="POST")
        with suppress(OSError, http.client.HTTPException), _OPENER.open(requested, timeout=PATIENCE) as answer:
            if 200 <= answer.status < 300:
                return True
        if pause is not None:
            time.sleep(pause)
    return False


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Handler that follows no redirect, because a redirect would send the notice elsewhere."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)
