"""The real collector on the simulated tool: every value right, none that could not be read, and never a wait."""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from k3observe.drill.devices import npu_smi
from k3observe.exporters import families
from k3observe.exporters.npu import collector as npu
from k3observe.exporters.npu import devices, exposition
from k3observe.exporters.npu.devices import READ_ERRORS, Key
from k3observe.exporters.npu.table import Table, parse

MIB = 1 << 20
VALUES = ("info", "memory_total_bytes", "memory_used_bytes", "memory_free_bytes", "utilization_ratio",
          "temperature_celsius", "power_watts", "health", "fault", "ecc_errors_total")

Start = Callable[..., "Rig"]  # noqa: F821


def has_values(rig, device: str) -> bool:
    return any(rig.of(name, device, **({"type": "corrected"} if name.startswith("ecc") else {})) is not None
               for name in VALUES)


def test_eight_healthy_cards_have_right_values_in_base_units(rig: Start) -> None:
    r = rig(npu_smi.cards("910", 8), expected=8)
    samples = r.samples()
    assert samples["k3_accelerators_visible"] == {(): 8.0}
    assert samples["k3_accelerators_expected"] == {(): 8.0}
    assert len(samples["k3_accelerator_info"]) == 8
    assert (("bus", "0000:81:00.0"), ("device", "0-0"), ("driver", "25.2.0"), ("product", "910B2"),
            ("uuid", "0000:81:00.0")) in samples["k3_accelerator_info"]
    assert r.of("memory_total_bytes", "7-0") == 65536 * MIB
    assert r.of("memory_used_bytes", "7-0") == 3347 * MIB
    assert r.of("memory_free_bytes", "7-0") == (65536 - 3347) * MIB
    assert r.of("utilization_ratio", "7-0") == 0.12
    assert r.of("temperature_celsius", "7-0") == 36
    assert r.of("power_watts", "7-0") == 96.5
    assert (r.of("health", "7-0"), r.of("read_success", "7-0")) == (1, 1)
    r.until(lambda: r.of("ecc_errors_total", "7-0", type="uncorrected") == 0)
    assert time.time() - (r.of("last_read_timestamp_seconds", "7-0") or 0) < 5
    assert {r.of("read_errors_total", "7-0", error=error) for error in READ_ERRORS} == {0}
    assert samples["k3_source_up"] == {(("source", "npu-smi"),): 1.0}


def test_both_dies_of_an_a3_are_devices_and_power_adds_up_to_that_of_the_npus(rig: Start) -> None:
    for layout in ("A3", "26"):
        r = rig(npu_smi.cards(layout, 2))
        samples = r.samples()
        assert samples["k3_accelerators_visible"] == {(): 4.0}
        assert sum(samples["k3_accelerator_power_watts"].values()) == 2 * 96.5
        assert r.of("power_watts", "0-1") is None


def test_the_power_of_a_310p_card_comes_from_its_board_once(rig: Start) -> None:
    r = rig(npu_smi.cards("310P", 2))
    assert r.samples()["k3_accelerators_visible"] == {(): 4.0}
    r.until(lambda: r.of("power_watts", "1-0") is not None)
    assert [r.of("power_watts", device) for device in ("0-0", "0-1", "1-0", "1-1")] == [45.2, None, 45.2, None]
    r.state["npus"][0]["board_watts"] = 51.5
    r.write()
    r.until(lambda: r.of("power_watts", "0-0") == 51.5)
    r.state["fault"] = {"kind": "dcmi", "on": "common"}
    r.write()
    r.until(lambda: r.of("power_watts", "0-0") is None)
    assert r.of("temperature_celsius", "0-0") == 36


def test_a_950_without_chip_ids_has_chip_0(rig: Start) -> None:
    state = npu_smi.cards("950", 1, used=4439, total=86016)
    state["npus"][0]["chips"][0] |= {"health": "Alarm", "codes": ["0x81AF8000"]}
    r = rig(state)
    assert r.of("memory_total_bytes", "0-0") == 86016 * MIB
    assert r.of("fault", "0-0", code="0x81AF8000") == 1


