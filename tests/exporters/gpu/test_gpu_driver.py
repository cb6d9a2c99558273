"""Drivers and libraries that are missing, old, broken, replaced, and come back; events; MIG; chosen devices."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.exporters.gpu.conftest import Machine, Scrape

OLD_BINDING = """
import pynvml
for name, function in list(vars(pynvml).items()):
    if hasattr(function, "__wrapped__"):
        setattr(pynvml, name, function.__wrapped__)
from k3observe.exporters.main import main
main()
"""
"""The binding as it was before it decoded strings: bytes come out of every call."""

PARENT, CHILDREN = "GPU-4b330000-0000-4000-8000-000000000000", "MIG-4b330000-{:04x}-5000-9000-000000000000"


def _read(scrape: Scrape) -> bool:
    rows = scrape.rows("k3_accelerator_read_success")
    return len(rows) >= (scrape.value("k3_accelerators_visible") or 1) and all(value == 1 for _, value in rows)


def test_without_a_library_the_process_serves_says_so_once_finds_one_that_appears_and_outlives_its_removal(
    machine: Machine,
) -> None:
    machine.uninstall()
    exporter = machine.run()
    scrape = exporter.scrape_when(lambda s: s.value("k3_source_up", collector="gpu") == 0)
    assert scrape.rows("k3_accelerators_visible") == []
    assert exporter.get("/-/ready")
    exporter.scrape_when(
        lambda s: s.value("k3_source_errors_total", collector="gpu", reason="library_not_found") >= 2)
    assert exporter.log().count("no libnvidia-ml.so.1") == 1
    machine.install()
    exporter.scrape_when(lambda s: s.value("k3_accelerators_visible") == 8 and _read(s))
    assert exporter.scrape().value("k3_source_up", collector="gpu") == 1
    machine.uninstall()  # it is loaded once: what is on disk later does not matter, a new attachment included
    machine.set({"epoch": 2, "gpu.7.temperature": 77})
    exporter.scrape_when(lambda s: _read(s) and s.card(7, "temperature_celsius") == 77)


def test_a_driver_that_refuses_to_tell_its_version_and_every_error_of_a_card_cost_nothing_else(
    machine: Machine,
) -> None:
    errors = ("25", "TIMEOUT", "NO_PERMISSION", "IN_USE", "77", "-5", "INSUFFICIENT_POWER")
    machine.set({f"gpu.{card}.error": error for card, error in enumerate(errors)}
                | {"error.nvmlSystemGetDriverVersion": "NO_PERMISSION"})
    exporter = machine.run()
    scrape = exporter.scrape_when(
        lambda s: len(s.rows("k3_accelerator_read_success")) == 8 and s.card(7, "read_success"))
    assert scrape.value("k3_source_up", collector="gpu") == 1
    assert scrape.value("k3_accelerators_visible") == 8
    assert [row[1] for row in scrape.rows("k3_accelerator_read_success")].count(0) == 7
    assert scrape.rows("k3_accelerator_info")[0][0]["driver"] == ""
    assert "Traceback" not in exporter.log()


def test_a_driver_replaced_under_the_exporter_asks_for_a_restart(machine: Machine) -> None:
    machine.set({"error.nvmlInitWithFlags": "LIB_RM_VERSION_MISMATCH"})
    exporter = machine.run()
    scrape = exporter.scrape_when(lambda s: s.value("k3_source_up", collector="gpu") == 0)
    assert scrape.value("k3_source_errors_total", reason="lib_rm_version_mismatch") >= 1
    exporter.says("restart it")


def test_a_driver_that_is_unloaded_takes_all_values_away_and_its_next_load_is_attached_with_events(
    machine: Machine,
) -> None:
    exporter = machine.run()
    exporter.scrape_when(_read)
    machine.set({"error": "DRIVER_NOT_LOADED"})
    scrape = exporter.scrape_when(lambda s: s.value("k3_source_up", collector="gpu") == 0)
    assert scrape.rows("k3_accelerator_memory_total_bytes") == []
    assert scrape.rows("k3_accelerators_visible") == []
    assert {value for _, value in scrape.rows("k3_accelerator_read_success")} == {0}
    exporter.says("kernel driver is not loaded")
    machine.set({"error": None, "epoch": 2})
    exporter.scrape_when(_read)
    machine.set({"gpu.4.xid": 79})
    exporter.scrape_when(lambda s: s.card(4, "xid_errors_total", xid="79") == 1)


@pytest.mark.parametrize("error", ["UNINITIALIZED", "UNKNOWN"])
def test_an_attachment_that_was_lost_is_made_again(machine: Machine, error: str) -> None:
    exporter = machine.run()
    exporter.scrape_when(_read)
    if error == "UNINITIALIZED":
        machine.set({"epoch": 5})
    else:
        machine.set({"error": "UNKNOWN"})
        exporter.scrape_when(lambda s: s.value("k3_source_up", collector="gpu") == 0)
        machine.set({"error": None})
    machine.set({"gpu.7.temperature": 77})
    scrape = exporter.scrape_when(lambda s: _read(s) and s.card(7, "temperature_celsius") == 77)
    assert scrape.value("k3_accelerators_visible") == 8


def test_a_driver_that_hangs_while_it_is_attached_is_told_and_does_not_keep_the_process(machine: Machine) -> None:
    machine.set({"sleep.nvmlInitWithFlags": 600_000})
    exporter = machine.run()
    scrape = exporter.scrape_when(lambda s: s.value("k3_source_up", collector="gpu") == 0)
    assert scrape.value("k3_source_errors_total", reason="deadline") == 1
    assert exporter.end() < 1


def test_a_driver_older_than_r510_counts_reserved_memory_as_used_and_the_log_says_so(machine: Machine) -> None:
    machine.set({"error.nvmlDeviceGetMemoryInfo_v2": "FUNCTION_NOT_FOUND", "gpu.memory.used": 1000,
                 "error.nvmlDeviceGetTemperatureV": "FUNCTION_NOT_FOUND",
                 "error.nvmlDeviceGetCurrentClocksEventReasons": "FUNCTION_NOT_FOUND",
                 "error.nvmlDeviceGetFieldValues": "FUNCTION_NOT_FOUND", "gpu.throttle": 8})
    exporter = machine.run()
    scrape = exporter.scrape_when(_read)
    assert scrape.card(0, "memory_used_bytes") == 635437056 + 1000
    assert scrape.card(0, "memory_reserved_bytes") is None
    assert scrape.card(0, "temperature_celsius") == 35
    assert scrape.card(0, "throttled", reason="hw_slowdown") == 1
    exporter.says("older than R510")
    assert exporter.log().count("older than R510") == 1


@pytest.mark.parametrize("script", [None, OLD_BINDING], ids=["str", "bytes"])
def test_names_that_are_not_utf8_are_served_whatever_the_binding_gives(machine: Machine, script: str | None) -> None:
    machine.set({"gpu.0.name": r"NVIDIA \xff\xfeH200", "gpu.1.name": r"\xe8\x8b\xb1 \x22x\x22",
                 "gpu.3.bus": r"\xff:00", "driver": r"580\xff"})
    exporter = machine.run(**({"script": script} if script else {}))
    scrape = exporter.scrape_when(_read)
    products = [labels["product"] for labels, _ in scrape.rows("k3_accelerator_info")]
    assert products[:3] == ["NVIDIA \ufffd\ufffdH200", r"英 \"x\"", "NVIDIA H200"]
    assert scrape.rows("k3_accelerator_info", device="3")[0][0]["bus"] == "\ufffd:00"
    assert scrape.rows("k3_accelerator_info", device="2")[0][0]["uuid"] == "GPU-4b330000-0000-4000-8000-000000000002"


def test_the_first_xid_of_a_card_is_an_increase_and_repeated_ones_add_up(machine: Machine) -> None:
    machine.set({"gpu.2.xid": "63"})
    exporter = machine.run()
    scrape = exporter.scrape_when(lambda s: _read(s) and s.rows("k3_accelerator_xid_errors_total", device="7"))
    assert {int(labels["xid"]): value for labels, value in scrape.rows("k3_accelerator_xid_errors_total", device="2")
            } == dict.fromkeys((48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140), 0)
    machine.set({"gpu.2.xid": "63 79 79 31", "gpu.3.xid": "48"})
    scrape = exporter.scrape_when(lambda s: s.card(2, "xid_errors_total", xid="31") == 1)
    assert scrape.card(2, "xid_errors_total", xid="79") == 2
    scrape = exporter.scrape_when(lambda s: s.card(3, "xid_errors_total", xid="48") == 1)
    exporter.says("GPU GPU-4b330000-0000-4000-8000-000000000002: XID 79")


def test_events_go_on_after_waiting_for_them_failed(machine: Machine) -> None:
    exporter = machine.run()
    exporter.scrape_when(_read)
    machine.set({"error.nvmlEventSetWait_v2": "GPU_IS_LOST"})
    exporter.scrape_when(lambda s: s.value("k3_source_errors_total", reason="xid_wait") >= 1)
    assert exporter.scrape().value("k3_source_up", collector="gpu") == 1
    machine.set({"error.nvmlEventSetWait_v2": None})
    sent: list[str] = []

    def heard(scrape: Scrape) -> bool:
        if len(sent) < 60:
            sent.append("79")
            machine.set({"gpu.1.xid": " ".join(sent)})
        return (scrape.card(1, "xid_errors_total", xid="79") or 0) > 0

    exporter.scrape_when(heard)


def test_a_platform_without_events_has_no_xid_series_and_no_failure(machine: Machine) -> None:
    machine.set({"error.nvmlDeviceRegisterEvents": "NOT_SUPPORTED"})
    scrape = machine.run().scrape_when(_read)
    assert scrape.rows("k3_accelerator_xid_errors_total") == []
    assert scrape.value("k3_source_errors_total", reason="xid_wait") == 0


def test_mig_instances_have_their_own_memory_under_their_parents_uuid(machine: Machine) -> None:
    machine.set({"cards": "0 1", "gpu.0.mig": 1, "gpu.0.mig.instances": "1 4", "gpu.0.mig.4.memory.used": 9_000_000})
    exporter = machine.run()
    scrape = exporter.scrape_when(lambda s: _read(s) and len(s.rows("k3_accelerator_read_success")) == 4)
    used = {labels["device"]: value for labels, value in scrape.rows("k3_accelerator_memory_used_bytes", uuid=PARENT)}
    assert used == {"0/1": 0, "0/4": 9_000_000}
    assert scrape.rows("k3_accelerator_utilization_ratio", uuid=PARENT) == []
    assert scrape.value("k3_accelerator_power_watts", device="0") == 120
    assert scrape.value("k3_accelerators_visible") == 2
    machine.set({"gpu.0.mig.instances": "4"})
    scrape = exporter.scrape_when(lambda s: len(s.rows("k3_accelerator_read_success")) == 3)
    assert not scrape.rows("k3_accelerator_read_success", device="0/1")
    machine.set({"gpu.0.mig": None, "gpu.0.mig.instances": None})
    scrape = exporter.scrape_when(lambda s: s.rows("k3_accelerator_memory_used_bytes", device="0"))
    assert not scrape.rows("k3_accelerator_read_success", device="0/4")
    machine.set({"gpu.0.mig": 1, "gpu.0.mig.instances": "1"})
    scrape = exporter.scrape_when(lambda s: s.rows("k3_accelerator_memory_used_bytes", device="0/1"))
    assert not scrape.rows("k3_accelerator_memory_used_bytes", device="0")
    assert sum(value for _, value in scrape.rows("k3_accelerator_read_errors_total")) == 0


@pytest.mark.parametrize("refused", ["deny", "error.nvmlDeviceGetMigMode"])
def test_mig_parents_that_a_container_may_not_ask_are_no_failure(machine: Machine, refused: str) -> None:
    value = 1 if refused == "deny" else "NO_PERMISSION"
    machine.set({"cards": "0", "gpu.0.mig": 1, "gpu.0.mig.instances": "2", "gpu.0.deny": 1, f"gpu.0.{refused}": value})
    scrape = machine.run().scrape_when(lambda s: len(s.rows("k3_accelerator_read_success")) == 2)
    assert _read(scrape)
    assert sum(value for _, value in scrape.rows("k3_accelerator_read_errors_total")) == 0
    assert scrape.value("k3_accelerator_memory_total_bytes", device="0/2") == 18844352512


def test_a_card_without_instances_that_refuses_everything_is_a_failure(machine: Machine) -> None:
    machine.set({"cards": "0", "gpu.0.deny": 1, "gpu.0.error.nvmlDeviceGetMigMode": "NO_PERMISSION"})
    scrape = machine.run().scrape_when(lambda s: s.rows("k3_accelerator_read_success"))
    assert scrape.value("k3_accelerator_read_success", device="0") == 0


def test_only_the_named_cards_and_instances_are_answered_for(machine: Machine) -> None:
    machine.set({"gpu.0.mig": 1, "gpu.0.mig.instances": "1 4"})
    gone, card = "GPU-00000000-0000-0000-0000-00000000dead", "GPU-4b330000-0000-4000-8000-000000000005"
    exporter = machine.run("--gpu.devices", f"{card},{CHILDREN.format(4)},{gone}")
    scrape = exporter.scrape_when(lambda s: s.value("k3_accelerators_visible") is not None)
    assert {(labels["device"], labels["uuid"]): value for labels, value
            in scrape.rows("k3_accelerator_read_success")} == {("0/4", PARENT): 1, ("5", card): 1, ("", gone): 0}
    assert (scrape.value("k3_accelerators_visible"), scrape.value("k3_accelerators_expected")) == (2, 3)
    machine.set({"gpu.5.error": "GPU_IS_LOST", "gpu.6.error": "GPU_IS_LOST"})
    exporter.scrape_when(lambda s: s.value("k3_accelerators_visible") == 1)


@pytest.mark.parametrize(("flags", "says"), [
    (("--gpu.devices", "0,1"), "'0' is no UUID"), (("--gpu.devices", ","), "names no device"),
    (("--gpu.expected", "-1"), "between 0 and 256"), (("--gpu.interval", "0"), "between")])
def test_flags_that_cannot_be_meant_end_with_2_and_one_line(flags: tuple[str, ...], says: str) -> None:
    done = subprocess.run([sys.executable, "-m", "k3observe.exporters.main", "--collect", "gpu", *flags],
                          capture_output=True, text=True, timeout=20)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_an_attachment_that_hangs_takes_the_values_of_all_cards_away(machine: Machine) -> None:
    exporter = machine.run()
    exporter.scrape_when(_read)
    machine.set({"epoch": 2, "sleep.nvmlInitWithFlags": 600_000})
    exporter.scrape_when(lambda s: s.card(7, "read_success") == 0 and s.value("k3_source_up") == 0)
    exporter.scrape_when(lambda s: not s.rows("k3_accelerator_memory_used_bytes"))
    machine.set({"sleep.nvmlInitWithFlags": None, "gpu.7.memory.used": 9})
    exporter.scrape_when(lambda s: s.card(7, "memory_used_bytes") == 9)
