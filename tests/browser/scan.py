"""Search of every web response for secrets of the home: rows, exact sums, ids, keys and paths."""

import re
from collections.abc import Iterator
from posixpath import dirname, join, normpath
from urllib.parse import unquote

import httpx

from flows.web.pages import number
from tests.browser.home import Secrets
from tests.leaks.decoding import pieces

_LINK = re.compile(r'(?:href|src|srcset|action)="([^"#][^"]*)"')
BEYOND = ("none.html", "names/none.json", "versions/visits-map@99.html", "../../etc/passwd", "budgets/none.json")


def responses(address: str, token: str) -> Iterator[tuple[str, bytes]]:
    """Yield path and bytes of every response: all pages linked from the index, and some addresses that do not exist."""
    seen: set[str] = set()
    left = [*BEYOND, "index.html"]
    with httpx.Client(
        base_url=address, trust_env=False, timeout=60, headers={"authorization": f"Bearer {token}"}
    ) as requested:
        while left:
            path = left.pop()
            if path in seen:
                continue
            seen.add(path)
            answer = requested.get(path)
            heads = "".join(f"{name}: {value}\n" for name, value in answer.headers.items())
            yield path, heads.encode() + answer.content
            if path.endswith(".html"):
                links = (unquote(href.partition("#")[0]) for href in _LINK.findall(answer.text))
                left += [normpath(join(dirname(path), href)) for href in links if href and not href.startswith("data:")]


def found_in(content: bytes, secrets: Secrets, shown: frozenset[bytes]) -> list[str]:
    """Return the secrets that a response contains; ``shown`` are secret numbers in the format of the pages."""
    hits = [hit for piece in pieces(content) for hit in secrets.canaries.found_in(piece)]
    hits += [repr(text) for text in secrets.texts if text in content]
    return hits + [repr(word) for word in set(re.findall(rb"[0-9][0-9,]*\.[0-9]+", content)) & shown]


def as_shown(secrets: Secrets) -> frozenset[bytes]:
    """Return the secret numbers in the six-digit format of the pages, where six digits are enough to identify them."""
    words = {number(abs(float(value))).encode() for value in secrets.canaries.numbers}
    return frozenset(word for word in words if sum(map(str(word).count, "0123456789")) >= 6 and b"." in word)
