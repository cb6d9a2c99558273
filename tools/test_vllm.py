"""The expert-load plugin in vLLM's real code: ``make test-vllm``.

Downloads vLLM's wheels without their dependencies, a CPU build of torch and what vLLM's load balancer imports into
``.cache/vllm`` (about 5 GB), installs k3observe there as into an engine's image, and runs ``tools/vllm_ranks.py``
for each version. Exits 1 when a count differs from what was routed, the engine's state differs from a run without the
plugin, or the engine is hurt by a fault of the plugin. Not part of CI.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "vllm"
VERSIONS = ("0.33.0", "0.28.0", "0.20.2", "0.14.1")
TORCH = "torch==2.13.0"
IMPORTS = (
    "numpy", "packaging", "psutil", "pyzmq", "urllib3", "regex", "pydantic", "cbor2", "transformers", "aiohttp",
    "requests", "openai_harmony", "openai", "pillow", "pybase64", "cachetools", "msgspec", "cloudpickle", "uvloop",
    "py-cpuinfo", "prometheus_client", "xgrammar", "fastapi", "partial_json_parser", "llguidance", "gguf", "blake3",
    "setuptools>=77",
)
COMPARED = ("sync", "sync-logged", "observe-only")
ALL = (*COMPARED, "async", "async-logged", "raising", "missing", "short-window")
WORLD, LOCAL = 4, 5


def _python() -> Path:
    """Return the interpreter of the environment, made on first use."""
    python = CACHE / "venv-torch" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", CACHE / "venv-torch"], check=True)
    known = subprocess.run([python, "-c", "import torch, transformers, gguf, xgrammar, blake3"], capture_output=True)
    if known.returncode:
        _pip(python, TORCH)
        _pip(python, TORCH, *IMPORTS)
    return python


def _pip(python: Path, *arguments: str) -> None:
    subprocess.run([python, "-m", "pip", "install", "-q", *arguments], check=True)


def _install(python: Path) -> None:
    """Install this tree as ``pip install --no-deps k3observe`` does, from a copy, so that nothing is built in it."""
    package = CACHE / "package"
    shutil.rmtree(package, ignore_errors=True)
    package.mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, package)
    shutil.copytree(ROOT / "k3observe", package / "k3observe", ignore=shutil.ignore_patterns("__pycache__"))
    _pip(python, "--no-deps", "--no-build-isolation", "--force-reinstall", str(package))


def _unpacked(version: str, python: Path) -> Path:
    """Return the folder of vLLM's Python files; compiled parts are left out, as the load balancer needs none."""
    folder = CACHE / "src" / version
    if (folder / "vllm" / "__init__.py").exists():
        return folder
    wheels = CACHE / "wheels"
    subprocess.run(
        [python, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "--dest", wheels,
         f"vllm=={version}"], check=True)
    with zipfile.ZipFile(next(wheels.glob(f"vllm-{version}-*.whl"))) as wheel:
        for item in wheel.infolist():
            if not item.filename.endswith(".so") and item.file_size < 5_000_000:
                wheel.extract(item, folder)
    return folder


def _run(python: Path, source: Path, plugin: str, scenarios: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    directory = CACHE / "published"
    shutil.rmtree(directory, ignore_errors=True)
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("VLLM_", "K3OBSERVE_"))},
        "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "VLLM_TARGET_DEVICE": "cpu", "VLLM_NO_USAGE_STATS": "1"}
    if not (CACHE / "tools").exists():
        (CACHE / "tools").symlink_to(ROOT / "tools")  # importable there without this tree's k3observe
    log = CACHE / f"{source.name}-{plugin}.log"
    with log.open("w") as errors:
        done = subprocess.run(
            [python, "-m", "tools.vllm_ranks", directory, plugin, *scenarios],
            env=environment, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=1800, cwd=CACHE)
    lines = [line.partition("RESULT ")[2] for line in done.stdout.splitlines() if "RESULT " in line]
    results = {result["scenario"]: result for result in map(json.loads, lines)}
    if done.returncode or set(results) != set(scenarios):
        print(f"  ended with {done.returncode}: see {log}")
    return results


