from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

import pytest

from k3observe.cli.main import main

Run = Callable[..., "subprocess.CompletedProcess[str]"]

SMALLEST = """\
version: 1
stack: kimi-k3
services:
  - name: kimi-k3
    engine: {name: vllm, version: "0.33"}
    targets: ["10.0.0.1:8000", "10.0.0.2:8000"]
"""

# what every command would import first: half of its time
for _module in ("k3observe.cli.stack", "k3observe.render.bundle", "k3observe.lint.run", "k3observe.lint.configured"):
    importlib.import_module(_module)


@pytest.fixture
def k3observe(tmp_path: Path) -> Run:
    """The command in an empty folder, in a process of its own; whatever it is given, it shows no traceback.

    The process is a fork of this one, whose modules are loaded already; one with settings of Python itself is new.
    """

    def run(
        *arguments: str, stdin: str | bytes = "", env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write(stdin.encode() if isinstance(stdin, str) else stdin)
            given.seek(0)
            if any(name.startswith("PYTHON") for name in env or ()):
                command = [sys.executable, "-m", "k3observe", *arguments]
                code = subprocess.run(command, cwd=tmp_path, check=False, stdin=given, stdout=out, stderr=err,
                                      env={**os.environ, **(env or {})}).returncode  # fmt: skip
            else:
                code = _forked(arguments, tmp_path, env or {}, given, out, err)
            texts = []
            for stream in (out, err):
                stream.seek(0)
                texts.append(stream.read().decode(errors="replace"))
        assert "Traceback" not in texts[1], texts[1]
        return subprocess.CompletedProcess(arguments, code, *texts)

    return run


def _forked(
    arguments: tuple[str, ...], folder: Path, env: Mapping[str, str], given: IO[bytes], out: IO[bytes], err: IO[bytes]
) -> int:
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 70
    try:
        for stream, number in ((given, 0), (out, 1), (err, 2)):
            os.dup2(stream.fileno(), number)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode) for number, mode in ((0, "r"), (1, "w"), (2, "w")))
        os.chdir(folder)
        os.environ.update(env)
        main(arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The smallest useful configuration, where the commands look for it."""
    path = tmp_path / "k3observe.yaml"
    path.write_text(SMALLEST)
    return path
