"""The files of deploy/ against the schemas of Kubernetes and Compose, and the workflows against GitHub's."""

import copy
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import yaml
from harness.tap import Tap

ROOT = Path(os.environ["INTEROP"]).parent
# The oldest that providers still run, and the newest.
VERSIONS = ["1.30", kubernetes_validate.latest_version()]
# Resources of operators and of kubectl itself: Kubernetes has no schema for them.
OF_OTHERS = {"Cluster", "Kustomization", "PodMonitor"}

tap = Tap(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("kubernetes-validate", "check-jsonschema")))
resources = [
    (f"{file.name}, {document['kind']} {document['metadata']['name']}" if "metadata" in document else file.name, document)
    for file in sorted((ROOT / "deploy/kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(file.read_text(encoding="utf-8"))
]


def problems(version, which):
    found = []
    for name, document in which:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            found.append(f"{name}, {'.'.join(map(str, error.path))}: {error.message}")
    return found


def is_valid(version):
    found = problems(version, [(name, document) for name, document in resources if document["kind"] not in OF_OTHERS])
    assert not found, found


def others():
    unknown = set()
    for _, document in resources:
        try:
            kubernetes_validate.validate(document, VERSIONS[-1])
        except kubernetes_validate.SchemaNotFoundError:
            unknown.add(document["kind"])
    assert unknown == OF_OTHERS, unknown


def notices():
    """The schemas are strict: a field that is misspelt, and a value of another type."""
    node = next(document for _, document in resources if document["kind"] == "StatefulSet")
    for change in ({"replicas": "three"}, {"serviceNam": "tidings"}):
        changed = copy.deepcopy(node)
        changed["spec"].update(change)
        assert len(problems(VERSIONS[-1], [("changed", changed)])) == 1, change


def fits(schema, pattern):
    files = sorted(map(str, ROOT.glob(pattern)))
    assert files, pattern
    done = subprocess.run([sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


for version in VERSIONS:
    tap.case(f"every manifest is valid for Kubernetes {version}", lambda version=version: is_valid(version))
tap.case("only resources of operators and of kubectl are without a schema", others)
tap.case("a misspelt field and a value of another type are noticed", notices)
tap.case("the compose files follow the Compose specification", lambda: fits("vendor.compose-spec", "deploy/compose*.yml"))
tap.case("the workflows follow GitHub's schema", lambda: fits("vendor.github-workflows", ".github/workflows/*.yml"))
tap.end()