def test_a_compute_split_vnpu_has_no_utilization_although_the_table_prints_0(rig: Start) -> None:
    state = npu_smi.cards("910", 2)
    state["npus"][1]["chips"][0] |= {"split": True, "busy": 0}
    r = rig(state)
    r.until(lambda: r.of("utilization_ratio", "1-0") is None)
    assert r.of("utilization_ratio", "0-0") == 0.12


@pytest.mark.parametrize(("word", "value"), [
    ("OK", 1), ("Warning", 0), ("Alarm", 0), ("Critical", 0), ("UNKNOWN", None)])
def test_health_words(rig: Start, word: str, value: float | None) -> None:
    state = npu_smi.cards("910", 1)
    state["npus"][0]["chips"][0] |= {"health": word, "codes": ["0x80E01801", "0x80CB8009"]}
    r = rig(state)
    assert r.of("health", "0-0") == value
    assert r.of("fault", "0-0", code="0x80E01801") == (None if word == "OK" else 1)


def test_an_error_code_leaves_with_the_fault_and_is_logged_once(
    rig: Start, caplog: pytest.LogCaptureFixture
) -> None:
    state = npu_smi.cards("910", 1)
    chip = state["npus"][0]["chips"][0]
    chip |= {"health": "Critical", "codes": ["0x80E01801"], "information": ["HBM error", "replace it"]}
    with caplog.at_level(logging.WARNING):
        r = rig(state)
        time.sleep(0.5)
    assert [record.getMessage() for record in caplog.records] == [
        "NPU 0-0 reports 0x80E01801: HBM error; replace it"]
    chip |= {"health": "OK", "codes": []}
    r.write()
    r.until(lambda: r.of("health", "0-0") == 1)
    assert r.of("fault", "0-0", code="0x80E01801") is None


def test_a_dead_chip_that_prints_ok_and_zeros_has_no_values_and_leaves(rig: Start) -> None:
    r = rig(npu_smi.cards("910", 2))
    r.state["npus"][1]["chips"][0]["dead"] = True
    r.write()
    r.until(lambda: r.of("read_success", "1-0") == 0)
    assert not has_values(r, "1-0")
    assert (r.of("read_errors_total", "1-0", error="unreadable") or 0) >= 1
    assert r.samples()["k3_accelerators_visible"] == {(): 1.0}
    uuids = {dict(labels)["uuid"] for labels in r.samples()["k3_accelerator_read_success"]}
    assert uuids == {"0000:81:00.0", "0000:82:00.0"}, "a dead chip keeps its bus id"
    assert r.of("last_read_timestamp_seconds", "1-0") is not None
    r.state["npus"][1]["chips"][0]["dead"] = False
    r.write()
    r.until(lambda: r.of("read_success", "1-0") == 1)
    assert r.of("memory_used_bytes", "1-0") == 3347 * MIB


def test_a_chip_whose_memory_alone_is_not_read_stays_visible_without_values(rig: Start) -> None:
    state = npu_smi.cards("910", 2)
    state["npus"][1]["chips"][0] |= {"used": 0, "total": 0}
    r = rig(state)
    assert (r.of("read_success", "1-0"), has_values(r, "1-0")) == (0, False)
    assert r.samples()["k3_accelerators_visible"] == {(): 2.0}


def test_a_sensor_that_was_not_read_prints_0_and_has_no_series(rig: Start) -> None:
    state = npu_smi.cards("910", 1)
    state["npus"][0]["chips"][0] |= {"watts": 0.0, "celsius": 0}
    r = rig(state)
    assert (r.of("power_watts", "0-0"), r.of("temperature_celsius", "0-0")) == (None, None)
    assert r.of("read_success", "0-0") == 1


def test_a_card_that_is_no_longer_listed_leaves_and_comes_back(rig: Start) -> None:
    r = rig(npu_smi.cards("A3", 2))
    gone = r.state["npus"].pop()
    r.write()
    r.until(lambda: r.samples()["k3_accelerators_visible"] == {(): 2.0})
    assert (r.of("read_success", "1-1"), has_values(r, "1-1")) == (0, False)
    assert (r.of("read_errors_total", "1-1", error="missing") or 0) >= 1
    r.state["npus"].append(gone)
    r.write()
    r.until(lambda: r.samples()["k3_accelerators_visible"] == {(): 4.0})


