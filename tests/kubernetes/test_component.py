"""The sidecar's component is added to an existing object by the real kustomize."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.kubernetes.conftest import Render, stack, write
from tests.kubernetes.schemas import problems

TEMPLATE = {
    "metadata": {"labels": {"app": "kimi-k3"}},
    "spec": {
        "initContainers": [{"name": "fetch", "image": "fetch:1"}],
        "containers": [{
            "name": "vllm", "image": "vllm/vllm-openai:v0.33.0", "args": ["moonshotai/Kimi-K3"],
            "ports": [{"name": "http", "containerPort": 8000, "protocol": "TCP"}],
            "env": [{"name": "HF_HOME", "value": "/models"}],
            "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
        }],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    },
}  # fmt: skip


def patched(kubectl: Path, folder: Path, bundle: dict[str, bytes], engine: dict) -> dict:
    """The engine's object after ``kubectl kustomize`` with the component."""
    write({path: text for path, text in bundle.items() if path.startswith("kubernetes/components/")}, folder / "k3")
    (folder / "engine.yaml").write_text(yaml.safe_dump(engine))
    kustomization = {"resources": ["engine.yaml"], "components": ["k3/kubernetes/components/kimi-k3"]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found: dict = yaml.safe_load(done.stdout)
    return found


def engine(kind: str) -> dict:
    apps = {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "kimi-k3", "namespace": "llm"}, "spec": {
        "replicas": 2, "selector": {"matchLabels": {"app": "kimi-k3"}}, "template": TEMPLATE}}  # fmt: skip
    if kind == "StatefulSet":
        apps["spec"]["serviceName"] = "kimi-k3"
    if kind != "LeaderWorkerSet":
        return apps
    templates = {"size": 2, "leaderTemplate": TEMPLATE, "workerTemplate": TEMPLATE}
    spec = {"replicas": 2, "leaderWorkerTemplate": templates}
    return {**apps, "apiVersion": "leaderworkerset.x-k8s.io/v1", "spec": spec}


def containers(spec: dict) -> tuple[dict, dict]:
    """Sidecar and engine of a pod; what the engine had is still there."""
    names = [item["name"] for item in spec["initContainers"]]
    assert sorted(names) == ["fetch", "k3observe"]
    assert {item["name"] for item in spec["volumes"]} >= {"shm"}
    main = spec["containers"][0]
    assert (main["image"], main["args"]) == ("vllm/vllm-openai:v0.33.0", ["moonshotai/Kimi-K3"])
    assert main["ports"] == [{"name": "http", "containerPort": 8000, "protocol": "TCP"}]
    assert {"name": "HF_HOME", "value": "/models"} in main["env"]
    return spec["initContainers"][names.index("k3observe")], main


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_an_existing_object_gets_the_sidecar_and_keeps_what_it_had(
    rendered: Render, kubectl: Path, tmp_path: Path, kind: str
) -> None:
    bundle = rendered(stack({"discovery": {"kubernetes": {"workload": {"kind": kind}}}}), "kubernetes")
    found = patched(kubectl, tmp_path, bundle, engine(kind))
    assert problems([found], "1.30") == []
    spec = found["spec"]["template"]["spec"]
    sidecar, main = containers(spec)
    assert sidecar["restartPolicy"] == "Always"
    assert spec["runtimeClassName"] == "nvidia"
    assert {"name": "VLLM_LOGGING_CONFIG_PATH", "value": "/etc/k3observe/logging.json"} in main["env"]
    mount = {item["mountPath"]: item for item in sidecar["volumeMounts"]}
    assert mount["/var/log/k3observe"]["readOnly"] is True
    assert "readOnly" not in {item["mountPath"]: item for item in main["volumeMounts"]}["/var/log/k3observe"]


def test_the_sidecar_of_a_leader_adds_up_the_windows_of_its_workers(
    rendered: Render, kubectl: Path, tmp_path: Path
) -> None:
    service = {
        "engine": {"args": {"data_parallel": 2}}, "sidecar": {"experts": {"source": "plugin"}},
        "discovery": {"kubernetes": {"workload": {"kind": "LeaderWorkerSet", "size": 3}}},
    }  # fmt: skip
    found = patched(kubectl, tmp_path, rendered(stack(service), "kubernetes"), engine("LeaderWorkerSet"))
    templates = found["spec"]["leaderWorkerTemplate"]
    leader, main = containers(templates["leaderTemplate"]["spec"])
    worker, _ = containers(templates["workerTemplate"]["spec"])
    assert {"name": "K3OBSERVE_EXPERTS_DIR", "value": "/run/k3observe-experts"} in main["env"]
    peers = [flag for flag in leader["args"] if flag.startswith("--experts.peer")]
    assert peers == [f"--experts.peer=http://$(POD_NAME)-{n}.kimi-k3.$(POD_NAMESPACE):19303" for n in (1, 2)]
    assert "--experts.window-only" in worker["args"]
    assert "--collect=gpu,experts" in worker["args"], "a pod without an API has no metrics to read"
    assert not [flag for flag in worker["args"] if flag.startswith(("--kv-cache", "--experts.peer"))]


