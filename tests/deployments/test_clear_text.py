"""Shipped deployments use no clear text: manifests have no such traffic, and configured servers refuse it."""

import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from dpca.errors import Unavailable
from storage.database.engine import connect, reading
from tests.deployments.clear_text import findings
from tests.deployments.manifests import FOLDER, Tree, containers, pods, read, resources, variables
from tests.postgres import Server, running_server
from tests.web_server import Files, serve_folder

DIGEST = f"sha256:{'1a' * 32}"


def test_shipped_manifests_contain_no_clear_text_traffic() -> None:
    assert findings(FOLDER) == []


@pytest.mark.parametrize(
    ("name", "now", "then", "rule"),
    [
        ("compose.yaml", "https://s3:9000", "http://s3:9000", "clear text beyond loopback"),
        ("compose.yaml", "https://s3:9000", "http://127.0.0.1.example.org:9000", "clear text beyond loopback"),
        ("compose.yaml", "tls://scheduler:8786", "tcp://scheduler:8786", "clear text beyond loopback"),
        ("work-pool.json", '"SSL_CERT_FILE"', '"AWS_ALLOW_HTTP"', "admits clear text"),
        ("kubernetes/prefect-worker.yaml", "sslmode=verify-full", "sslmode=require", "sslmode=verify-full"),
        ("kubernetes/prefect-worker.yaml", "&sslrootcert=/authority/services.pem", "", "sslrootcert"),
        ("compose.yaml", "?sslmode=verify-full&", "?", "sslmode=verify-full"),
        ("postgres/pg_hba.conf", "hostssl", "host", "in clear text"),
        ("kubernetes/network.yaml", "[Ingress, Egress]", "[Ingress]", "has no egress"),
        ("kubernetes/network.yaml", "[Egress]", "[Ingress]", "has no egress"),
        ("kubernetes/network.yaml", "egress: []", "egress: [{}]", "lets out to anywhere"),
        ("kubernetes/postgres.yaml", "image: postgres", "image: postgres:17.5-bookworm", "the tag of an image"),
        ("kubernetes/postgres.yaml", "image: postgres", f"image: postgres@{DIGEST}", "the tag of an image"),
        ("Dockerfile", "FROM $PYTHON_IMAGE AS", "FROM python:3.13.5 AS", "the tag of an image"),
        ("prefect.kubernetes.yaml", "{{ $DPCA_IMAGE }}", "dpca:0.1.0", "the tag of an image"),
        ("kustomization.yaml", "replacements:", "images: [{newTag: 0.1.0}]\nreplacements:", "the tag of an image"),
        ("kubernetes/postgres.yaml", "ssl=on", "ssl=off", "PostgreSQL accepts clear text"),
        ("compose.yaml", ", --certs-dir, /run/secrets", "", "the object store accepts clear text"),
        ("kubernetes/prefect-server.yaml", "--ssl-certfile", "--other", "Prefect's server accepts clear text"),
        ("kubernetes/prefect-server.yaml", "TLS_CA_FILE", "OTHER", "Prefect's database is reached without TLS"),
        ("kubernetes/prefect-server.yaml", ", scheme: HTTPS", "", "answers a probe in clear text"),
        ("compose.yaml", "--protocol, tls", "--protocol, tcp", "Dask accepts clear text"),
    ],
)
def test_each_fault_is_found_in_a_manifest(tmp_path: Path, name: str, now: str, then: str, rule: str) -> None:
    sound = (FOLDER / name).read_text()
    assert now in sound
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(sound.replace(now, then))
    shutil.copy(FOLDER / "images.env", tmp_path)
    found = findings(tmp_path)
    assert found
    assert all(line.startswith(name) and rule in line for line in found)


