"""Sub-commands of npu-smi and the meaning of its exits."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3observe.drill.devices import npu_smi
from k3observe.exporters.npu import dcmi
from k3observe.exporters.npu.details import Common, Ecc, Fault, blocks, common, ecc, fault


@pytest.fixture
def sample(shared: Path):
    def read(start: str) -> str:
        (path,) = (shared / "samples" / "npu-smi").glob(f"{start}-*")
        return path.read_text()

    return read


def test_the_power_of_the_board_is_that_of_the_mcu_block(sample) -> None:
    assert common(sample("60")) == Common(45.2, frozenset())


def test_a_950_has_one_block_and_no_board(sample) -> None:
    assert common(sample("62")) == Common(None, frozenset())


def test_memory_errors_are_read_by_chip(sample) -> None:
    assert ecc(sample("75")) == {0: Ecc(0, 0)}


def test_a_healthy_chip_has_no_fault_in_either_spelling(sample) -> None:
    assert fault(sample("64")) is None
    assert fault(sample("66")) is None


def test_no_other_sub_command_or_error_is_mistaken(sample) -> None:
    for start in ("50", "51", "53", "55", "63", "67", "70", "77", "80", "81", "90", "93", "94", "96"):
        text = sample(start)
        assert fault(text) is None
        assert ecc(text) == {}
        assert common(text).board_power_watts is None


def test_error_codes_and_their_lines_are_read() -> None:
    state = npu_smi.cards("910", 1)
    state["npus"][0]["chips"][0] |= {
        "health": "Alarm", "codes": ["0x80e01801", "0x80CB8009"],
        "information": ["HBM multi bit error", "Failed to get error information for error code : 0x80CB8009", "more"]}
    text = npu_smi.details(state, "health", 0, 0)
    assert text is not None
    found = fault(text)
    assert found is not None
    assert found.codes == ("0x80E01801", "0x80CB8009")
    assert found.information.startswith("HBM multi bit error; Failed")
    assert found.information.endswith("more")


def test_at_most_eight_codes_are_kept() -> None:
    found = fault("Error Code : " + " ".join(f"0x{n:x}" for n in range(100)))
    assert found is not None
    assert len(found.codes) == 8


def test_both_chips_of_an_npu_are_told_apart() -> None:
    state = npu_smi.cards("A3", 1)
    state["npus"][0]["chips"][1]["ecc"] = [5, 2]
    state["npus"][0]["chips"][1]["split"] = True
    assert ecc(npu_smi.details(state, "ecc", 0, None) or "") == {0: Ecc(0, 0), 1: Ecc(5, 2)}
    text = npu_smi.details(state, "common", 0, None) or ""
    assert common(text).blind_chips == {1}
    assert common(text.replace("Aicore Usage Rate(%)", "AI Core Usage (%)")).blind_chips == {1}


@pytest.mark.parametrize(("word", "count"), [("5", 5), ("NA", None), ("-1", None), ("4294967295", None)])
def test_a_count_of_errors_that_was_not_read_is_not_0(word: str, count: int | None) -> None:
    assert ecc(f"HBM Single Bit Error Count : {word}\nHBM Double Bit Error Count : 7\nChip ID : 1\n") == {
        1: Ecc(count, 7)}


@pytest.mark.parametrize("written", ["0x80E01801, 0x80CD8008", "80E01801 80CD8008", "0x80e01801/0x80CD8008"])
def test_error_codes_are_found_however_they_are_written(written: str) -> None:
    found = fault(f"Health Status : Alarm\nError Code : {written}\nError Information : HBM\n")
    assert found == Fault(("0x80E01801", "0x80CD8008"), "HBM")


@given(st.text(max_size=500))
def test_nothing_raises(text: str) -> None:
    blocks(text), common(text), ecc(text), fault(text)


@pytest.mark.parametrize(("status", "number"), [(187, -8005), (172, -8020), (193, -8255), (179, -8013)])
def test_an_exit_status_is_the_low_byte_of_a_dcmi_code(status: int, number: int) -> None:
    code = dcmi.code_of(status, "")
    assert code is not None
    assert code.number == number
    assert code.help


def test_what_the_tool_says_goes_before_its_status(sample) -> None:
    for start in ("90", "91"):
        code = dcmi.code_of(1, sample(start))
        assert code is not None
        assert code.number == -8005
    unknown = dcmi.code_of(1, "ret is -8099")
    assert unknown is not None
    assert unknown.meaning == "unknown DCMI error"
    assert dcmi.code_of(0, "") is None
    assert dcmi.code_of(127, "") is None
