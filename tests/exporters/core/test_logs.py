from __future__ import annotations

import fcntl
import logging
import os
import time

from k3observe.exporters.logs import LogfmtFormatter, StderrHandler


def test_a_log_that_nobody_reads_drops_lines_instead_of_holding_up_and_tells_how_many() -> None:
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 16384)
    handler = StderrHandler(write)
    handler.setFormatter(LogfmtFormatter())
    record = logging.LogRecord("k3observe", logging.INFO, "", 0, "x" * 1000, None, None)
    start = time.monotonic()
    for _ in range(1000):
        handler.emit(record)
    assert time.monotonic() - start < 2
    assert os.read(read, 65536).count(b"x" * 1000) >= 1
    handler.emit(record)
    told = os.read(read, 65536).decode()
    assert "log lines were dropped: standard error took none" in told
    assert told.count("x" * 1000) == 1
    os.close(read)
    handler.emit(record)  # nobody can hear it any more
    os.close(write)
