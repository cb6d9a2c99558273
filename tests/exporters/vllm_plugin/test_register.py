from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from k3observe.exporters.vllm_plugin import patch, register, settings
from tests.exporters.vllm_plugin import balancer

ACTIVE = "expert loads are published to"


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "vllm.plugins.k3observe_experts"]


def refused(tmp_path: Path, caplog: pytest.LogCaptureFixture, old: str, new: str) -> str:
    source = balancer.SOURCE.replace(old, new)
    assert source != balancer.SOURCE
    (tmp_path / "site" / "vllm" / "distributed" / "eplb" / "eplb_state.py").write_text(source)
    register()
    module = balancer.load()
    assert not hasattr(module.EplbState.step, patch.MARK)
    assert len(lines(caplog)) == 1
    return lines(caplog)[0]


def test_importing_the_plugin_loads_the_standard_library_only() -> None:
    script = (
        "import sys; before = set(sys.modules)\n"
        "import k3observe.exporters.vllm_plugin.patch, k3observe.exporters.vllm_plugin\n"
        "new = {name for name in set(sys.modules) - before if name.split('.')[0] not in sys.stdlib_module_names}\n"
        "print(' '.join(sorted(name for name in new if not name.startswith('k3observe.exporters.vllm_plugin'))))")
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"k3observe", "k3observe.exporters", "k3observe.version"}


def test_without_a_directory_nothing_is_changed(worker: pytest.MonkeyPatch) -> None:
    worker.delenv("K3OBSERVE_EXPERTS_DIR")
    finders = list(sys.meta_path)
    register()
    assert sys.meta_path == finders


def test_registering_does_not_import_the_load_balancer_and_its_import_wraps_it(
    worker: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    register()
    register()
    assert "vllm" not in sys.modules
    module = balancer.load()
    assert hasattr(module.EplbState.step, patch.MARK)
    assert module.EplbState.step.__doc__ == "The docstring of the engine."
    assert [line for line in lines(caplog) if ACTIVE in line] == lines(caplog)
    assert len(lines(caplog)) == 1


def test_a_load_balancer_that_was_imported_before_is_wrapped_once(worker: pytest.MonkeyPatch) -> None:
    module = balancer.load()
    original = module.EplbState.step
    register()
    wrapped = module.EplbState.step
    register()
    assert module.EplbState.step is wrapped
    assert wrapped.__wrapped__ is original


def test_the_wrapper_of_another_plugin_on_top_does_not_hide_ours(worker: pytest.MonkeyPatch) -> None:
    import functools

    register()
    module = balancer.load()
    ours = module.EplbState.step

    @functools.wraps(ours)
    def theirs(self: object, *args: object, **kwargs: object) -> object:
        return ours(self, *args, **kwargs)

    module.EplbState.step = theirs
    register()
    assert module.EplbState.step is theirs


def test_a_wrapper_of_another_plugin_below_is_kept(worker: pytest.MonkeyPatch) -> None:
    import functools

    module = balancer.load()
    inner, calls = module.EplbState.step, []

    @functools.wraps(inner)
    def theirs(self: object, *args: object, **kwargs: object) -> object:
        calls.append(args)
        return inner(self, *args, **kwargs)

    module.EplbState.step = theirs
    register()
    engine = balancer.Engine(module)
    assert engine.step() == "stepped"
    assert len(calls) == 1


def test_a_step_with_another_signature_is_refused(
    worker: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    line = refused(tmp_path, caplog, "def step(self, is_dummy", "def step(self, model=None, is_dummy")
    assert "EplbState.step has the parameters self, model" in line


def test_a_state_without_a_window_is_refused(
    worker: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert "EplbModelState lacks expert_load_window" in refused(
        tmp_path, caplog, "    expert_load_window: Any\n", "")


def test_a_step_that_no_longer_uses_the_counter_is_refused(
    worker: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert "does not use expert_rearrangement_step" in refused(
        tmp_path, caplog, "self.expert_rearrangement_step ", "self.passes ")


def test_a_version_with_one_state_for_each_model_is_refused(
    worker: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert "0.11.1 or newer is needed" in refused(tmp_path, caplog, "class EplbModelState:", "class Other:")


@pytest.mark.parametrize(("variable", "value"), [
    ("K3OBSERVE_EXPERTS_STEPS", "0"), ("K3OBSERVE_EXPERTS_STEPS", "10s"), ("K3OBSERVE_EXPERTS_STEPS", "9" * 5000),
    ("K3OBSERVE_EXPERTS_DETAIL", "layer"), ("K3OBSERVE_EXPERTS_INSTANCE", "../../etc"),
])
def test_a_wrong_setting_is_named_and_the_engine_runs_without_the_plugin(
    worker: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, variable: str, value: str
) -> None:
    worker.setenv(variable, value)
    register()
    assert not hasattr(balancer.load().EplbState.step, patch.MARK)
    assert len(lines(caplog)) == 1
    assert variable in lines(caplog)[0]


def test_workers_inherit_the_name_of_the_engine_from_the_process_that_started_them() -> None:
    environment = {"K3OBSERVE_EXPERTS_DIR": "/run/experts"}
    first = settings.from_environment(environment)
    assert first is not None
    assert settings.from_environment(dict(environment)) == first
    other = settings.from_environment({"K3OBSERVE_EXPERTS_DIR": "/run/experts"})
    assert other is not None
    assert other.instance != first.instance