def _added(ranks: list[dict[str, Any]], key: str) -> list[list[int]]:
    return [[sum(column) for column in zip(*rows, strict=True)]
            for rows in zip(*(rank[key] for rank in ranks), strict=True)]


def _said(result: dict[str, Any], text: str) -> bool:
    return any(text in line for line in (*result["lines"], *result["ranks"][0]["lines"]))


def _faults(name: str, result: dict[str, Any], alone: dict[str, dict[str, Any]]) -> list[str]:
    """Return what is wrong with one scenario."""
    ranks = result["ranks"]
    if any(rank is None or "digest" not in rank for rank in ranks):
        return [f"a rank died: {[rank and rank['errors'] for rank in ranks]}"]
    faults = [error for rank in ranks for error in rank["errors"]]
    if not all(rank["wrapped"] for rank in ranks) or not _said(result, "expert loads are published"):
        faults.append("the plugin was not loaded by vLLM")
    if result["imported_early"]:
        faults.append("loading the plugin imported the load balancer")
    if not all(rank["weights_follow_map"] for rank in ranks):
        faults.append("weights are not where the map says")
    partner = alone.get({"raising": "sync", "missing": "sync"}.get(name, name))
    if partner and [rank["digest"] for rank in ranks] != [rank["digest"] for rank in partner["ranks"]]:
        faults.append("the engine's state differs from the run without the plugin")
    if name == "short-window":
        return [*faults, *([] if _said(result, "must be below EPLB's window_size") else ["no line about the window"])]
    if name in ("raising", "missing"):
        return [*faults, *([] if _said(result, "no longer published") else ["it did not say that it is off"])]
    for number, rank in enumerate(ranks):
        if rank["right"] != rank["intervals"] or not rank["intervals"]:
            faults.append(f"rank {number}: {rank['right']} of {rank['intervals']} intervals equal what was routed")
    sent, sidecar = _added(ranks, "sent"), result["sidecar"]
    by_rank = [[sum(row[start:start + LOCAL]) for start in range(0, len(row), LOCAL)] for row in sent]
    if sidecar.get("rank") != by_rank or sidecar.get("fewest") != WORLD:
        seen = {key: sidecar.get(key) for key in ("fewest", "events")}
        faults.append(f"the sidecar's sums of ranks differ from what was routed: {sidecar.get('rank')} instead of "
                      f"{by_rank}, {seen}")
    if name.startswith(("sync", "observe")) and sidecar.get("expert") != _added(ranks, "chosen"):
        faults.append("the sidecar's logical experts differ from what was routed")
    if sidecar.get("layers") != list(range(1, 7)):
        faults.append(f"layers are {sidecar.get('layers')}")
    if bool(sidecar.get("rebalances")) == (name == "observe-only"):
        faults.append(f"{sidecar.get('rebalances', 0)} rearrangements were seen")
    return faults


def _figures(name: str, ranks: list[dict[str, Any]]) -> str:
    text = ""
    if name not in ("raising", "missing", "short-window"):
        text += f"; intervals equal to what was routed {[rank['right'] for rank in ranks]}"
        text += f", of which with one map {[rank['mapped'] for rank in ranks]}"
    text += f"; steps that vLLM did not count {[rank['blind'] for rank in ranks]}"
    return text + ("; state as without the plugin" if name in (*COMPARED, "raising", "missing") else "")


def main() -> int:
    """Run every scenario on every version asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    options = parser.parse_args()
    python = _python()
    _install(python)
    failed = False
    for version in options.versions:
        source = _unpacked(version, python)
        print(f"vLLM {version}", flush=True)
        alone = _run(python, source, "none", COMPARED)
        with_plugin = _run(python, source, "on", ALL)
        for name in ALL:
            faults = _faults(name, with_plugin[name], alone) if name in with_plugin else ["it did not run"]
            failed |= bool(faults)
            if faults:
                print(f"  {name}: FAILED: " + "; ".join(faults), flush=True)
                continue
            print(f"  {name}: right" + _figures(name, with_plugin[name]["ranks"]), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
