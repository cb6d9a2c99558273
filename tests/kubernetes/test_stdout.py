from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import yaml

from tests.kubernetes.conftest import Render, objects, stack, write


def test_the_stream_for_kubectl_holds_every_object_and_nothing_else(rendered: Render, tmp_path: Path) -> None:
    config = stack(outputs={"kubernetes": {"autoscaling": {"kind": "hpa"}}})
    bundle = rendered(config)
    command = [sys.executable, "-c", "from k3observe.cli.main import main; main()", "render", "-f",
               tmp_path / "k3observe.yaml", "--only", "kubernetes", "--stdout"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    documents = [item for item in yaml.load_all(done.stdout, yaml.CSafeLoader) if item is not None]
    assert documents == objects(bundle)
    assert not {"Kustomization", "Component"} & {item["kind"] for item in documents}


def test_kustomize_builds_the_same_objects(rendered: Render, kubectl: Path, tmp_path: Path) -> None:
    bundle = rendered(stack())
    folder = write({path: text for path, text in bundle.items() if path.startswith("kubernetes/")}, tmp_path)
    done = subprocess.run([kubectl, "kustomize", folder / "kubernetes"], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr

    def key(item: dict) -> tuple[str, str]:
        return item["kind"], item["metadata"]["name"]

    built = yaml.load_all(done.stdout, yaml.CSafeLoader)
    assert sorted(built, key=key) == sorted(objects(bundle), key=key)