def test_a_node_that_lost_all_cards_shows_0_and_a_source_that_is_up(rig: Start) -> None:
    r = rig(npu_smi.cards("910", 2))
    r.state["npus"] = []
    r.write()
    r.until(lambda: r.samples()["k3_accelerators_visible"] == {(): 0.0})
    assert r.samples()["k3_source_up"] == {(("source", "npu-smi"),): 1.0}


def test_a_row_the_tool_leaves_out_makes_its_chip_incomplete_and_no_other(rig: Start) -> None:
    r = rig(npu_smi.cards("910", 3))
    r.state["npus"][1]["chips"][0]["health"] = "a word of a later version"
    r.write()
    r.until(lambda: (r.of("read_errors_total", "1-0", error="incomplete") or 0) >= 1)
    assert [r.of("read_success", device) for device in ("0-0", "1-0", "2-0")] == [1, 0, 1]
    assert r.samples()["k3_accelerators_visible"] == {(): 3.0}


def test_a_die_listed_twice_is_one_device(rig: Start) -> None:
    state = npu_smi.cards("910", 1)
    state["npus"] *= 2
    r = rig(state)
    assert r.samples()["k3_accelerators_visible"] == {(): 1.0}


def test_only_wanted_devices_are_answered_for(rig: Start) -> None:
    wanted = devices.parse_wanted("0, 1-1, 0000:85:00.0")
    r = rig(npu_smi.cards("A3", 4), wanted=wanted)
    assert {dict(labels)["device"] for labels in r.samples()["k3_accelerator_read_success"]} == {
        "0-0", "0-1", "1-1", "2-0"}
    assert r.samples()["k3_accelerators_visible"] == {(): 4.0}


def test_noise_around_the_table_does_not_matter(rig: Start) -> None:
    r = rig(npu_smi.cards("910", 1) | {
        "before": "DrvMngGetConsoleLogLevel failed. (ret=4)\n",
        "after": "[WARNING]The driver package may not be completely installed\n"})
    assert r.of("read_success", "0-0") == 1


def test_a_hung_tool_costs_no_scrape_keeps_the_devices_visible_and_their_values_away(rig: Start) -> None:
    r = rig(npu_smi.cards("910", 8), timeout=1.5)
    r.state["fault"] = {"kind": "hang"}
    r.write()
    slowest, end = 0.0, time.monotonic() + 8
    while r.of("read_success", "0-0") != 0:
        started = time.monotonic()
        r.samples()
        slowest = max(slowest, time.monotonic() - started)
        assert time.monotonic() < end
    assert slowest < 0.75
    assert not has_values(r, "0-0")
    assert r.samples()["k3_accelerators_visible"] == {(): 8.0}
    assert r.samples()["k3_source_up"] == {(("source", "npu-smi"),): 0.0}
    assert r.samples()["k3_source_errors_total"][(("reason", "timeout"), ("source", "npu-smi"))] >= 1
    assert (r.of("read_errors_total", "0-0", error="tool") or 0) >= 1
    del r.state["fault"]
    r.write()
    r.until(lambda: r.of("read_success", "0-0") == 1)


def test_a_sub_command_that_hangs_costs_its_own_values_only(rig: Start) -> None:
    r = rig(npu_smi.cards("910", 2) | {"fault": {"kind": "hang", "on": "ecc"}}, timeout=0.5)
    r.until(lambda: r.samples()["k3_source_errors_total"][(("reason", "details"), ("source", "npu-smi"))] >= 2)
    r.until(lambda: r.of("read_success", "0-0") == 1)
    assert r.of("ecc_errors_total", "0-0", type="corrected") is None
    assert r.of("memory_used_bytes", "0-0") == 3347 * MIB


@pytest.mark.parametrize(("kind", "reason"), [
    ("dcmi", "dcmi"), ("binary", "no_table"), ("flood", "too_much_output"), ("silent", "no_table"),
    ("killed", "exit_status")])
