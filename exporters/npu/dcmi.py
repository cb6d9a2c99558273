"""What an exit of ``npu-smi`` means: the tool exits with the low byte of the code of DCMI, the library below it.

The tool writes its messages to stdout ("dcmi module initialize failed. ret is -8005", exit status 187).
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Code(NamedTuple):
    """A DCMI error: its number, what it says and what helps."""

    number: int
    meaning: str
    help: str


_CONTAINER = (
    "run as root or in the group HwHiAiUser; in a container pass /dev/davinci*, /dev/davinci_manager, "
    "/dev/devmm_svm, /dev/hisi_hdc and the driver folder /usr/local/Ascend/driver"
)
_BUSY = "the driver is busy or the chip is starting: it is asked again"
_CHIP = "the chip does not answer: look at dmesg and `npu-smi info -t health`, reset or replace it"
_VERSION = "tool, driver and firmware may differ in version: compare `npu-smi info -t board`"

CODES: dict[int, Code] = {
    number: Code(number, meaning, hint)
    for number, meaning, hint in (
        (-8001, "invalid parameter", _VERSION),
        (-8002, "operation not permitted", _CONTAINER),
        (-8003, "memory operation failed", "the host may be out of memory"),
        (-8005, "inner error, the driver could not be initialised", _CONTAINER),
        (-8006, "time out", _CHIP),
        (-8007, "invalid device", "the device left or was renumbered: compare `npu-smi info -l`"),
        (-8008, "device does not exist", "the device left or was renumbered: compare `npu-smi info -l`"),
        (-8009, "ioctl failed", _CHIP),
        (-8010, "message could not be sent", _CHIP),
        (-8011, "message could not be received", _CHIP),
        (-8012, "not ready", _BUSY),
        (-8013, "not supported in a container", "run the exporter on the host"),
        (-8014, "file operation failed", _CONTAINER),
        (-8015, "the device is being reset", _BUSY),
        (-8016, "aborted", _BUSY),
        (-8017, "the firmware is being upgraded", _BUSY),
        (-8020, "the resource is occupied", _BUSY),
        (-8022, "wrong partition", "check how the NPU is split into vNPUs"),
        (-8255, "not supported", "this part or driver does not have it"),
    )
}
UNSUPPORTED = (-8013, -8255)

_BY_STATUS = {number & 0xFF: code for number, code in CODES.items()}
_SAID = re.compile(r"ret(?:urn)?(?: code)?(?: is|:|=)?\s{0,4}(-8[0-9]{3})\b")


def code_of(status: int, output: str) -> Code | None:
    """Return the DCMI error behind an exit ``status`` and the ``output`` beside it; what the tool says goes first."""
    for said in _SAID.finditer(output):
        number = int(said[1])
        return CODES.get(number, Code(number, "unknown DCMI error", _VERSION))
    return _BY_STATUS.get(status)
