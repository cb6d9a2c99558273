"""Cards that hang, get lost, move and heal under the running exporter."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.exporters.gpu.conftest import Machine, Scrape

VALUES = ("memory_total_bytes", "memory_used_bytes", "utilization_ratio", "temperature_celsius", "power_watts", "info")


def _settled(scrape: Scrape) -> bool:
    return len(scrape.rows("k3_accelerator_read_success")) == 8


def test_eight_healthy_cards_give_every_value_in_base_units_and_at_most_40_series_each(machine: Machine) -> None:
    machine.set({"gpu.links": 18, "gpu.recovery": 0, "gpu.3.memory.used": 100_000_000_000, "gpu.3.utilization": 87,
                 "gpu.3.temperature": 64, "gpu.3.power": 512_500, "gpu.3.ecc.corrected": 4, "gpu.3.throttle": 0x44})
    exporter = machine.run("--gpu.expected", "8")
    scrape = exporter.scrape_when(lambda s: s.value("k3_accelerators_visible") == 8 and _settled(s))
    assert exporter.get("/-/ready")
    card = {name: scrape.card(3, name) for name in (
        "read_success", "memory_total_bytes", "memory_used_bytes", "memory_reserved_bytes", "memory_free_bytes",
        "utilization_ratio", "temperature_celsius", "power_watts", "power_limit_watts", "health",
        "row_remap_failure")}
    assert card == {
        "read_success": 1, "memory_total_bytes": 150754820096, "memory_used_bytes": 100_000_000_000,
        "memory_reserved_bytes": 635437056, "memory_free_bytes": 150754820096 - 635437056 - 100_000_000_000,
        "utilization_ratio": 0.87, "temperature_celsius": 64, "power_watts": 512.5, "power_limit_watts": 700,
        "health": 1, "row_remap_failure": 0}
    assert scrape.card(3, "ecc_errors_total", type="corrected") == 4
    assert {labels["reason"] for labels, value in scrape.rows("k3_accelerator_throttled", device="3") if value} == {
        "sw_power_cap", "hw_thermal_slowdown"}
    assert scrape.card(3, "link_up", link="all") == 1
    assert scrape.rows("k3_accelerator_info", device="3")[0][0] == {
        "vendor": "nvidia", "device": "3", "uuid": "GPU-4b330000-0000-4000-8000-000000000003",
        "product": "NVIDIA H200", "driver": "580.95.05", "bus": "00000000:48:00.0"}
    assert scrape.value("k3_accelerators_expected") == 8
    assert scrape.value("k3_source_up", collector="gpu") == 1
    assert abs(scrape.card(3, "last_read_timestamp_seconds") - time.time()) < 10
    machine.set({"gpu.3.xid": " ".join(map(str, range(200, 220)))})
    scrape = exporter.scrape_when(lambda s: s.value("k3_accelerator_xid_errors_total", device="3", xid="other") == 18)
    series = [labels for _, labels, _ in scrape.samples if labels.get("device") == "3"]
    assert 36 <= len(series) <= 40
    assert "_created" not in scrape.text


def test_a_card_that_hangs_has_no_values_is_visible_and_delays_neither_scrapes_nor_the_other_cards(
    machine: Machine,
) -> None:
    exporter = machine.run()
    exporter.scrape_when(_settled)
    machine.set({"gpu.3.sleep": 600_000})
    scrape = exporter.scrape_when(lambda s: s.card(3, "read_success") == 0)
    assert [scrape.card(3, name) for name in VALUES] == [None] * len(VALUES)
    assert scrape.card(3, "read_errors_total", error="deadline") == 1
    assert scrape.value("k3_accelerators_visible") == 8
    machine.set({"gpu.5.memory.used": 5_000_000})
    started = time.monotonic()
    exporter.scrape_when(lambda s: s.card(5, "memory_used_bytes") == 5_000_000)
    exporter.scrape()
    assert time.monotonic() - started < 3
    exporter.says("GPU 3 (GPU-4b330000-0000-4000-8000-000000000003) does not answer: deadline")
    machine.set({"gpu.3.sleep": None, "gpu.3.memory.used": 7})
    scrape = exporter.scrape_when(lambda s: s.card(3, "read_success") == 1)
    assert scrape.card(3, "memory_used_bytes") == 7
    assert exporter.overlaps() == ""


def test_a_card_that_is_slow_with_each_call_is_not_served_with_its_late_values(machine: Machine) -> None:
    machine.set({"gpu.2.sleep": 300, "gpu.2.memory.used": 1})
    exporter = machine.run()
    scrape = exporter.scrape_when(
        lambda s: (s.value("k3_accelerator_read_errors_total", device="2", error="deadline") or 0) >= 3)
    assert scrape.value("k3_accelerator_read_success", device="2") == 0
    assert scrape.rows("k3_accelerator_memory_used_bytes", device="2") == []
    assert exporter.overlaps() == ""


def test_cards_that_hang_from_the_start_leave_the_exporter_ready_and_sigterm_ends_it_within_a_second(
    machine: Machine,
) -> None:
    machine.set({f"gpu.{card}.sleep": 600_000 for card in range(8)})
    exporters = [machine.run() for _ in range(2)]
    for exporter in exporters:
        scrape = exporter.scrape_when(_settled)
        assert scrape.value("k3_accelerators_visible") == 8
        assert exporter.get("/-/ready")
    assert min(exporter.end() for exporter in exporters) < 1  # one of the two, for a busy machine's sake


@pytest.mark.parametrize("how", ["gpu.6.error.nvmlDeviceGetHandleByIndex_v2", "gpu.6.error"])
def test_a_card_lost_before_the_start_does_not_hide_the_others(machine: Machine, how: str) -> None:
    machine.set({how: "GPU_IS_LOST"})
    scrape = machine.run().scrape_when(_settled)
    assert scrape.value("k3_accelerators_visible") == 7
    assert scrape.value("k3_accelerator_read_success", device="6") == 0
    assert scrape.value("k3_accelerator_health", device="6") == 0
    assert scrape.value("k3_accelerator_read_errors_total", device="6", error="gpu_is_lost") >= 1
    assert scrape.card(7, "memory_total_bytes") == 150754820096


def test_a_card_lost_later_leaves_the_visible_ones_and_comes_back(machine: Machine) -> None:
    exporter = machine.run()
    before = exporter.scrape_when(_settled)
    assert before.card(1, "read_errors_total", error="gpu_is_lost") == 0
    machine.set({"gpu.1.error": "GPU_IS_LOST"})
    scrape = exporter.scrape_when(lambda s: s.value("k3_accelerators_visible") == 7)
    assert [scrape.card(1, name) for name in VALUES] == [None] * len(VALUES)
    assert (scrape.card(1, "read_success"), scrape.card(1, "health")) == (0, 0)
    assert scrape.card(1, "xid_errors_total", xid="79") == 0
    exporter.says("GPU 1 (GPU-4b330000-0000-4000-8000-000000000001) is lost: gpu_is_lost")
    machine.set({"gpu.1.error": None})
    exporter.scrape_when(lambda s: s.value("k3_accelerators_visible") == 8 and s.card(1, "read_success") == 1)


def test_a_card_that_answers_unknown_is_lost_and_one_that_needs_a_reset_is_visible(machine: Machine) -> None:
    machine.set({"gpu.1.error": "UNKNOWN", "gpu.2.error": "RESET_REQUIRED"})
    scrape = machine.run().scrape_when(_settled)
    assert scrape.value("k3_accelerators_visible") == 7
    assert scrape.value("k3_accelerator_health", device="1") is None
    assert scrape.value("k3_accelerator_health", device="2") == 0
    assert scrape.value("k3_accelerator_read_errors_total", device="2", error="other") >= 1


def test_a_count_that_shrinks_without_an_error_is_seen_and_values_stay_with_their_cards(machine: Machine) -> None:
    machine.set({f"gpu.{card}.temperature": 40 + card for card in range(8)} | {"gpu.4.xid": ""})
    exporter = machine.run()
    exporter.scrape_when(_settled)
    machine.set({"gpu.4.xid": 94})
    exporter.scrape_when(lambda s: s.card(4, "xid_errors_total", xid="94") == 1)
    machine.set({"cards": "0 1 2 4 5 6 7"})
    scrape = exporter.scrape_when(
        lambda s: s.value("k3_accelerators_visible") == 7 and s.card(3, "read_success") == 0
        and s.rows("k3_accelerator_temperature_celsius", device="6"))
    exporter.says("lists 7 GPUs, 8 before")
    scrape = exporter.scrape_when(lambda s: all(s.card(card, "read_success") == 1 for card in (4, 5, 6, 7)))
    assert [scrape.card(card, "temperature_celsius") for card in range(8)] == [40, 41, 42, None, 44, 45, 46, 47]
    assert scrape.rows("k3_accelerator_info", device="3")[0][0]["uuid"].endswith("4")
    assert scrape.card(4, "xid_errors_total", xid="94") == 1
    machine.set({"cards": "0 1 2 3 4 5 6 7"})
    exporter.scrape_when(lambda s: all(s.card(card, "temperature_celsius") == 40 + card for card in range(8)))


def test_cards_numbered_anew_while_one_hangs_lead_no_second_call_to_it(machine: Machine) -> None:
    exporter = machine.run()
    exporter.scrape_when(_settled)
    machine.set({"gpu.5.sleep.nvmlDeviceGetPowerUsage": 600_000})
    exporter.scrape_when(lambda s: s.card(5, "read_success") == 0)
    machine.set({"cards": "0 1 3 4 5 6 7", "gpu.4.temperature": 88})
    scrape = exporter.scrape_when(lambda s: s.card(4, "temperature_celsius") == 88)
    scrape = exporter.scrape_when(lambda s: (s.card(5, "read_errors_total", error="other") or 0) >= 2)
    assert scrape.card(5, "read_success") == 0
    assert scrape.value("k3_accelerators_visible") == 7
    assert exporter.overlaps() == ""


def test_a_value_that_cannot_be_read_is_left_out_and_told_while_the_others_are_served(machine: Machine) -> None:
    machine.set({"gpu.0.error.nvmlDeviceGetPowerUsage": "IRQ_ISSUE",
                 "gpu.1.error.nvmlDeviceGetTotalEccErrors": "CORRUPTED_INFOROM"})
    scrape = machine.run().scrape_when(_settled)
    assert scrape.card(0, "power_watts") is None
    assert scrape.card(0, "temperature_celsius") == 35
    assert scrape.card(0, "read_success") == 0
    assert scrape.card(0, "read_errors_total", error="other") >= 1
    assert scrape.card(1, "read_success") == 1
    assert scrape.card(1, "read_errors_total", error="other") >= 1


def test_what_a_part_does_not_have_makes_no_series_and_no_failure(machine: Machine) -> None:
    machine.set({"gpu.0.memory.unified": 1, "gpu.1.error.nvmlDeviceGetTotalEccErrors": "NOT_SUPPORTED",
                 "gpu.1.error.nvmlDeviceGetUtilizationRates": "NOT_SUPPORTED", "gpu.1.links": 0})
    scrape = machine.run().scrape_when(_settled)
    assert (scrape.card(0, "read_success"), scrape.card(1, "read_success")) == (1, 1)
    assert [scrape.card(0, f"memory_{kind}_bytes") for kind in ("total", "used", "free", "reserved")] == [None] * 4
    assert scrape.rows("k3_accelerator_ecc_errors_total", device="1") == []
    assert scrape.card(1, "utilization_ratio") is None
    assert scrape.card(1, "health") is None
    assert sum(value for _, value in scrape.rows("k3_accelerator_read_errors_total")) == 0


def test_a_row_remap_failure_and_a_wanted_recovery_are_bad_health_and_a_link_that_is_down_shows(
    machine: Machine,
) -> None:
    machine.set({"gpu.links": 18, "gpu.recovery": 0, "gpu.0.remap.failure": 1, "gpu.1.recovery": 2,
                 "gpu.2.links.down": "4 17"})
    exporter = machine.run()
    scrape = exporter.scrape_when(_settled)
    assert (scrape.card(0, "row_remap_failure"), scrape.card(0, "health")) == (1, 0)
    assert scrape.card(1, "health") == 0
    assert (scrape.card(2, "health"), scrape.card(2, "link_up", link="all")) == (1, 0)
    exporter.end()
    scrape = machine.run("--gpu.links").scrape_when(_settled)
    down = [labels["link"] for labels, value in scrape.rows("k3_accelerator_link_up", device="2") if not value]
    assert down == ["4", "17"]
    assert len(scrape.rows("k3_accelerator_link_up", device="2")) == 18


def test_values_that_cannot_be_true_are_no_values(machine: Machine) -> None:
    not_available = 2**32 - 1
    machine.set({
        "gpu.0.power": not_available, "gpu.0.power.limit": not_available, "gpu.0.temperature": not_available,
        "gpu.0.utilization": not_available, "gpu.0.ecc.corrected": 2**64 - 1,
        "gpu.0.throttle": 2**64 - 1, "gpu.0.recovery": not_available, "gpu.0.memory.total": 2**64 - 1,
        "gpu.0.memory.used": 2**64 - 1,
        "gpu.1.utilization": 900, "gpu.2.memory.used": 2**50, "gpu.3.temperature": 4000, "gpu.4.power": 2 * 10**9})
    scrape = machine.run().scrape_when(_settled)
    for name in ("power_watts", "power_limit_watts", "temperature_celsius", "utilization_ratio", "memory_total_bytes",
                 "health"):
        assert scrape.card(0, name) is None
    assert scrape.rows("k3_accelerator_throttled", device="0") == []
    assert scrape.card(0, "ecc_errors_total", type="corrected") is None
    assert scrape.card(0, "read_success") == 1  # it says itself that it has none
    for card, name in ((1, "utilization_ratio"), (2, "memory_used_bytes"), (3, "temperature_celsius"),
                       (4, "power_watts")):
        assert scrape.card(card, name) is None
        assert scrape.card(card, "read_success") == 0
        assert scrape.card(card, "read_errors_total", error="other") >= 1  # type: ignore[operator]


def test_a_card_that_gets_no_thread_is_tried_again_with_the_next_listing(machine: Machine) -> None:
    script = (
        "import threading\n"
        "start, refused = threading.Thread.start, []\n"
        "def refusing(thread):\n"
        "    if thread.name == 'gpu-2' and len(refused) < 2:\n"
        "        refused.append(thread)\n"
        "        raise RuntimeError('cannot start new thread')\n"
        "    start(thread)\n"
        "threading.Thread.start = refusing\n"
        "from k3observe.exporters.main import main\n"
        "main()\n")
    exporter = machine.run(script=script)
    scrape = exporter.scrape_when(_settled)
    assert scrape.value("k3_source_errors_total", reason="internal") == 2
    assert "Traceback" not in exporter.log()
