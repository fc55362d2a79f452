"""Compose file, Kubernetes resources and image are valid by their schemas.

Manifests and image contain no secret, no root user, and no image tag whose content can change.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.deployments.lock import IMAGE, image_lock
from tests.deployments.manifests import (
    FOLDER,
    Tree,
    containers,
    image_of,
    images,
    pods,
    read,
    resources,
    variables,
)
from tests.tools import output, python

COMPOSE = read("compose.yaml")
SERVICES: Tree = COMPOSE["services"]
RUNNING = [name for name, service in SERVICES.items() if service["restart"] != "on-failure"]
SECRET = re.compile("PASSWORD|SECRET|AUTH|_KEY$|KEY_ID|ROOT_USER")
NO_SECRET = re.compile("DPCA_TLS_KEY|DASK_.*__KEY")  # variables of this form contain paths of files, not secrets


def _pinned(image: str) -> bool:
    name, _, tag = image.partition("@")[0].rpartition(":")
    return bool(name) and bool(re.search(r"\d+\.\d+|\d{4}-\d{2}-\d{2}", tag)) and "latest" not in tag


_VALIDATE = """
import json, sys
import kubernetes_validate
version = kubernetes_validate.latest_version()
faults = {}
for name, resource in json.load(sys.stdin).items():
    try:
        kubernetes_validate.validate(resource, version, strict=True)
        faults[name] = ""
    except Exception as fault:
        faults[name] = f"{type(fault).__name__}: {fault}"
