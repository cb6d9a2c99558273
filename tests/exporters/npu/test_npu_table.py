"""Every known table of ``npu-smi info`` is read right, and nothing makes the parser raise or guess."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3observe.drill.devices import npu_smi
from k3observe.exporters.npu.exposition import health
from k3observe.exporters.npu.table import Device, Table, parse

LAYOUTS = ("310", "910", "A3", "310P", "950", "26")


def plain(device: Device) -> dict[str, Any]:
    first, second = device
    return {
        "npu": first.npu, "chip": second.chip, "phy": second.physical, "name": first.name, "health": first.health,
        "power_w": first.power_watts, "temp_c": first.temperature_celsius, "bus": second.bus or "NA",
        "aicore": second.utilization_percent, "ddr": list(second.ddr), "hbm": list(second.hbm) if second.hbm else None}


def test_all_real_tables_are_read_right(shared: Path) -> None:
    folder = shared / "samples" / "npu-smi"
    expected = json.loads((folder / "expected.json").read_text())
    assert len(expected) == 28
    for name, right in expected.items():
        table = parse((folder / name).read_text())
        cut = [device for device in right["devices"] if not device["rows_closed"]]
        whole = [device for device in right["devices"] if device["rows_closed"] and device["second_row"]]
        for device in whole:
            for key in ("rows_closed", "second_row", "power_raw"):
                del device[key]
        assert [plain(device) for device in table.devices] == whole, name
        assert (table.tool, table.driver) == (right["tool"], right["driver"]), name
        assert table.dropped >= len(cut), name
        assert table.dropped <= 1, name


def test_real_tables_are_read_the_same_with_crlf_quotes_colours_and_noise(shared: Path) -> None:
    folder = shared / "samples" / "npu-smi"
    for name in json.loads((folder / "expected.json").read_text()):
        text = (folder / name).read_text()
        right = parse(text)
        lines = text.split("\n")
        for variant in (
            "\r\n".join(lines),
            "\n".join(f"> {line}" for line in lines),
            "\n".join(f"\x1b[32m{line}\x1b[0m" for line in lines),
            "\n".join(f"2026-11-30T09:00:00Z stdout F {line}" for line in lines),
            "\n".join(f"{line}\nDrvMngGetConsoleLogLevel failed. (ret=4)" for line in lines),
            "user@host:~$ sudo npu-smi info\n" + text + "\n[WARNING]The driver package may not be complete",
        ):
            read = parse(variant)
            assert read.devices == right.devices, name
            assert (read.tool, read.driver) == (right.tool, right.driver), name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_the_simulated_tool_is_read(layout: str) -> None:
    state = npu_smi.cards(layout, 8, used=59891)
    table = parse(npu_smi.table(state))
    assert len(table.devices) == sum(len(npu["chips"]) for npu in state["npus"])
    assert {device.memory for device in table.devices} == {(59891, 65536)}
    assert (table.dropped, table.incomplete, table.headed) == (0, (), True)


def test_columns_that_shift_with_six_digits_of_megabytes_do_not_matter() -> None:
    for layout in ("910", "950", "26"):
        table = parse(npu_smi.table(npu_smi.cards(layout, 2, used=123456, total=131072)))
        assert {device.memory for device in table.devices} == {(123456, 131072)}


def test_a_chip_that_prints_zeros_is_unreadable_although_its_health_says_ok() -> None:
    state = npu_smi.cards("910", 2)
    state["npus"][1]["chips"][0]["dead"] = True
    good, dead = parse(npu_smi.table(state)).devices
    assert (good.memory, good.answers) == ((3347, 65536), True)
    assert (dead.first.health, dead.memory, dead.answers) == ("OK", None, False)


def test_ddr_does_not_stand_in_for_hbm_that_was_not_read() -> None:
    row = ("| 0 910A | OK | 70.9 42 15 / 15 |\n| 0 | 0000:C1:00.0 | 0 839 / 15170 {} |\n")
    assert parse(row.format("0 / 0")).devices[0].memory is None
    assert parse(row.format("NA / NA")).devices[0].memory is None
    assert parse(row.format("40000 / 32768")).devices[0].memory is None
    for word in ("-1 / -1", "18446744073709551615 / 32768", "1.5 / 2.5", "NA", "-"):
        assert parse(row.format(word)).devices[0].memory is None, word
    assert parse(row.format("1/32768")).devices[0].memory == (1, 32768)


@pytest.mark.parametrize(("word", "value"), [
    ("OK", 1), ("Warning", 0), ("General Warning", 0), ("Alarm", 0), ("Critical", 0), ("Offline", 0),
    ("UNKNOWN", None), ("告警", None)])
def test_every_health_word_leaves_the_device_its_values(word: str, value: float | None) -> None:
    text = npu_smi.table(npu_smi.cards("A3", 1)).replace("| OK   ", f"| {word}")
    devices = parse(text).devices
    assert [(device.first.health, health(device)) for device in devices] == [(word, value)] * 2
    assert devices[1].memory == (3347, 65536)


def test_a_first_row_that_the_tool_leaves_out_does_not_shift_later_chips() -> None:
    state = npu_smi.cards("910", 3)
    state["npus"][1]["chips"][0]["health"] = "word of a later version"
    table = parse(npu_smi.table(state))
    assert [(device.first.npu, device.second.bus) for device in table.devices] == [
        (0, "0000:81:00.0"), (2, "0000:83:00.0")]
    assert len(table.incomplete) == 1


def test_a_lost_second_row_does_not_marry_the_next_chip() -> None:
    lines = npu_smi.table(npu_smi.cards("910", 3)).split("\n")
    at = next(n for n, line in enumerate(lines) if "0000:82" in line)
    table = parse("\n".join(lines[:at] + lines[at + 1:]))
    assert [device.first.npu for device in table.devices] == [0, 2]


@pytest.mark.parametrize("none", ["NA", "N/A", "-", "--"])
def test_a_value_the_tool_does_not_have_is_none(none: str) -> None:
    (device,) = parse(f"| 0 910B | {none} | {none} {none} 0 / 0 |\n| 0 {none} | NA | {none} 1 / 2 |\n").devices
    assert device.first[2:] == (None, None, None)
    assert (device.second.physical, device.second.bus, device.second.utilization_percent) == (None, None, None)
    assert device.memory == (1, 2)


def test_soft_slices_list_a_die_twice_and_both_are_kept() -> None:
    state = npu_smi.cards("910", 1)
    state["npus"] *= 2
    assert len(parse(npu_smi.table(state)).devices) == 2


def test_log_lines_with_bars_are_neither_rows_nor_counted() -> None:
    table = parse("INFO | 0 | started | ok\n2026 | x |\n" + npu_smi.table(npu_smi.cards("910", 1)))
    assert (len(table.devices), table.dropped) == (1, 0)


@pytest.mark.parametrize("layout", ["910", "950", "26"])
def test_processes_cannot_pretend_to_be_a_device(layout: str) -> None:
    state = npu_smi.cards(layout, 1)
    names = ("9 x|OK|1 2 0/ 0", "a|OK|1 2", "|1 2/9", "npu-smi Health", "x|Bus-Id", "|1 2/9", "")
    state["npus"][0]["chips"][0]["processes"] = [[7, name, 5] for name in names]
    table = parse(npu_smi.table(state))
    assert (len(table.devices), table.incomplete, table.dropped) == (len(state["npus"][0]["chips"]), (), 0)
    assert table.devices[0].memory == (3347, 65536)


def test_a_row_of_the_board_controller_is_no_device() -> None:
    rows = "| 0 Mcu | NA | NA NA NA / NA |\n| 1 | NA | NA NA / NA NA / NA |\n"
    table = parse(npu_smi.table(npu_smi.cards("910", 1)) + rows)
    assert (len(table.devices), table.incomplete, table.dropped) == (1, (), 0)


def rows_of(table: Table) -> set[Device]:
    return set(table.devices)


@given(layout=st.sampled_from(LAYOUTS), cut=st.integers(0, 4000))
@settings(max_examples=150, deadline=None)
def test_a_table_cut_anywhere_gives_only_whole_and_right_devices(layout: str, cut: int) -> None:
    text = npu_smi.table(npu_smi.cards(layout, 4, used=59891))
    whole, table = parse(text), parse(text[:cut])
    assert table.devices == whole.devices[:len(table.devices)]
    assert table.dropped <= 1


@given(layout=st.sampled_from(LAYOUTS), seed=st.integers(0, 10**6), end=st.sampled_from(["\n", "\r\n"]),
       prefix=st.sampled_from(["", "> ", ">> ", "    ", "\x1b[1m", "kubelet: "]),
       noise=st.lists(st.text(st.characters(exclude_characters="|+"), max_size=60), max_size=8))
@settings(max_examples=150, deadline=None)
def test_lines_between_the_rows_and_prefixes_change_nothing(
    layout: str, seed: int, end: str, prefix: str, noise: list[str]
) -> None:
    text = npu_smi.table(npu_smi.cards(layout, 3))
    lines = text.split("\n")
    chance = random.Random(seed)
    for line in noise:
        lines.insert(chance.randrange(len(lines) + 1), line)
    table = parse(end.join(prefix + line for line in lines))
    assert (table.devices, table.dropped) == (parse(text).devices, 0)


@given(st.text(st.sampled_from("|+-=/:.> \r\n\t\x1b[mNA0189abcOKxé\u2028"), max_size=600))
@settings(max_examples=300, deadline=None)
def test_text_that_looks_like_a_table_never_raises(text: str) -> None:
    table = parse(text)
    assert len(table.devices) + table.dropped <= text.count("\n") + text.count("\r") + 1


@given(st.binary(max_size=2000))
def test_binary_never_raises(data: bytes) -> None:
    parse(data.decode("utf-8", "replace"))


@given(layout=st.sampled_from(LAYOUTS), gone=st.sets(st.integers(0, 60)))
@settings(max_examples=150, deadline=None)
def test_lost_lines_never_give_a_device_values_of_a_third(layout: str, gone: set[int]) -> None:
    """With the border between two devices lost too, rows of neighbours could meet; all others stay right."""
    state = npu_smi.cards(layout, 4)
    text = npu_smi.table(state)
    whole = rows_of(parse(text))
    lines = [line for at, line in enumerate(text.split("\n")) if at not in gone or line.startswith("+")]
    assert rows_of(parse("\n".join(lines))) <= whole


def test_the_parser_is_linear_in_hostile_input() -> None:
    for text in ("| 0 x | OK |" + " -" * 300_000 + "|", "|" * 1_000_000, ("1" * 12 + " " * 80) * 10_000 + "|",
                 "| 0 x | OK | 1 2 |\n" * 50_000):
        started = time.process_time()
        table = parse(text)
        assert time.process_time() - started < 2.0
        assert len(table.devices) + len(table.incomplete) <= 512


def test_a_column_more_at_the_end_changes_nothing_and_a_memory_that_cannot_be_true_was_not_read() -> None:
    row = "| 0 910B2 | OK | 96.5 36 0 / 0 |{0}\n| 0 | 0000:C1:00.0 | 7 0 / 0 3347 / {1} |{0}\n"
    (device,) = parse(row.format("", 65536)).devices
    assert parse(row.format(" 12 |", 65536)).devices == (device,)
    (other,) = parse(row.format("", 999_999_999_999)).devices
    assert other.memory is None
