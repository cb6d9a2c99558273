"""Whenever a render is killed, the folder is exactly the old or exactly the new bundle after one further command."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from k3observe import bundle
from tests.bundle.test_write import NEW, OLD, contents

STEPS = ("replace", "unlink", "rmdir", "mkdir", "fsync", "open")
"""Calls of os that change the disk, or come right before or after what does."""


def child(work: Callable[[], None]) -> int:
    """Run in a fork of this process, whose modules are loaded already; return its id."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid


def tree(root: Path) -> dict[str, bytes | None]:
    """All files, and the folders too, as None."""
    return {str(p.relative_to(root)): p.read_bytes() if p.is_file() else None for p in root.rglob("*")}


@pytest.fixture
def ends(tmp_path: Path) -> tuple[dict[str, bytes | None], dict[str, bytes | None]]:
    """What the folder looks like with the old and with the new bundle."""
    for name, files in (("old", OLD), ("new", NEW)):
        bundle.write(tmp_path / name, files)
    return tree(tmp_path / "old"), tree(tmp_path / "new")


def dying_at(step: int, root: Path) -> Callable[[], None]:
    """A render that dies right before its ``step``-th call that changes the disk."""
    def work() -> None:
        left = step

        def mortal(call: Callable[..., Any]) -> Callable[..., Any]:
            def called(*arguments: Any, **options: Any) -> Any:
                nonlocal left
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*arguments, **options)

            return called

        for name in STEPS:
            setattr(os, name, mortal(getattr(os, name)))
        bundle.write(root, NEW)

    return work


def deaths(root: Path) -> Iterator[int]:
    """Kill a render of NEW over OLD at every step; yield after each, until one lives to its end."""
    for step in range(1_000):
        shutil.rmtree(root, ignore_errors=True)
        bundle.write(root, OLD)
        status = os.waitpid(child(dying_at(step, root)), 0)[1]
        if os.waitstatus_to_exitcode(status) == 0:
            return
        yield step
    pytest.fail("the render never came to an end")


def test_killed_before_any_of_its_steps_a_render_is_undone_or_completed(
    tmp_path: Path, ends: tuple[dict[str, bytes | None], dict[str, bytes | None]]
) -> None:
    old, new = ends
    root = tmp_path / "bundle"
    outcomes = []
    for step in deaths(root):
        bundle.recover(root)
        found = tree(root)
        assert found in (old, new), f"killed before step {step}"
        outcomes.append(found == new)
    assert outcomes == sorted(outcomes), "once decided for the new bundle, never back"
    assert len(outcomes) > 20
    assert {False, True} == set(outcomes)


def test_killed_while_it_completes_what_another_left_it_is_still_completed(
    tmp_path: Path, ends: tuple[dict[str, bytes | None], dict[str, bytes | None]]
) -> None:
    old, new = ends
    root = tmp_path / "bundle"
    for step in deaths(root):
        if step % 3:
            continue
        for second in range(0, 12, 3):
            os.waitpid(child(dying_at(second, root)), 0)
        bundle.recover(root)
        assert tree(root) in (old, new), f"killed before step {step}"


def test_a_first_render_that_is_killed_leaves_nothing_or_all(tmp_path: Path) -> None:
    bundle.write(tmp_path / "new", NEW)
    new = tree(tmp_path / "new")
    root = tmp_path / "bundle"
    for step in range(1_000):
        shutil.rmtree(root, ignore_errors=True)
        if os.waitstatus_to_exitcode(os.waitpid(child(dying_at(step, root)), 0)[1]) == 0:
            break
        bundle.recover(root)
        assert not root.exists() or tree(root) in ({}, new)


def kills(root: Path, count: int, seed: int) -> None:
    """Kill, at random moments, a process that writes the two bundles in turn."""
    moments = random.Random(seed)
    bundle.write(root, OLD)
    old = contents(root)
    bundle.write(root, NEW)
    new = contents(root)

    def work() -> None:
        for _ in range(10_000):
            bundle.write(root, OLD)
            bundle.write(root, NEW)

    torn = 0
    for kill in range(count):
        pid = child(work)
        time.sleep(moments.uniform(0.001, 0.04))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        torn += bundle.unfinished(root)
        bundle.recover(root)
        assert contents(root) in (old, new), f"seed {seed}, kill {kill}"
        assert not bundle.unfinished(root)
    assert torn, "no kill came in the middle of a render"


def test_killed_at_random_moments_the_folder_is_the_old_or_the_new_bundle(tmp_path: Path) -> None:
    kills(tmp_path, 15, seed=1)


@pytest.mark.long
def test_killed_200_times_at_random_moments_the_folder_is_the_old_or_the_new_bundle(tmp_path: Path) -> None:
    kills(tmp_path, 200, seed=2)