def test_the_sidecar_never_holds_an_engine_back(rendered: Render) -> None:
    patch = yaml.safe_load(rendered(stack(), "kubernetes")["kubernetes/components/kimi-k3/patch.yaml"])
    sidecar = patch["spec"]["template"]["spec"]["initContainers"][0]
    assert sidecar["livenessProbe"]["httpGet"]["path"] == "/-/healthy", "which touches no device"
    assert "startupProbe" not in sidecar, "the engine would wait for it"
    assert "readinessProbe" not in sidecar, "the engine would be taken out of service with it"


def test_gpus_are_read_without_rights_and_npus_as_the_driver_demands(rendered: Render) -> None:
    def sidecar(service: dict, **kubernetes: object) -> dict:
        bundle = rendered(stack(service, {"kubernetes": kubernetes}), "kubernetes")
        spec: dict = yaml.safe_load(bundle["kubernetes/components/kimi-k3/snippet.yaml"])["spec"]
        return spec

    gpu = sidecar({})["initContainers"][0]
    assert gpu["securityContext"]["runAsNonRoot"] is True
    assert gpu["securityContext"]["readOnlyRootFilesystem"] is True
    assert gpu["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"} in gpu["env"]
    assert gpu["env"][-1]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.annotations['k3observe.io/devices']"
    claim = sidecar({}, devices="claim", claim="gpus")
    assert claim["initContainers"][0]["resources"]["claims"] == [{"name": "gpus"}]
    assert "env" not in claim["initContainers"][0], "the claim alone says which devices"
    assert "runtimeClassName" not in claim
    spec = sidecar({"engine": {"name": "vllm-ascend", "version": "0.23"}, "sidecar": {"collect": ["npu"]},
                    "accelerators": {"kind": "ascend", "per_node": 16}})  # fmt: skip
    npu = spec["initContainers"][0]
    assert npu["securityContext"]["privileged"] is True
    assert {item["hostPath"]["path"] for item in spec["volumes"]} == {
        "/usr/local/Ascend/driver", "/usr/local/dcmi", "/usr/local/bin/npu-smi"}
    assert "--npu.expected=16" in npu["args"]
    assert "runtimeClassName" not in spec


def test_the_flags_are_those_of_the_real_program(rendered: Render) -> None:
    from k3observe.exporters import flags
    from k3observe.exporters.experts import collector

    for service in (
        {}, {"sidecar": {"experts": {"source": "plugin"}}},
        {"engine": {"name": "mindie", "version": None, "args": None}, "accelerators": {"kind": "ascend"},
         "sidecar": {"collect": ["npu", "kv-cache"]}},
        {"sidecar": {"experts": {"source": "file", "path": "/counts/k3.json"}}},
        {"sidecar": {"experts": {"source": "http", "url": "http://127.0.0.1:9000/counts"}}},
        {"engine": {"name": "sglang", "version": "0.5.23"}, "sidecar": {"experts": {"source": "metrics"}}},
    ):  # fmt: skip
        bundle = rendered(stack(service), "kubernetes")
        spec = yaml.safe_load(bundle["kubernetes/components/kimi-k3/snippet.yaml"])["spec"]
        args = flags.parse(spec["initContainers"][0]["args"], {})
        if "experts" in args.collect:
            import logging

            assert collector.from_args(args, logging.getLogger()).name == "experts"


def test_an_engine_s_usual_port_is_assumed(rendered: Render) -> None:
    for engine, version, expected in (("vllm", "0.33", 8000), ("sglang", "0.5.23", 30000), ("mindie", None, 1027)):
        service = {"engine": {"name": engine, "version": version}, "discovery": {"kubernetes": {"port": None}},
                   "sidecar": {"collect": ["kv-cache"]}}  # fmt: skip
        bundle = rendered(stack(service), "kubernetes")
        spec = yaml.safe_load(bundle["kubernetes/components/kimi-k3/snippet.yaml"])["spec"]
        assert spec["containers"][0]["ports"] == [{"containerPort": expected, "protocol": "TCP"}]
        assert f"--kv-cache.url=http://127.0.0.1:{expected}/metrics" in spec["initContainers"][0]["args"]
        monitor = next(yaml.safe_load_all(bundle["kubernetes/podmonitors.yaml"]))
        assert monitor["spec"]["podMetricsEndpoints"][0]["portNumber"] == expected