def test_a_tool_that_fails_says_why_and_the_devices_lose_their_values(
    rig: Start, caplog: pytest.LogCaptureFixture, kind: str, reason: str
) -> None:
    r = rig(npu_smi.cards("910", 2))
    with caplog.at_level(logging.ERROR):
        r.state["fault"] = {"kind": kind}
        r.write()
        r.until(lambda: r.of("read_success", "1-0") == 0 and caplog.records, 15)
    assert not has_values(r, "1-0")
    assert "k3_accelerators_visible" not in r.samples()
    assert r.samples()["k3_source_errors_total"][(("reason", reason), ("source", "npu-smi"))] >= 1
    if kind == "dcmi":
        (message,) = {record.getMessage() for record in caplog.records}
        assert "-8005" in message
        assert "/dev/davinci_manager" in message
    else:
        assert len({record.getMessage() for record in caplog.records}) == 1


def test_a_tool_that_is_killed_while_it_prints_loses_no_device_and_one_that_crashes_after_it_no_value(
    rig: Start,
) -> None:
    r = rig(npu_smi.cards("910", 4))
    text = npu_smi.table(r.state)

    def prints(part: str) -> None:
        new = r.program.with_name("new")
        new.write_text(f"#!/bin/sh\ncat <<'E'\n{part}\nE\nkill -SEGV $$\n")
        new.chmod(0o755)
        new.replace(r.program)

    def crashes() -> float:
        return r.samples()["k3_source_errors_total"][(("reason", "exit_status"), ("source", "npu-smi"))]

    prints(text)
    r.until(lambda: crashes() >= 2)
    assert r.of("read_success", "3-0") == 1
    prints(text[:len(text) // 2])
    r.until(lambda: r.of("read_success", "3-0") == 0)
    assert "k3_accelerators_visible" not in r.samples()
    assert r.of("read_errors_total", "3-0", error="missing") == 0
    assert r.of("read_errors_total", "3-0", error="tool") >= 1


def test_a_tool_that_vanishes_and_comes_back(rig: Start) -> None:
    r = rig(npu_smi.cards("910", 2))
    text, mode = r.program.read_text(), r.program.stat().st_mode
    r.program.unlink()
    r.until(lambda: r.samples()["k3_source_errors_total"][(("reason", "not_found"), ("source", "npu-smi"))] >= 1)
    assert r.of("read_success", "0-0") == 0
    new = r.program.with_name("new")
    new.write_text(text)
    new.chmod(mode)
    new.replace(r.program)
    r.until(lambda: r.of("read_success", "0-0") == 1)


def test_every_source_error_that_can_be_named_starts_at_0(rig: Start) -> None:
    r = rig(npu_smi.cards("910", 1))
    assert {dict(labels)["reason"] for labels in r.samples()["k3_source_errors_total"]} == set(npu.REASONS)
    assert set(r.samples()["k3_source_errors_total"].values()) == {0.0}


def test_at_most_40_series_a_device_when_everything_is_wrong(rig: Start) -> None:
    state = npu_smi.cards("A3", 2)
    for card in state["npus"]:
        for chip in card["chips"]:
            chip |= {"health": "Critical", "codes": [f"0x{n:08X}" for n in range(30)], "ecc": [9, 9]}
    r = rig(state)
    r.until(lambda: r.of("ecc_errors_total", "1-1", type="corrected") == 9
            and r.of("fault", "1-1", code="0x00000007") == 1, 30)
    series = Counter(
        dict(labels)["device"] for samples in r.samples().values() for labels in samples if "device" in dict(labels))
    assert len(series) == 4
    assert max(series.values()) <= exposition.MAX_SERIES
    assert max(series.values()) == 24


def test_a_changed_bus_begins_new_series_and_ends_the_old() -> None:
    def table(bus: str) -> Table:
        return parse(f"| 0 910B2 | OK | 96.5 36 0 / 0 |\n| 0 | {bus} | 0 0 / 0 3347 / 65536 |\n")

    first = devices.after_table(devices.EMPTY, table("0000:C1:00.0"), (), 1.0)
    failed = devices.after_failure(first, "dcmi")
    assert failed.devices[Key(0, 0)].errors["tool"] == 1
    moved = devices.after_table(failed, table("0000:C2:00.0"), (), 2.0)
    assert moved.devices[Key(0, 0)].uuid == "0000:C2:00.0"
    assert set(moved.devices[Key(0, 0)].errors.values()) == {0}


def test_values_do_not_outlive_a_thread_that_is_stuck(rig: Start) -> None:
    r = rig(npu_smi.cards("910", 1))
    r.collector.stop()
    time.sleep(0.2)
    assert r.of("memory_used_bytes", "0-0") is not None
    read_at, *more = r.collector._newest
    r.collector._newest = (read_at - 60, *more)
    assert (r.of("read_success", "0-0"), has_values(r, "0-0")) == (0, False)


def test_no_devices_beyond_the_bound_are_remembered() -> None:
    snapshot = devices.EMPTY
    for start in range(0, 2000, 200):
        text = "".join(
            f"| {n} 910B2 | OK | 96.5 36 0 / 0 |\n| 0 | NA | 0 0 / 0 3347 / 65536 |\n"
            for n in range(start, start + 200))
        snapshot = devices.after_table(snapshot, parse(text), (), 1.0)
    assert len(snapshot.devices) <= 256


def test_every_real_table_yields_an_exposition_without_duplicates(shared: Path) -> None:
    folder = shared / "samples" / "npu-smi"
    for name, right in json.loads((folder / "expected.json").read_text()).items():
        snapshot = devices.after_table(devices.EMPTY, parse((folder / name).read_text()), (), 1.0)
        metrics = list(exposition.render(snapshot, exposition.NO_DETAILS, None))
        samples = [(s.name, tuple(sorted(s.labels.items()))) for metric in metrics for s in metric.samples]
        assert len(samples) == len(set(samples)), name
        used = {s.labels["device"]: s.value for metric in metrics if metric.name == families.MEMORY_USED.name
                for s in metric.samples}
        for device in right["devices"]:
            memory = device["hbm"] or device["ddr"]
            if device["rows_closed"] and device["second_row"] and memory[1]:
                assert used[f"{device['npu']}-{device['chip']}"] == memory[0] * MIB, name


def flags(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    npu.add_flags(parser)
    return parser.parse_args(words)


def test_flags_have_defaults_that_work_without_any() -> None:
    args = flags()
    assert (args.npu_smi_path, args.npu_interval, args.npu_timeout) == ("npu-smi", 15.0, 10.0)
    assert (args.npu_expected, args.npu_devices) == (None, None)
    assert npu.from_args(args, logging.getLogger("t")).name == "npu"


@pytest.mark.parametrize(("flag", "value", "said"), [
    ("--npu.smi-path", "bin/npu-smi", "absolute path"), ("--npu.interval", "0", "between"),
    ("--npu.timeout", "x", "no duration"), ("--npu.devices", "0,one", "bus ids"),
    ("--npu.devices", ",", "names no device"), ("--npu.expected", "-1", "between")])
def test_wrong_flags_say_what_to_write(flag: str, value: str, said: str) -> None:
    with pytest.raises(argparse.ArgumentError, match=said):
        flags(f"{flag}={value}")


def test_power_and_temperature_that_cannot_be_true_are_no_values() -> None:
    table = parse("".join(
        f"| {npu} 910B2 | OK | {power} {celsius} 0 / 0 |\n| 0 | 0000:C{npu}:00.0 | 0 0 / 0 3347 / 65536 |\n"
        for npu, (power, celsius) in enumerate((("-1", "-40"), ("999999999", "4000"), ("0", "0"), ("96.5", "36")))))
    snapshot = devices.after_table(devices.EMPTY, table, (), 1.0)
    values = {(metric.name, sample.labels["device"]): sample.value
              for metric in exposition.render(snapshot, exposition.NO_DETAILS, None)
              if metric.name.endswith(("watts", "celsius")) for sample in metric.samples}
    assert values == {("k3_accelerator_temperature_celsius", "3-0"): 36, ("k3_accelerator_power_watts", "3-0"): 96.5}