json.dump(faults, sys.stdout)
"""


@pytest.fixture(scope="module")
def kubernetes_faults() -> dict[str, str]:
    """Return the schema fault of each Kubernetes resource, empty if it has none; a planted fault must be found."""
    given = dict(resources())
    wrong = {**given["work-pool/Job"], "spec": {"template": "none"}}
    faults: dict[str, str] = json.loads(output(_VALIDATE, given=json.dumps({**given, "wrong": wrong})))
    assert faults.pop("wrong")
    return faults


def test_the_compose_file_follows_the_specification() -> None:
    command: list[str | Path] = [
        python().with_name("check-jsonschema"),
        "--builtin-schema",
        "vendor.compose-spec",
        FOLDER / "compose.yaml",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("name", "resource"), list(resources()), ids=lambda item: item if isinstance(item, str) else ""
)
def test_a_resource_follows_the_schema_of_kubernetes(
    kubernetes_faults: dict[str, str], name: str, resource: Tree
) -> None:
    assert kubernetes_faults[name] == ""


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_is_pinned_confined_and_holds_no_secret(name: str) -> None:
    service = SERVICES[name]
    assert _pinned(image_of(service))
    assert int(service["user"].partition(":")[0]) > 0
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    for variable, value in service.get("environment", {}).items():
        if SECRET.search(variable) and not NO_SECRET.fullmatch(variable):
            assert re.fullmatch(r"\$\{[A-Z0-9_]+:\?[^}]+\}", value), f"{variable} must come from the environment"
        for word in re.findall(r"://[^/@:]*:([^/@]+)@", value):
            assert word.startswith("${"), f"{variable} holds a password"


@pytest.mark.parametrize("name", sorted(RUNNING))
def test_every_service_has_a_health_check(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"][0] == "CMD"


def test_only_prefects_page_is_reachable_and_only_from_this_machine() -> None:
    assert COMPOSE["networks"]["inside"] == {"internal": True}
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {"prefect": ["127.0.0.1:4200:4200"]}


@pytest.mark.parametrize(
    ("name", "container"), list(containers()), ids=lambda item: item if isinstance(item, str) else ""
)
def test_a_container_is_pinned_confined_and_holds_no_secret(name: str, container: Tree) -> None:
    assert _pinned(container["image"])
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"requests", "limits"} <= set(container["resources"])
    for item in container.get("env", []):
        if SECRET.search(item["name"]) and not NO_SECRET.fullmatch(item["name"]):
            assert set(item) == {"name", "valueFrom"}, f"{item['name']} must come from a secret"
        for word in re.findall(r"://[^/@:]*:([^/@]+)@", item.get("value", "")):
            assert word.startswith("$("), f"{item['name']} holds a password"
    if "/Job/" not in name and not name.startswith("work-pool"):
        assert {"readinessProbe", "livenessProbe"} <= set(container)


@pytest.mark.parametrize(("name", "pod"), list(pods()), ids=lambda item: item if isinstance(item, str) else "")
def test_pods_run_without_privileges_and_without_cluster_access(name: str, pod: Tree) -> None:
    context = pod["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] > 0
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    accounts = {found["metadata"]["name"] for _, found in resources() if found["kind"] == "ServiceAccount"}
    assert pod["serviceAccountName"] in accounts
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert not any("hostPath" in volume for volume in pod["volumes"])


def test_each_service_gets_only_the_secrets_of_its_task() -> None:
    given = {name.split("/")[-1]: set(variables(container).values()) for name, container in containers()}
    curator = {"DPCA_DATABASE_PASSWORD", "S3_CURATOR_KEY", "S3_CURATOR_SECRET", "PREFECT_AUTH"}
    theirs = {
        "dask-scheduler": set(),
        "dask-worker": {"S3_WORKER_KEY", "S3_WORKER_SECRET"},
        "prefect": {"PREFECT_DATABASE_PASSWORD", "PREFECT_AUTH"},
        "deploy": {"PREFECT_AUTH"},
        "worker": curator,
        "prefect-job": curator,
    }
    everything = _names_of_secrets()
    assert {name: given[name] & everything for name in theirs} == theirs
    requested = {
        name: set(re.findall(r"\$\{([A-Z0-9_]+):", str(service))) - set(images()) for name, service in SERVICES.items()
    }
    assert requested["scheduler"] == set()
    assert requested["dask-worker"] == theirs["dask-worker"]
    assert requested["prefect"] == theirs["prefect"]
    assert requested["worker"] - {"DPCA_SOURCES"} == curator


def test_every_secret_is_requested_in_the_example() -> None:
    requested = set(re.findall(r"\$\{([A-Z0-9_]+):\?", (FOLDER / "compose.yaml").read_text()))
    assert requested - set(images()) == _names_of_secrets()
    assert set(images()) < requested
    read_from = {
        item["valueFrom"]["secretKeyRef"]["key"]
        for _, container in containers()
        for item in container.get("env", [])
        if "valueFrom" in item
    }
    assert read_from == _names_of_secrets()


def test_dask_uses_tls_only_and_never_spills() -> None:
    ours = dict(containers())
    for variables_of in (
        {name: variables(ours[f"dask/Deployment/dask-{name}/dask-{name}"]) for name in ("scheduler", "worker")},
        {"scheduler": SERVICES["scheduler"]["environment"], "worker": SERVICES["dask-worker"]["environment"]},
    ):
        for role, given in variables_of.items():
            assert given["DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION"] == "True"
            for file in ("CA_FILE", f"{role.upper()}__CERT", f"{role.upper()}__KEY"):
                assert given[f"DASK_DISTRIBUTED__COMM__TLS__{file}"].endswith(".pem")
        for setting in ("MEMORY__SPILL", "MEMORY__TARGET", "PROFILE__ENABLED"):
            assert variables_of["worker"][f"DASK_DISTRIBUTED__WORKER__{setting}"] == "False"
    for words in (
        *(ours[f"dask/Deployment/dask-{name}/dask-{name}"]["args"] for name in ("scheduler", "worker")),
        *(SERVICES[name]["command"] for name in ("scheduler", "dask-worker")),
    ):
        assert words[words.index("--protocol") + 1] == "tls"
        assert words[words.index("--dashboard-address") + 1].startswith("127.0.0.1:")
    for worker in (
        variables(ours["prefect-worker/Deployment/prefect-worker/worker"]),
        SERVICES["worker"]["environment"],
    ):
        assert worker["DPCA_CLUSTER"].startswith("tls://")


def test_the_kustomization_names_every_file_that_there_is() -> None:
    found = read("kustomization.yaml")
    assert sorted(found["resources"]) == sorted(f"kubernetes/{path.name}" for path in (FOLDER / "kubernetes").iterdir())
    generated = [file for maker in found["configMapGenerator"] for file in maker.get("files", maker.get("envs"))]
    assert all((FOLDER / file).is_file() for file in generated)
    made = {maker["name"] for maker in found["configMapGenerator"] + found["secretGenerator"]}
    volumes = [volume for _, pod in pods() for volume in pod["volumes"]]
    used = {volume["configMap"]["name"] for volume in volumes if "configMap" in volume}
    used |= {volume["secret"]["secretName"] for volume in volumes if "secret" in volume}
    assert used | {"dpca", "images"} == made
    requested = {
        item["valueFrom"]["secretKeyRef"]["name"]
        for _, container in containers()
        for item in container.get("env", [])
        if "valueFrom" in item
    }
    assert requested == {"dpca"}
    assert found["generatorOptions"] == {"disableNameSuffixHash": True}, "the pool's template names secrets as they are"


def test_programs_write_only_to_writable_volumes_of_read_only_containers() -> None:
    stores = [SERVICES["s3"], SERVICES["s3-setup"]]
    assert [service["environment"]["HOME"] for service in stores] == ["/tmp", "/tmp"]
    ours = {name: variables(container) for name, container in containers() if container["image"].startswith("minio/")}
    assert [given["HOME"] for given in ours.values()] == ["/tmp", "/tmp"]
    image = (FOLDER / "Dockerfile").read_text()
    for name in ("PREFECT_HOME", "PREFECT_UI_STATIC_DIRECTORY", "NUMBA_CACHE_DIR"):
        assert re.search(rf"\b{name}=/tmp/", image), f"{name} is not below /tmp"
    for name, container in containers():
        mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert "/tmp" in mounted, f"{name} cannot write to /tmp"
    assert all("/tmp" in service["tmpfs"] for service in SERVICES.values())


def test_the_witness_has_a_separate_volume_for_every_curator() -> None:
    image = (FOLDER / "Dockerfile").read_text()
    home, state = (re.findall(rf"\b{name}=(\S+)", image)[0] for name in ("DPCA_HOME", "DPCA_STATE_FOLDER"))
    assert not Path(state).is_relative_to(home)
    assert f'VOLUME ["{home}", "{state}"]' in image
    mounts = dict(volume.split(":")[:2][::-1] for volume in SERVICES["worker"]["volumes"] if not volume.startswith("$"))
    assert set(mounts) == {home, state}
    assert mounts[home] != mounts[state]
    assert set(mounts.values()) <= set(COMPOSE["volumes"])
    claims = {found["metadata"]["name"] for _, found in resources() if found["kind"] == "PersistentVolumeClaim"}
    curators = [pod for name, pod in pods() if name in ("prefect-worker/Deployment/prefect-worker", "work-pool/Job")]
    assert len(curators) == 2
    for pod in curators:
        (container,) = pod["containers"]
        mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        volumes = {
            volume["name"]: volume.get("persistentVolumeClaim", {}).get("claimName") for volume in pod["volumes"]
        }
        claimed = [volumes[mounted[path]] for path in (home, state)]
        assert len(set(claimed) & claims) == 2


def test_a_database_is_not_ready_during_its_initialization() -> None:
    # While its initialization scripts run, PostgreSQL listens on its Unix socket only.
    probes = [SERVICES["postgres"]["healthcheck"]["test"][1:]]
    database = dict(containers())["postgres/StatefulSet/postgres/postgres"]
    probes += [database[f"{kind}Probe"]["exec"]["command"] for kind in ("startup", "readiness", "liveness")]
    assert all(probe[:3] == ["pg_isready", "--host", "127.0.0.1"] for probe in probes)


def test_the_image_is_pinned_unprivileged_and_installs_by_hash() -> None:
    lines = (FOLDER / "Dockerfile").read_text().splitlines()
    assert [line.split()[1] for line in lines if line.startswith("FROM ")] == ["$PYTHON_IMAGE", "$PYTHON_IMAGE"]
    assert "ARG PYTHON_IMAGE" in lines
    assert set(SERVICES["prefect"]["build"]["args"]) == {"PYTHON_IMAGE"}
    assert all(map(_pinned, images().values()))
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users == ["10001:10001"]
    installs = [line for line in lines if "pip install" in line]
    assert all("--require-hashes" in line or line.endswith("--no-deps --no-build-isolation .") for line in installs)
    assert not [line for line in lines if re.search(SECRET, line)]
    assert any(line.startswith("HEALTHCHECK ") for line in lines)


def test_the_image_installs_exactly_the_tested_requirements() -> None:
    assert IMAGE.read_text(encoding="utf-8") == image_lock()


def test_certificates_are_made_by_the_script(tmp_path: Path) -> None:
    assert shutil.which("openssl"), "openssl is missing"
    script, folder = FOLDER / "certificates.sh", tmp_path / "tls"
    environment = {"PATH": os.environ["PATH"]}
    subprocess.run([script, folder], check=True, env=environment, capture_output=True)

    def verifies(authority: str, certificate: str, *options: str) -> bool:
        command: list[str | Path] = [
            "openssl",
            "verify",
            "-x509_strict",
            *options,
            "-CAfile",
            folder / authority,
            folder / certificate,
        ]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    assert all(verifies("ca.pem", "cert.pem", "-purpose", f"ssl{side}") for side in ("client", "server"))
    for name in ("postgres", "s3", "prefect"):
        assert verifies("services.pem", f"{name}.pem", "-purpose", "sslserver")
        assert not verifies("services.pem", f"{name}.pem", "-purpose", "sslclient"), f"{name} could pass for a client"
        assert not verifies("ca.pem", f"{name}.pem"), f"{name} could join the cluster"
    for name, hosts in _requested_hosts().items():
        for host in hosts:
            assert verifies("services.pem", f"{name}.pem", "-verify_hostname", host)
            others = {"postgres", "s3", "prefect"} - {name}
            assert not any(verifies("services.pem", f"{other}.pem", "-verify_hostname", host) for other in others)
    operators = ("ca.key", "ca.srl", "services.key", "services.srl")
    servers = [f"{name}.{kind}" for name in ("postgres", "s3", "prefect") for kind in ("pem", "key")]
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in folder.glob("*")} == {
        **dict.fromkeys(operators, "0o600"),
        **dict.fromkeys(("ca.pem", "cert.pem", "key.pem", "services.pem", *servers), "0o640"),
    }
    mounted = {secret["file"].removeprefix("./tls/") for secret in COMPOSE["secrets"].values()}
    assert mounted == {"ca.pem", "cert.pem", "key.pem", "services.pem", *servers}
    again = subprocess.run([script, folder], env=environment, capture_output=True, text=True, check=False)
    assert (again.returncode, again.stderr.count("\n")) == (1, 1)


def _requested_hosts() -> dict[str, set[str]]:
    """Return the host names by which the manifests address each server."""
    given = [service.get("environment", {}) for service in SERVICES.values()]
    given += [variables(container) for _, container in containers()]
    requested = {
        "postgres": ("DPCA_DATABASE_URL", "PREFECT_SERVER_DATABASE_HOST"),
        "s3": ("AWS_ENDPOINT_URL", "S3_ENDPOINT"),
        "prefect": ("PREFECT_API_URL",),
    }
    hosts = {
        server: {_host(one[name]) for one in given for name in names if name in one}
        for server, names in requested.items()
    }
    assert hosts == {"postgres": {"postgres"}, "s3": {"s3", "object-store"}, "prefect": {"prefect"}}
    return hosts


def _host(address: str) -> str:
    return urlsplit(re.sub(r"\$[({][^)}]*[)}]", "a-secret", address)).hostname or address


def _names_of_secrets() -> set[str]:
    lines = (FOLDER / "environment.example").read_text().splitlines()
    names = {line.partition("=")[0] for line in lines if line and not line.startswith("#")}
    assert all(line.endswith("=") for line in lines if line and not line.startswith("#")), "an example holds a value"
    return names
