"""Let a program of Debian's Alertmanager run from any folder, though it looks for its templates below /usr/share.

Debian's build opens `/usr/share/prometheus/alertmanager/default.tmpl` at its start (upstream's has it built in), and
that folder is compiled in. The copy made here has the folder's name replaced by one of the same length that leads
through file descriptor 9, and a script in front that opens the right folder as descriptor 9.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_COMPILED_IN = b"/usr/share/prometheus/alertmanager"
_DESCRIPTOR = b"/proc/self/fd/9/"
_REPLACED = _DESCRIPTOR + b"./" * ((len(_COMPILED_IN) - len(_DESCRIPTOR)) // 2)
_SCRIPT = """\
#!/bin/sh
files=$(dirname "$(readlink -f "$0")")/.files
exec 9<"$files/templates"
exec "$files/{name}" "$@"
"""


def data_folder(root: Path) -> Path | None:
    """Return the templates of an unpacked package, None where it has none."""
    folder = root / os.fsdecode(_COMPILED_IN).lstrip("/")
    return folder if folder.is_dir() else None


def relocate(program: Path, data: Path, target: Path) -> None:
    """Put the program at `target`, its copy and its data into the folder `.files` beside it."""
    files = target.with_name(".files")
    shutil.copytree(data, files / "templates", dirs_exist_ok=True)
    _write(files / target.name, program.read_bytes().replace(_COMPILED_IN, _REPLACED))
    _write(target, _SCRIPT.format(name=target.name).encode())


def _write(path: Path, content: bytes) -> None:
    """Write an executable under another name first: a killed run leaves no half program."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(content)
    partial.chmod(0o755)
    os.replace(partial, path)
