"""What an operator states is checked before a site listens, and shown to nobody else."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from dpca_tasks.errors import InvalidInput, Refused
from flows.cli import main
from flows.federation_demo import Federation
from flows.parties.certificates import make_identity
from flows.sites.site_config import Limits, read_config
from tests.flows.sites.joint import at_home, request
from tests.flows.sites.test_roster_file import written

LIMITS = {"epsilon": 1, "delta": "1e-5", "methods": ["conv"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    for name in ("aggregator", "helper", "a", "b", "c"):
        make_identity(name, folder)
    written(folder)
    return folder


def config(folder: Path, **others: Any) -> Path:
    given = {"name": "a", "roster": "roster.yaml", "key": "a.key", "listen": "127.0.0.1:0", "dataset": "rows"}
    path = folder / "site.yaml"
    facts = {**given, "limits": LIMITS, **others}
    path.write_text(yaml.safe_dump({name: fact for name, fact in facts.items() if fact != "absent"}))
    return path


def test_a_sound_configuration_is_read(folder: Path) -> None:
    site = read_config(config(folder))
    assert (site.post.name, site.limits) == ("a", Limits(epsilon=1.0, delta=1e-5, methods=("conv",)))
    helper = read_config(config(folder, name="helper", key="helper.key", dataset="absent", limits="absent"))
    assert (helper.post.address, helper.limits) == ("https://h.example", None)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "x", "certificate": "a.pem"}, "site 'x' is not in the roster"),
        ({"certificate": "b.pem"}, "is not the certificate that the roster names for a"),
        ({"limits": "absent"}, "lacks limits"),
        ({"limits": {"epsilon": 1}}, "lacks delta, methods"),
        ({"limits": {**LIMITS, "methods": ["best"]}}, "must list methods of"),
        ({"limits": {**LIMITS, "epsilon": "much"}}, "epsilon in limits of .* is no positive number"),
        ({"limits": {**LIMITS, "epsilon": float("nan")}}, "epsilon in limits of .* is no positive number"),
        ({"limits": {**LIMITS, "methods": ["conv_agn"]}}, "must list methods of cape_agn, "),
        ({"name": "helper", "key": "helper.key"}, "has dataset, limits"),
        ({"password": "x"}, "has password, and knows"),
    ],
)
def test_one_that_does_not_fit_is_refused_in_one_line(folder: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said) as refusal:
        read_config(config(folder, **change))
    assert "\n" not in str(refusal.value)


def test_limits_hold_for_one_release(federation: Federation) -> None:
    limits = Limits(epsilon=1.0, delta=1e-5, methods=("cape_pca",))
    limits.check(request(federation))
    for change, said in (
        ({"method": "conv"}, "admits"),
        ({"epsilon": 1.1}, "above 1,"),
        ({"delta": 2e-5}, "above 1e-05"),
    ):
        with pytest.raises(Refused, match=said):
            limits.check(request(federation, **change))


def test_a_key_is_made_once_and_stays_with_its_owner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["site", "key", "north", "--folder", str(tmp_path / "north"), "--json"]
    assert main(words) == 0
    made = json.loads(capsys.readouterr().out)
    assert Path(made["key"]).stat().st_mode & 0o777 == 0o600
    assert len(made["fingerprint"]) == 64
    assert "PRIVATE" not in Path(made["certificate"]).read_text()
    assert main(words) == 1
    assert "a key is never replaced" in capsys.readouterr().err


def test_the_operator_sees_limits_budget_and_releases(
    federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    with at_home(federation, "site-0"):
        assert main(["site", "status", "--config", str(federation.config("site-0")), "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert main(["site", "status", "--config", str(federation.config("helper"))]) == 1
    assert (shown["site"], shown["dataset"], shown["epsilon_at_most"]) == ("site-0", "rows", 100.0)
    assert shown["sites"] == ["site-0", "site-1", "site-2"]
    assert "no state" in capsys.readouterr().err