def test_each_egress_rule_is_the_ingress_rule_of_the_other_pod() -> None:
    labels = {name: _labels(found) for name, found in resources() if "template" in found.get("spec", {})}
    ends = [*labels.values(), {"dpca-consumer": "true"}]
    policies = [found["spec"] for _, found in resources() if found["kind"] == "NetworkPolicy"]
    nobody, names, *allowed = policies
    assert nobody == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": [], "egress": []}
    assert {port["port"] for rule in names["egress"] for port in rule["ports"]} == {53}
    kinds: dict[str, set[tuple[str, str, int]]] = {"from": set(), "to": set()}
    for policy in allowed:
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        (here,) = {_name(end) for end in ends if _selects(policy["podSelector"], end)}
        for direction, rules in (("from", policy["ingress"]), ("to", policy["egress"])):
            for there, port in {
                (_name(end), port["port"])
                for rule in rules
                for peer in rule[direction]
                for end in ends
                if _selects(peer["podSelector"], end)
                for port in rule["ports"]
            }:
                kinds[direction].add((there, here, port) if direction == "from" else (here, there, port))
    assert kinds["from"] == kinds["to"] != set()
    for end in ends:
        assert any(_selects(policy["podSelector"], end) for policy in allowed), f"{end} has no policy"
    served = {port for _, pod in pods() for one in pod["containers"] for port in _ports(one)}
    assert {port for _, _, port in kinds["to"]} == served | {8788}
    worker = dict(containers())["dask/Deployment/dask-worker/dask-worker"]["args"]
    assert worker[worker.index("--worker-port") + 1] == "8788"


def _labels(found: Tree) -> dict[str, str]:
    labels: dict[str, str] = found["spec"]["template"]["metadata"]["labels"]
    return labels


def _name(labels: dict[str, str]) -> str:
    return labels.get("app", "consumer")


def _ports(container: Tree) -> set[int]:
    return {port["containerPort"] for port in container.get("ports", [])}


