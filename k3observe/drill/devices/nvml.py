"""A simulated NVIDIA driver: the C library beside this module, compiled on demand.

A process started with ``environment(folder, state)`` loads it in place of the real ``libnvidia-ml.so.1``; the state is
a file of ``key = value`` lines (the head of ``fake_nvml.c`` lists the keys) that may be replaced while it runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).with_name("fake_nvml.c")
STATE = Path(__file__).with_name("fake_nvml_state.h")
LIBRARY = "libnvidia-ml.so.1"


def build(folder: Path) -> Path:
    """Compile the library into ``folder`` and return its path; a build newer than the source is kept.

    Raises RuntimeError when there is no C compiler or it fails.
    """
    library = folder / LIBRARY
    if library.exists() and library.stat().st_mtime >= max(SOURCE.stat().st_mtime, STATE.stat().st_mtime):
        return library
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise RuntimeError("no C compiler (cc, gcc or clang) on PATH: install one to simulate GPUs")
    folder.mkdir(parents=True, exist_ok=True)
    built = folder / f"{LIBRARY}.{os.getpid()}"
    command = [compiler, "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread", f"-Wl,-soname,{LIBRARY}",
               "-o", str(built), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        raise RuntimeError(f"{compiler} cannot build {SOURCE.name}: {done.stderr.strip()[:2000]}")
    return built.replace(library)


def environment(folder: Path, state: Path) -> dict[str, str]:
    """Return the variables with which a new process loads the library in ``folder`` and reads ``state``."""
    inherited = os.environ.get("LD_LIBRARY_PATH")
    return {"LD_LIBRARY_PATH": f"{folder}:{inherited}" if inherited else str(folder), "K3_FAKE_NVML": str(state)}


def write(state: Path, settings: Mapping[str, object]) -> None:
    """Replace the state file in one step, so that a reader never sees half of it."""
    new = state.with_name(f".{state.name}.{os.getpid()}")
    new.write_text("".join(f"{key} = {value}\n" for key, value in settings.items()), encoding="utf-8")
    new.replace(state)
