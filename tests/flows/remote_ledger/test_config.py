"""A configuration says who may ask what, and one that does not is refused in one line."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from dpca_tasks.errors import InvalidInput
from flows.parties.certificates import fingerprint_of, make_identity
from flows.remote_ledger.config import read_config

RUNNER = {"name": "runner", "certificate": "runner.pem", "role": "runner", "populations": ["people"]}


def written(folder: Path, **others: Any) -> Path:
    for name in ("ledger", "runner", "reader"):
        if not (folder / f"{name}.pem").exists():
            make_identity(name, folder)
    content = {"listen": "127.0.0.1:0", "key": "ledger.key", "clients": [RUNNER], **others}
    (folder / "ledger.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(content))))  # no aliases
    return folder / "ledger.yaml"


def test_a_configuration_names_its_clients(tmp_path: Path) -> None:
    found = read_config(written(tmp_path))
    (client,) = found.clients
    assert (client.role, client.populations) == ("runner", frozenset({"people"}))
    assert client.fingerprint == fingerprint_of((tmp_path / "runner.pem").read_text())
    assert (found.key, found.certificate) == (tmp_path / "ledger.key", tmp_path / "ledger.pem")


@pytest.mark.parametrize(
    ("others", "line"),
    [
        ({"clients": []}, "is no list"),
        ({"clients": ["runner"]}, "no mapping with name"),
        ({"clients": [RUNNER | {"role": "owner"}]}, "must be runner or reader"),
        ({"clients": [RUNNER | {"populations": "people"}]}, "is no list of names"),
        ({"clients": [RUNNER | {"name": ""}]}, "has no name"),
        ({"clients": [RUNNER | {"spends": True}]}, "has spends"),
        ({"clients": [RUNNER, RUNNER | {"certificate": "reader.pem"}]}, "have one name"),
        ({"clients": [RUNNER, RUNNER | {"name": "another"}]}, "have one key"),
        ({"clients": [RUNNER | {"certificate": "none.pem"}]}, "one certificate in PEM"),
        ({"more": 1}, "has more"),
    ],
)
def test_another_is_refused(tmp_path: Path, others: dict[str, Any], line: str) -> None:
    with pytest.raises(InvalidInput, match=line):
        read_config(written(tmp_path, **others))
