"""Checks the manifests of this folder by the schemas of Kubernetes, strictly. Needs `kubernetes-validate`.

They do not include a RayCluster, and KubeRay's own schema has 900 KB: the fields that the manifest uses are compared by name and
type with those of KubeRay's API `ray.io/v1`, and its pods are checked as pods.
"""

import sys
from pathlib import Path

import kubernetes_validate
import yaml

# A release that cloud providers still offer.
VERSION = "1.31"
RAY_CLUSTER = {"enableInTreeAutoscaling": bool, "headGroupSpec": dict, "workerGroupSpecs": list}
RAY_GROUP = {"rayStartParams": dict, "template": dict}
RAY_WORKERS = RAY_GROUP | {"groupName": str, "replicas": int, "minReplicas": int, "maxReplicas": int}


def fields(document: dict, known: dict[str, type]) -> None:
    """A document has these fields and no others."""
    assert set(document) == set(known), f"fields {sorted(document)}, not {sorted(known)}"
    for name, kind in known.items():
        assert type(document[name]) is kind, f"{name} is {document[name]!r}"


def ray_cluster(document: dict) -> None:
    assert document["apiVersion"] == "ray.io/v1", document["apiVersion"]
    spec = document["spec"]
    fields(spec, RAY_CLUSTER)
    fields(spec["headGroupSpec"], RAY_GROUP)
    for group in spec["workerGroupSpecs"]:
        fields(group, RAY_WORKERS)
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"], group["groupName"]
    for group in [spec["headGroupSpec"], *spec["workerGroupSpecs"]]:
        assert all(isinstance(value, str) for value in group["rayStartParams"].values()), "parameters of Ray are texts"
        metadata = group["template"]["metadata"] | {"name": "pod"}
        check({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": group["template"]["spec"]})


def images(document: dict, manifests: Path) -> None:
    """What a kustomization names is in its resources."""
    text = "".join((manifests / name).read_text() for name in document["resources"])
    for image in document["images"]:
        assert f"image: {image['name']}:" in text, f"no image {image['name']}"


def check(document: dict) -> None:
    match document["kind"]:
        case "RayCluster":
            ray_cluster(document)
        case "Kustomization":
            images(document, Path(__file__).parent)
        case _:
            kubernetes_validate.validate(document, VERSION, strict=True)


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
                name = document.get("metadata", {}).get("name", "")
                sys.exit(f"{path.name}, {document['kind']} {name}: {error}")
            found += 1
        references(documents)
    print(f"{found} objects")


main()
