from __future__ import annotations

import json
import os
import zlib
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3observe.exporters.vllm_plugin import fileformat
from k3observe.exporters.vllm_plugin.fileformat import (
    FormatError,
    ModelCounts,
    Publication,
    Rearrangement,
    decode,
    encode,
    file_name,
    parse_name,
    write,
)

MODEL = ModelCounts(
    model="moonshotai/Kimi-K3", rows=2, columns=4, steps=5, recorded=4, total_steps=50, total_recorded=44,
    counts=array("i", range(8)), totals=array("q", range(100, 108)), logical=array("h", [0, 1, 2, -1] * 2),
    map_number=3, layers=(1, 2))
PUBLICATION = Publication(
    engine="vllm", engine_version="0.33.0", instance="a1", run="b2", pp_rank=0, pp_size=1, ep_rank=1, ep_size=2,
    detail="expert", sequence=9, cycle=1, step=30, time=1.7e9, seconds=2.5, dropped=0,
    rearrangements=(Rearrangement(1, 1.6e9, 0.25), Rearrangement(2, 1.7e9, None)), models=(MODEL,))


def content(publication: Publication = PUBLICATION) -> bytes:
    return b"".join(encode(publication))


def forged(change: Any) -> bytes:
    """Return a file with a changed header and the right checksum."""
    prefix = fileformat.PREFIX
    data = content()
    _, version, size, _, _ = prefix.unpack_from(data)
    header = json.loads(data[prefix.size : prefix.size + size])
    change(header)
    head, body = json.dumps(header).encode(), data[prefix.size + size :]
    return prefix.pack(fileformat.MAGIC, version, len(head), len(body), zlib.crc32(head + body)) + head + body


@given(
    rows=st.integers(1, 4), local=st.integers(1, 4), ranks=st.integers(1, 4), data=st.data(),
    name=st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=50), mapped=st.booleans())
def test_what_is_written_is_what_is_read(
    rows: int, local: int, ranks: int, data: st.DataObject, name: str, mapped: bool
) -> None:
    columns = local * ranks
    cells = rows * columns
    model = ModelCounts(
        model=name, rows=rows, columns=columns, steps=7, recorded=7, total_steps=7, total_recorded=7,
        counts=array("i", data.draw(st.lists(st.integers(0, 2**31 - 1), min_size=cells, max_size=cells))),
        totals=array("q", data.draw(st.lists(st.integers(0, 2**62), min_size=cells, max_size=cells))),
        logical=array("h", [data.draw(st.integers(-1, columns - 1))] * cells) if mapped else None)
    publication = replace(PUBLICATION, ep_rank=0, ep_size=ranks, models=(model, replace(model, model="draft")))
    assert decode(content(publication)) == publication


def test_a_file_cut_anywhere_is_refused() -> None:
    data = content()
    for length in range(len(data)):
        with pytest.raises(FormatError):
            decode(data[:length])


@given(position=st.integers(0, len(content()) - 1), bit=st.integers(0, 7))
def test_a_single_changed_bit_is_refused(position: int, bit: int) -> None:
    data = bytearray(content())
    data[position] ^= 1 << bit
    with pytest.raises(FormatError):
        decode(bytes(data))


@given(st.binary(max_size=300))
def test_junk_is_refused_with_or_without_the_magic(junk: bytes) -> None:
    for data in (junk, fileformat.MAGIC + junk):
        with pytest.raises(FormatError):
            decode(data)


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=8),
    st.sampled_from([
        "engine", "instance", "run", "pp_rank", "pp_size", "ep_rank", "ep_size", "detail", "sequence", "cycle", "step",
        "time", "seconds", "dropped", "rearrangements", "models"]))
def test_a_forged_header_is_refused_or_read_and_nothing_else(value: Any, key: str) -> None:
    try:
        publication = decode(forged(lambda header: header.update({key: value})))
    except FormatError:
        return
    assert publication.ep_rank < publication.ep_size


@pytest.mark.parametrize(("key", "value", "says"), [
    ("rows", 1 << 40, "rows: must be a whole number"), ("columns", 3, "do not fit 2 ranks"),
    ("rows", 3, "bytes are left of"), ("rows", 1, "the map names"), ("mapped", False, "bytes are left over"),
    ("recorded", 45, "recorded"), ("layers", [1, 1], "layers"), ("model", "a\nb", "model"),
    ("map_number", True, "map_number"),
])
def test_shapes_that_do_not_fit_are_named(key: str, value: Any, says: str) -> None:
    with pytest.raises(FormatError, match=says):
        decode(forged(lambda header: header["models"][0].update({key: value})))


def test_negative_counts_and_maps_out_of_range_are_refused() -> None:
    for bad in (
        replace(MODEL, counts=array("i", [-1] * 8)), replace(MODEL, totals=array("q", [-1] * 8)),
        replace(MODEL, logical=array("h", [4] * 8)),
    ):
        with pytest.raises(FormatError):
            decode(content(replace(PUBLICATION, models=(bad,))))


def test_another_version_is_refused_with_what_to_do() -> None:
    data = bytearray(content())
    data[8] = 2
    with pytest.raises(FormatError, match="version 2: only 1 is known"):
        decode(bytes(data))


def test_a_deeply_nested_header_is_refused() -> None:
    head = b"[" * 200_000
    data = fileformat.PREFIX.pack(fileformat.MAGIC, 1, len(head), 0, zlib.crc32(head)) + head
    with pytest.raises(FormatError):
        decode(data)


def test_names_of_other_files_are_no_names() -> None:
    assert parse_name(file_name("a1", 2, 15)) == ("a1", 2, 15)
    for name in (".k3experts-a-pp000-ep00000.bin.tmp", "k3experts-a/b-pp000-ep00000.bin", "x.bin", "", "a\n"):
        assert parse_name(name) is None


def test_a_link_in_the_place_of_the_file_or_its_forerunner_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    name = file_name("a1", 0, 1)
    (tmp_path / name).symlink_to(victim)
    (tmp_path / f".{name}.tmp").symlink_to(victim)
    path = write(tmp_path, PUBLICATION)
    assert victim.read_text() == "untouched"
    assert not path.is_symlink()
    assert decode(path.read_bytes()) == PUBLICATION


def test_a_pipe_in_the_place_of_the_forerunner_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f".{file_name('a1', 0, 1)}.tmp")
    assert decode(write(tmp_path, PUBLICATION).read_bytes()) == PUBLICATION


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = write(tmp_path, PUBLICATION)
    with pytest.raises(OverflowError):
        write(tmp_path, replace(PUBLICATION, models=(replace(MODEL, counts=array("q", [1 << 40] * 8)),)))
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert decode(path.read_bytes()) == PUBLICATION
