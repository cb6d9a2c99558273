"""The entry point, and the import hook that waits until vLLM itself loads its load balancer in this process.

vLLM calls the entry point in every process (API server, engine core, workers, model inspection), perhaps more than
once, and does not guard the call. Only workers import the target, and only there anything is changed; the API server
does not pay for the import. Nothing is decided by which process this is, as a forked worker inherits what was set up
in its parent.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from k3observe.exporters.vllm_plugin.settings import Settings, from_environment

TARGET = "vllm.distributed.eplb.eplb_state"

log = logging.getLogger("vllm.plugins.k3observe_experts")
"""Below ``vllm``, whose handlers and level it takes: other loggers have no handler in an engine."""


def register() -> None:
    """Arrange that expert loads are published, where ``K3OBSERVE_EXPERTS_DIR`` is set. Never raises."""
    try:
        settings = from_environment()
        if settings is None:
            return
        if TARGET in sys.modules:
            _patch(sys.modules[TARGET], settings)
        elif not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
            sys.meta_path.insert(0, _AfterImport(settings))
    except ValueError as error:
        log.warning("expert loads are not published: %s", error)
    except Exception:
        log.exception("expert loads are not published")


def _patch(module: ModuleType, settings: Settings) -> None:
    """Wrap the load balancer of ``module``. Never raises: the engine runs on without the plugin."""
    try:
        from k3observe.exporters.vllm_plugin import patch

        patch.patch(module, settings)
    except Exception:
        log.exception("expert loads are not published")


class _AfterImport(MetaPathFinder):
    """Finds the target as the other finders do, and patches it as soon as its code has run."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != TARGET:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(fullname, path, target) if find else None
            if spec is not None:
                self._follow(spec)
                return spec
        return None

    def _follow(self, spec: ModuleSpec) -> None:
        loader = spec.loader
        if loader is None:
            return
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _patch(module, self._settings)

        try:
            loader.exec_module = exec_module  # type: ignore[method-assign]
        except AttributeError:
            log.warning("expert loads are not published: the loader of %s cannot be followed", TARGET)