def _selects(selector: Tree, labels: dict[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        labels.get(rule["key"]) in rule["values"] for rule in selector.get("matchExpressions", [])
    )


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the certificates that the shipped script ``certificates.sh`` creates."""
    folder = tmp_path_factory.mktemp("certificates") / "tls"
    environment = {"PATH": os.environ["PATH"]}
    subprocess.run([FOLDER / "certificates.sh", folder], check=True, env=environment, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def encrypted(shipped: Path) -> Iterator[Server]:
    """Run PostgreSQL with the settings, access rules and certificate of the shipped manifest."""
    arguments = dict(containers())["postgres/StatefulSet/postgres/postgres"]["args"]
    settings = dict(word.split("=") for word in arguments if "=" in word)
    with running_server() as server:
        data = Path(server.run("postgres", "SHOW data_directory"))
        for given in (shipped / "postgres.pem", shipped / "postgres.key", FOLDER / "postgres" / "pg_hba.conf"):
            copied = Path(shutil.copy(given, data))
            os.chown(copied, data.stat().st_uid, data.stat().st_gid)
            copied.chmod(0o600)
        server.run(
            "postgres",
            "CREATE ROLE dpca_curator LOGIN PASSWORD 'a-password'",
            "CREATE DATABASE dpca OWNER dpca_curator",
            *(
                f"ALTER SYSTEM SET {name} = '{data / Path(value).name if value.startswith('/') else value}'"
                for name, value in settings.items()
            ),
        )
        server.stop()
        server.start()
        yield server


def _address(server: Server, authority: Path, **changed: str) -> str:
    """Return the database URL of the manifests, with its host name mapped to a test server on loopback."""
    (shipped,) = {
        given["DPCA_DATABASE_URL"].replace("$(DATABASE_PASSWORD)", "a-password")
        for _, container in containers()
        if "DPCA_DATABASE_URL" in (given := variables(container))
    }
    url = sa.make_url(shipped).set(port=server.port)
    if "host" in changed:
        url = url.set(host=changed.pop("host"))
    query = {"sslrootcert": str(authority), "hostaddr": "127.0.0.1", **changed}
    return url.update_query_dict(query).render_as_string(hide_password=False)


def test_the_ledger_reaches_postgresql_by_the_shipped_address_under_tls(encrypted: Server, shipped: Path) -> None:
    engine = connect(_address(encrypted, shipped / "services.pem"))
    with reading(engine) as connection:
        found = connection.execute(sa.text("SELECT ssl, version FROM pg_stat_ssl WHERE pid = pg_backend_pid()")).one()
    assert tuple(found) == (True, "TLSv1.3")


@pytest.mark.parametrize(
    ("authority", "changed"),
    [
        ("services.pem", {"sslmode": "disable"}),
        ("ca.pem", {}),
        ("services.pem", {"host": "postgres.example.org"}),
    ],
    ids=["clear text", "another authority", "another host"],
)
def test_neither_clear_text_nor_another_server_is_accepted_by_postgresql_or_its_client(
    encrypted: Server, shipped: Path, authority: str, changed: dict[str, str]
) -> None:
    with pytest.raises(Unavailable):
        connect(_address(encrypted, shipped / authority, **changed))


def test_the_client_of_the_object_store_trusts_the_shipped_authority_alone(shipped: Path, tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "name").write_bytes(b"an object")
    files = Files(ca=shipped / "services.pem", cert=shipped / "s3.pem", key=shipped / "s3.key")
    program = "from dpca.backends.s3 import ObjectPlace; print(ObjectPlace('s3://bucket').read('name').payload)"
    given = {"AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "a-key", "AWS_SECRET_ACCESS_KEY": "a-secret"}
    with serve_folder(tmp_path, tls=files) as server:

        def read_with(**environment: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, "-c", program], capture_output=True, text=True, check=False,
                env={"PATH": os.environ["PATH"], "AWS_ENDPOINT_URL": server.url, **given, **environment},
            )  # fmt: skip

        assert read_with(SSL_CERT_FILE=str(files.ca)).stdout == "b'an object'\n"
        refused = read_with(SSL_CERT_FILE=str(shipped / "ca.pem"))
        assert "its certificate is not trusted; set SSL_CERT_FILE" in refused.stderr
        in_clear_text = read_with(AWS_ENDPOINT_URL=server.url.replace("https", "http"))
        assert "its endpoint is not an https:// URL" in in_clear_text.stderr
        assert [method for method, _ in server.requested] == ["GET"]


def test_every_client_is_given_the_authority_of_the_servers_that_it_reaches() -> None:
    ours = [(variables(container), "/authority/services.pem") for _, container in containers()]
    ours += [
        (service.get("environment", {}), "/run/secrets/services.pem")
        for service in read("compose.yaml")["services"].values()
    ]
    needed = {"AWS_ENDPOINT_URL": "SSL_CERT_FILE", "S3_ENDPOINT": "SSL_CERT_FILE"}
    needed |= {"PREFECT_API_URL": "PREFECT_API_SSL_CERT_FILE"}
    reached = [(given[needed[name]], file) for given, file in ours for name in needed if name in given]
    assert len(reached) >= 8
    assert all(found == file for found, file in reached)


def test_prefect_reads_the_settings_of_its_database_as_they_are_shipped(
    shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.settings.models.server.database import SQLAlchemyTLSSettings

    for given in (
        variables(dict(containers())["prefect-server/Deployment/prefect-server/prefect"]),
        read("compose.yaml")["services"]["prefect"]["environment"],
    ):
        for name, value in given.items():
            if "_TLS_" in name:
                monkeypatch.setenv(name, value)
        found = SQLAlchemyTLSSettings()
        assert (found.enabled, found.check_hostname) == (True, True)
        assert Path(str(found.ca_file)).name == "services.pem"
    assert ssl.create_default_context(cafile=shipped / "services.pem").check_hostname


@pytest.mark.parametrize(
    ("docker", "message"),
    [
        (f"echo {DIGEST}", ""),
        ("exit 1", "no registry reports a digest of python:3.13.5-slim-bookworm"),
        ("echo latest", "no registry reports a digest of python:3.13.5-slim-bookworm"),
        (f'case "$*" in *minio/mc*) exit 1;; *) echo {DIGEST};; esac', "no registry reports a digest of minio/mc:"),
        (None, "docker is not installed"),
    ],
    ids=["reachable", "unreachable", "no digest", "the last is unreachable", "no docker"],
)
def test_images_are_pinned_together_or_not_at_all(tmp_path: Path, docker: str | None, message: str) -> None:
    programs, file = tmp_path / "bin", Path(shutil.copy(FOLDER / "images.env", tmp_path))
    programs.mkdir()
    for name in ("sh", "mktemp", "rm", "grep", "chmod", "mv", "dirname"):
        (programs / name).symlink_to(str(shutil.which(name)))
    if docker is not None:
        (programs / "docker").write_text(f"#!/bin/sh\n{docker}\n")
        (programs / "docker").chmod(0o755)
    before = file.read_text()
    for _ in range(2):  # pinning a second time must replace the digests of the first time
        done = subprocess.run(
            [FOLDER / "pin-images.sh", file], env={"PATH": str(programs)}, capture_output=True, text=True, check=False
        )
    if message:
        assert (done.returncode, done.stderr.count("\n"), file.read_text()) == (1, 1, before)
        assert message in done.stderr
    else:
        assert (done.returncode, done.stderr) == (0, "")
        lines = [
            line if not line or line.startswith(("#", "DPCA_IMAGE=")) else f"{line}@{DIGEST}"
            for line in before.splitlines()
        ]
        assert file.read_text().splitlines() == lines
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "images.env"]
