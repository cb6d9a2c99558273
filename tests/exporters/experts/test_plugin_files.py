"""Files that are damaged, hostile, too many, or not new."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from k3observe.exporters.experts import plugin_files
from k3observe.exporters.vllm_plugin import fileformat
from tests.exporters.experts.published import EXPERTS, LAYERS, Engine, Reader


def test_hostile_files_are_named_and_the_others_are_read(
    engine: Engine, reader: Reader, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine.interval(range(3))
    os.mkfifo(engine.file(3))
    (tmp_path / fileformat.file_name("link", 0, 0)).symlink_to("/etc/passwd")
    with (tmp_path / fileformat.file_name("huge", 0, 0)).open("wb") as file:
        file.truncate(fileformat.MAX_BYTES + 1)
    (tmp_path / fileformat.file_name("torn", 0, 0)).write_bytes(engine.file(0).read_bytes()[:-1])
    (tmp_path / fileformat.file_name("liar", 0, 0)).write_bytes(engine.file(0).read_bytes())
    (tmp_path / "notes.txt").write_text("not a file of counts")
    time.sleep(1.05)
    [loads] = reader.ranks()
    assert loads.counts == engine.by_rank()
    said = "\n".join(record.getMessage() for record in caplog.records)
    for words in ("not a regular file", "link", f"at most {fileformat.MAX_BYTES} are read",
                  "do not match the lengths", "the name is not that of the rank in it"):
        assert words in said
    assert reader.value("k3_source_errors_total", reason="invalid") == 1
    reader.look()
    assert reader.value("k3_source_errors_total", reason="invalid") == 1


def test_a_file_from_the_future_is_refused(engine: Engine, reader: Reader, caplog: pytest.LogCaptureFixture) -> None:
    engine.interval()
    reader.look()
    engine.sequence[0] += 1
    engine.write(0, [1] * LAYERS * EXPERTS, time=time.time() + 3600)
    assert reader.look() == []
    assert "its time lies in the future" in caplog.text
    engine.interval()
    assert len(reader.ranks()) == 1


def test_files_that_are_too_much_together_are_not_read(
    engine: Engine, reader: Reader, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine.interval()
    monkeypatch.setattr(plugin_files, "MAX_TOTAL_BYTES", engine.file(0).stat().st_size)
    reader.look()
    assert f"{engine.file(1).name} and those after it are not read" in caplog.text


def test_files_that_did_not_change_are_not_read_again(
    engine: Engine, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.interval()
    reader.look()
    monkeypatch.setattr(fileformat, "decode", lambda _: pytest.fail("it was read again"))
    assert reader.look() == []
