"""Readers of the compose services and Kubernetes resources in ``deployments``, and of their containers."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

FOLDER = Path(__file__).parents[2] / "deployments"

Tree = dict[str, Any]


def read(name: str) -> Tree:
    """Return the parsed content of a YAML file with one document in ``deployments``."""
    content: Tree = yaml.safe_load((FOLDER / name).read_text())
    return content


def images() -> dict[str, str]:
    """Return all images with their tags from ``images.env``, by variable name."""
    lines = (FOLDER / "images.env").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def image_of(service: Mapping[str, Any]) -> str:
    """Return the image of a compose service, with the tag of the variable in its manifest."""
    found = re.fullmatch(r"\$\{([A-Z]+_IMAGE):\?[^}]+\}", service["image"])
    assert found is not None, f"{service['image']} is no variable of images.env"
    return images()[found[1]]


def _replaced_images() -> dict[tuple[str, str], str]:
    """Return the image with which kustomize replaces the image of each resource, by kind and name."""
    tags = images()
    return {
        (target["select"]["kind"], target["select"]["name"]): tags[rule["source"]["fieldPath"].removeprefix("data.")]
        for rule in read("kustomization.yaml")["replacements"]
        for target in rule["targets"]
        if target["fieldPaths"] == ["spec.template.spec.containers.0.image"]
    }


def resources() -> Iterator[tuple[str, Tree]]:
    """Yield every Kubernetes resource, and the job that Prefect creates from the work pool's template."""
    replaced = _replaced_images()
    for path in sorted((FOLDER / "kubernetes").glob("*.yaml")):
        for found in yaml.safe_load_all(path.read_text()):
            if image := replaced.get((found["kind"], found["metadata"]["name"])):
                found["spec"]["template"]["spec"]["containers"][0]["image"] = image
            yield f"{path.stem}/{found['kind']}/{found['metadata']['name']}", found
    yield "work-pool/Job", pool_job()


def pool_job() -> Tree:
    """Fill the work pool's job template as Prefect does, with the defaults of its variables."""
    template = json.loads((FOLDER / "work-pool.json").read_text())
    values = {name: rule.get("default") for name, rule in template["variables"]["properties"].items()}
    values["command"] = ["prefect", "flow-run", "execute"]
    values["labels"] = {"run": "one"}
    values["image"] = images()["DPCA_IMAGE"]
    job: Tree = _filled(template["job_configuration"]["job_manifest"], values)
    return job


def pods() -> Iterator[tuple[str, Tree]]:
    """Yield the pod of every resource that has one."""
    for name, found in resources():
        if "template" in found.get("spec", {}):
            yield name, found["spec"]["template"]["spec"]


def containers() -> Iterator[tuple[str, Tree]]:
    """Yield every container of every pod."""
    for name, pod in pods():
        for container in pod["containers"]:
            yield f"{name}/{container['name']}", container


def variables(container: Mapping[str, Any]) -> dict[str, Any]:
    """Return the environment variables of a container: each is a text, or the key of a Kubernetes secret."""
    return {
        item["name"]: item["value"] if "value" in item else item["valueFrom"]["secretKeyRef"]["key"]
        for item in container.get("env", [])
    }


def _filled(part: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(part, dict):
        return {key: _filled(value, values) for key, value in part.items()}
    if isinstance(part, list):
        return [_filled(value, values) for value in part]
    if isinstance(part, str) and (whole := re.fullmatch(r"\{\{ (\w+) \}\}", part)):
        return values[whole[1]]
    return re.sub(r"\{\{ (\w+) \}\}", lambda found: str(values[found[1]]), part) if isinstance(part, str) else part
