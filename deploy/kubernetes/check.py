"""Checks the manifests of this folder by the schemas of Kubernetes, strictly. Needs `kubernetes-validate`.

They do not include a RayCluster: its fields are compared with a list, and its pods are checked as pods.
"""

import sys
from pathlib import Path

import kubernetes_validate
import yaml

# A release that cloud providers still offer.
VERSION = "1.31"
RAY_CLUSTER = {"enableInTreeAutoscaling", "headGroupSpec", "workerGroupSpecs"}
RAY_GROUP = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}


def check(document: dict) -> None:
    if document["kind"] != "RayCluster":
        kubernetes_validate.validate(document, VERSION, strict=True)
        return
    spec = document["spec"]
    assert set(spec) <= RAY_CLUSTER, f"unknown fields: {set(spec) - RAY_CLUSTER}"
    for group in [spec["headGroupSpec"], *spec["workerGroupSpecs"]]:
        assert set(group) <= RAY_GROUP, f"unknown fields: {set(group) - RAY_GROUP}"
        assert all(isinstance(value, str) for value in group["rayStartParams"].values()), "parameters of Ray are texts"
        metadata = group["template"]["metadata"] | {"name": "pod"}
        check({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": group["template"]["spec"]})


def references(documents: list[dict]) -> None:
    """Checks that names of other objects in the manifests exist, and that selectors select their own pods."""
    claims = {document["metadata"]["name"] for document in documents if document["kind"] == "PersistentVolumeClaim"}
    for deployment in (document for document in documents if document["kind"] == "Deployment"):
        template = deployment["spec"]["template"]
        assert deployment["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        for volume in volumes.values():
            assert volume.get("persistentVolumeClaim", {}).get("claimName") in claims | {None}, volume
            assert volume.get("secret", {}).get("secretName") in {"rollmesh-hub", "rollmesh-worker", None}, volume
        for container in template["spec"]["containers"] + template["spec"].get("initContainers", []):
            assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes), container["name"]


def main() -> None:
    found = 0
    for path in sorted(Path(__file__).parent.glob("*.yaml")):
        documents = list(yaml.safe_load_all(path.read_text()))
        for document in documents:
            try:
                check(document)
            except (AssertionError, kubernetes_validate.ValidationError) as error:
                sys.exit(f"{path.name}, {document['kind']} {document['metadata']['name']}: {error}")
            found += 1
        references(documents)
    print(f"{found} objects")


main()
