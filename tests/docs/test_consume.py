"""The page consume.md works as it is typed; its commands that install are run by ``make consumer``."""

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.cli import main
from tests.consumer.__main__ import PAGE, commands_that_install
from tests.docs.reader import FENCED
from tests.s3 import Server
from tests.web_server import serve_folder

BEFORE = """\
dpca dataset ingest rows.npy --name census --records-at-most 50000 --population adults --direct
dpca budget open adults --epsilon 40 --delta 1e-5
dpca subspace fit census --components 6 --epsilon 8 --delta 1e-6 --clip-norm 3 --publish census-map --direct --yes
dpca registry promote census-map@1 champion
"""


def test_the_page_works_as_it_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], s3_server: Server
) -> None:
    text = PAGE.read_text(encoding="utf-8")
    commands = [block for block in FENCED.findall(text) if block != commands_that_install()]
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    monkeypatch.setenv("DPCA_HOME", str(home))
    monkeypatch.setenv("DPCA_CLUSTER", "none")
    rows = np.random.default_rng(0).normal(size=(500, 8))
    np.save("rows.npy", rows)
    columns = {"patient": range(500), **{f"v{at}": rows[:, at] for at in range(8)}}
    pq.write_table(pa.table(columns), "rows.parquet")
    for line in (BEFORE + "".join(commands)).splitlines():
        assert main(shlex.split(line)[1:]) == 0, capsys.readouterr().err
    assert re.search(r"^artifact +census-map-small@1$", capsys.readouterr().out, flags=re.MULTILINE)
    s3_server.enter(monkeypatch)
    for path in (home / "registry").rglob("*"):
        if path.is_file():
            s3_server.ask("PUT", f"{s3_server.bucket}/{tmp_path.name}/{path.relative_to(home)}", path.read_bytes())
    names: dict[str, Any] = {"rows": np.eye(2, 8), "labels": [0, 1]}
    with serve_folder(home) as server:
        there = {"/mnt/released": str(home), "s3://bucket/prefix": s3_server.url(tmp_path.name)}
        for example, address in {**there, "https://data.example.org/registry": f"{server.url}/registry"}.items():
            assert example in text
            text = text.replace(example, address)
        blocks = re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
        for block in blocks:
            exec(compile(block, PAGE.name, "exec"), names)
        assert server.asked
    assert pq.read_table("scores.parquet").num_rows == 500
    assert names["scores"].shape == (2, 6)
    assert names["model"].predict(names["rows"]).tolist() == [0, 1]
    assert names["rows_again"].shape == (2, 8)
