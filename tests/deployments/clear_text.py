"""Check of the shipped manifests for clear-text traffic, unrestricted egress, and image tags outside of their file.

Also a program: ``python -m tests.deployments.clear_text FOLDER`` prints the findings and their number.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from tests.deployments.manifests import FOLDER

TAGS = "images.env"
"""The only file that may contain image tags."""

_LOOPBACK = r"(?:127\.0\.0\.1|localhost|\[::1\])(?![\w.-])"
_LINES = {
    "an endpoint in clear text beyond loopback": re.compile(rf"\b(?:http|ws|tcp|redis|amqp)://(?!{_LOOPBACK})"),
    "a setting that admits clear text": re.compile(
        r"AWS_ALLOW_HTTP|AWS_ALLOW_INVALID_CERT|DPCA_ALLOW_PLAINTEXT|INSECURE|SSL_VERIFY|--insecure|--no-verify"
    ),
    "a PostgreSQL address without sslmode=verify-full and sslrootcert": re.compile(
        r"\bpostgres(?:ql)?(?:\+\w+)?://(?!(?=[^\"']*\bsslmode=verify-full\b)[^\"']*\bsslrootcert=)"
    ),
    "access to PostgreSQL in clear text": re.compile(r"^\s*host(?:nossl|nogssenc|gssenc)?\s"),
}
_TAGGED = re.compile(r"""(?:\bimage["']?:\s*|^\s*FROM\s+)["']?(?P<image>[^\s"',}]+)""", re.IGNORECASE)
_ASYNCPG = "PREFECT_SERVER_DATABASE_SQLALCHEMY_CONNECT_ARGS_TLS_"


def findings(folder: Path) -> list[str]:
    """Return one line for each fault in the manifests of a folder: file and line, and the violated rule."""
    found = []
    tagged = [re.compile(rf"\b{name}:[\w.]*\d") for name in _names(folder)]
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        if name == TAGS or path.suffix in {".pem", ".key", ".lock"}:
            continue
        text = path.read_text(encoding="utf-8")
        for number, line in enumerate(text.splitlines(), start=1):
            place = f"{name}:{number}"
            found += [f"{place}: {rule}" for rule, pattern in _LINES.items() if pattern.search(line)]
            if _has_tag(line) or any(pattern.search(line) for pattern in tagged):
                found.append(f"{place}: the tag of an image outside of {TAGS}")
        if path.suffix in {".yaml", ".yml", ".json"}:
            for document in yaml.load_all(text, Loader=yaml.CSafeLoader):
                found += [f"{name}: {fault}" for fault in _faults(document)]
    return found


def _names(folder: Path) -> set[str]:
    tags = folder / TAGS
    lines = tags.read_text(encoding="utf-8").splitlines() if tags.is_file() else []
    images = (line.partition("=")[2] for line in lines if "=" in line and not line.startswith("#"))
    return {re.escape(image.partition("@")[0].rpartition(":")[0]) for image in images}


def _has_tag(line: str) -> bool:
    """Return whether a line has an image with a fixed tag or digest, instead of a variable."""
    if re.search(r"\bnewTag\b|\bdigest:", line):
        return True
    image = matched["image"] if (matched := _TAGGED.search(line)) else ""
    return not image.startswith(("$", "{")) and bool(re.search("[:@]", image))


def _faults(part: Any, name: str = "") -> Iterator[str]:
    """Yield the faults of a part of a manifest, and of everything nested in it."""
    if isinstance(part, list):
        for item in part:
            yield from _faults(item, name)
    if not isinstance(part, dict):
        return
    label = part.get("metadata", {}).get("name", name) if isinstance(part.get("metadata"), dict) else name
    if part.get("kind") == "NetworkPolicy":
        if "Egress" not in part["spec"].get("policyTypes", []):
            yield f"NetworkPolicy {label} has no egress"
        if any(not rule.get("to") or not rule.get("ports") for rule in part["spec"].get("egress") or []):
            yield f"NetworkPolicy {label} lets out to anywhere"
    if isinstance(probe := part.get("httpGet"), dict) and probe.get("scheme") != "HTTPS":
        yield f"{label} answers a probe in clear text"
    if "image" in part:
        yield from (f"{label}: {fault}" for fault in _container(part))
    for key, item in part.items():
        yield from _faults(item, key if "services" in (label, key) else label)


def _container(container: Mapping[str, Any]) -> Iterator[str]:
    given = _variables(container)
    words = " ".join(str(word) for key in ("entrypoint", "command", "args") for word in _words(container.get(key)))
    if "PREFECT_SERVER_DATABASE_HOST" in given and (
        given.get(f"{_ASYNCPG}ENABLED") != "true"
        or given.get(f"{_ASYNCPG}CHECK_HOSTNAME", "true") != "true"
        or f"{_ASYNCPG}CA_FILE" not in given
    ):
        yield "Prefect's database is reached without TLS"
    if "POSTGRES_PASSWORD" in given and not re.search(r"ssl=on\b.*\bhba_file=", words):
        yield "PostgreSQL accepts clear text"
    if "MINIO_ROOT_USER" in given and "server" in words.split() and "--certs-dir" not in words:
        yield "the object store accepts clear text"
    if re.search(r"prefect server start|create_app", words) and "--ssl-certfile" not in words:
        yield "Prefect's server accepts clear text"
    if re.search(r"\bdask (?:scheduler|worker)\b", words) and "--protocol tls" not in words:
        yield "Dask accepts clear text"


def _variables(container: Mapping[str, Any]) -> dict[str, str]:
    if isinstance(given := container.get("environment"), dict):
        return {name: str(value) for name, value in given.items()}
    return {item["name"]: item.get("value", "") for item in container.get("env", []) if isinstance(item, dict)}


def _words(given: Any) -> list[str]:
    return given if isinstance(given, list) else [] if given is None else [str(given)]


if __name__ == "__main__":
    listed = findings(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
    print(*listed, f"{len(listed)} findings", sep="\n")
