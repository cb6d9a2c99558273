"""A program that behaves as ``npu-smi`` does, on devices that a JSON file beside it describes.

It reads ``<its own path>.json`` at each call, so a drill changes the devices by replacing that file. It needs the
standard library only and no installation: ``install(folder, state)`` writes it as ``folder/npu-smi``.

The state::

    {"layout": "910", "driver": "25.2.0",
     "npus": [{"id": 0, "name": "910B2", "board_watts": 45.2,
               "chips": [{"bus": "0000:C1:00.0", "health": "OK", "watts": 96.5, "celsius": 36, "busy": 0,
                          "used": 3347, "total": 65536, "ecc": [0, 0], "codes": [],
                          "dead": false, "processes": [[4711, "VLLMWorker_TP", 3000]]}]}],
     "fault": {"kind": "hang", "on": "info"}, "before": "", "after": ""}

``layout`` is one of ``310`` (driver 21, no huge pages), ``910`` (22 to 25), ``A3`` (two dies), ``310P``, ``950`` (no
chip ids), ``26`` (wide). ``fault.kind``: ``hang``, ``orphan`` (a child keeps the pipe open after the exit), ``flood``,
``binary``, ``dcmi`` (-8005, exit status 187), ``silent``, ``killed``; ``fault.on`` limits it to one sub-command
(``info`` is the table).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

State = dict[str, Any]

# Widths of the columns: identity, health, readings; 950 has one more in front.
_WIDTHS = {
    "310": (19, 17, 40), "910": (27, 15, 52), "A3": (27, 15, 52), "310P": (31, 17, 54), "950": (27, 15, 53),
    "26": (27, 15, 70),
}
_HEADS = {
    "310": ("NPU     Name", "Chip    Device", "Power(W)          Temp(C)", "AICore(%)         Memory-Usage(MB)"),
    "910": ("NPU   Name", "Chip", "Power(W)    Temp(C)           Hugepages-Usage(page)",
            "AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)"),
    "A3": ("NPU   Name", "Chip  Phy-ID", "Power(W)    Temp(C)           Hugepages-Usage(page)",
           "AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)"),
    "310P": ("NPU     Name", "Chip    Device", "Power(W)     Temp(C)           Hugepages-Usage(page)",
             "AICore(%)    Memory-Usage(MB)"),
    "950": ("NPU ID | Name", "       |", "Power(W)    Temp(C)           Hugepages-Usage(page)",
            "NPU Util(%) Memory-Usage(MB)  HBM-Usage(MB)"),
    "26": ("NPU   Name", "Chip  Phy-ID", "Power(W)             Temp(C)                 Hugepages-Usage(page)",
           "AICore(%)            Memory-Usage(MB)        HBM-Usage(MB)"),
}
_HEALTH = ("OK", "Warning", "Alarm", "Critical", "UNKNOWN")


def install(folder: Path, state: State) -> Path:
    """Write the program and its state into ``folder`` and return its path."""
    program = folder / "npu-smi"
    write_state(program, state)
    program.write_text(f"#!{sys.executable} -IS\n{Path(__file__).read_text(encoding='utf-8')}", encoding="utf-8")
    program.chmod(0o755)
    return program


def write_state(program: Path, state: State) -> None:
    """Replace the devices of an installed program, atomically."""
    path = program.with_name(program.name + ".json")
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(state), encoding="utf-8")
    new.replace(path)


def cards(layout: str, count: int, used: int = 3347, total: int = 65536) -> State:
    """Return the state of ``count`` healthy NPUs with two chips each where the layout has two."""
    two = layout in ("A3", "26", "310P")
    names = {"A3": "Ascend910", "26": "Ascend910", "310P": "310P3", "950": "Ascend950", "310": "310"}

    def chip(npu: int, number: int) -> State:
        position = npu * (2 if two else 1) + (number if layout != "310P" else 0)
        return {"bus": f"0000:{0x81 + position:02X}:00.0", "health": "OK", "watts": 96.5, "celsius": 36, "busy": 12,
                "used": used, "total": total, "ecc": [0, 0], "codes": [], "processes": []}

    return {
        "layout": layout, "driver": "26.0.rc2" if layout == "26" else "25.2.0",
        "npus": [
            {"id": npu, "name": names.get(layout, "910B2"), "board_watts": 45.2,
             "chips": [chip(npu, n) for n in range(2 if two else 1)]}
            for npu in range(count)],
    }


def table(state: State) -> str:
    """Return what ``npu-smi info`` prints."""
    layout = state.get("layout", "910")
    identity, health, readings = _WIDTHS[layout]
    inner = identity + health + readings + 2
    rule = f"+{'-' * identity}+{'-' * health}+{'-' * readings}+"
    thick = rule.replace("-", "=")

    def row(first: str, second: str, third: str) -> str:
        return f"| {first:<{identity - 1}}| {second:<{health - 1}}| {third:<{readings - 1}}|"

    upper, lower, head, head2 = _HEADS[layout]
    version = state.get("driver", "25.2.0")
    out = [f"+{'-' * inner}+", f"| {f'npu-smi {version}':<33}Version: {version:<{inner - 43}}|", rule,
           row(upper, "Health", head), row(lower, "Bus-Id", head2), thick]
    physical = 0
    for npu in state["npus"]:
        for number, chip in enumerate(npu["chips"]):
            if number:
                out.append(rule if layout == "310P" else f"+{'-' * inner}+")
            out += _rows(layout, npu, number, physical, chip, row)
            physical += 1
        out.append(thick)
    return "\n".join([*out, *_processes(layout, state, rule, thick, inner)]) + "\n"


def _rows(layout: str, npu: State, number: int, physical: int, chip: State, row: Any) -> list[str]:
    """The two rows of a chip; one that does not answer prints zeros, and OK because OK is number 0."""
    dead = chip.get("dead", False)
    used, total = (0, 0) if dead else (chip["used"], chip["total"])
    watts = "0.0" if dead else f"{chip['watts']:.1f}"
    if layout == "310P":
        watts = "NA"
    elif layout in ("A3", "26") and number:
        watts = "-"
    celsius, busy = (0, 0) if dead else (chip["celsius"], chip["busy"])
    health = "OK" if dead else chip["health"]
    bus = "0000:00:00.0" if dead else chip["bus"]
    wide, narrow = layout == "26", layout in ("310", "310P")
    a, b = (21, 24) if wide else (18, 18) if layout == "310" else (13, 18) if narrow else (12, 18)
    first = f"{watts:<{a}}{celsius:<{b}}" + ("" if layout == "310" else "0    / 0")
    second = f"{busy:<{a}}" + (
        f"{used:<5}/ {total:<13}" if narrow
        else f"{0:<5}/ {0:<{16 if wide else 11}}" + f"{used:<5}/ {total:<13}".rstrip())
    ids = {"310": f"{number:<8}{physical}", "310P": f"{number:<8}{number}", "950": "       |",
           "A3": f"{number:<6}{physical}", "26": f"{number:<6}{physical}"}.get(layout, f"{number:<6}")
    names = f"{npu['id']:<7}| {npu['name']}" if layout == "950" else f"{npu['id']:<{8 if narrow else 6}}{npu['name']}"
    rows = [row(names, health, first), row(ids, bus, second)]
    # A health that the tool has no word for costs the first row.
    return rows if health in _HEALTH else rows[1:]


def _processes(layout: str, state: State, rule: str, thick: str, inner: int) -> Iterator[str]:
    yield rule
    more = " | Process id in container" if layout == "26" else ""
    ids = "NPU ID      " if layout == "950" else "NPU     Chip"
    head = f"{ids}              | Process id    | Process name       | Process memory(MB){more}"
    yield f"| {head:<{inner - 1}}|"
    for npu in state["npus"]:
        yield thick
        listed = False
        for number, chip in enumerate(npu["chips"]):
            for pid, name, memory in chip.get("processes", [])[:8]:
                ids = f"{npu['id']:<25}" if layout == "950" else f"{npu['id']:<8}{number:<17}"
                text = f"{ids}| {pid:<14}| {name:<18} | {memory:<18}" + (" | NA" if more else "")
                yield f"| {text:<{inner - 1}}|"
                listed = True
        if not listed:
            text = f"No running processes found in NPU {npu['id']}"
            yield f"| {text:<{inner - 1}}|"
    yield thick


def details(state: State, kind: str, npu_id: int, chip_id: int | None) -> str | None:
    """Return what ``npu-smi info -t KIND -i NPU [-c CHIP]`` prints; None when there is no such device or kind."""
    npu = next((npu for npu in state["npus"] if npu["id"] == npu_id), None)
    if npu is None:
        return None
    chips = [(n, chip) for n, chip in enumerate(npu["chips"]) if chip_id in (None, n)]
    one = state.get("layout") == "950"
    groups: list[list[tuple[str, object]]] = []
    if kind == "health":
        for _, chip in chips:
            codes, text = chip.get("codes", []), chip.get("information", [])
            groups.append([("Health" if one else "Health Status", chip["health"]),
                           ("Error Code", " ".join(codes) or "NA"), ("Error Information", text[0] if text else "NA"),
                           *(("", line) for line in text[1:])])
    elif kind == "ecc":
        for n, chip in chips:
            corrected, uncorrected = chip["ecc"]
            groups.append([
                ("DDR Single Bit Error Count", 0), ("DDR Double Bit Error Count", 0),
                ("HBM Single Bit Error Count", corrected), ("HBM Double Bit Error Count", uncorrected),
                ("HBM Single Bit Aggregate Total Err Cnt", corrected), ("Chip ID", n)])
    elif kind == "common":
        for n, chip in chips:
            group: list[tuple[str, object]] = [("Chip ID", n), ("Memory Usage Rate(%)", 0)]
            if not chip.get("split"):
                group.append(("Aicore Usage Rate(%)", chip["busy"]))
            group.append(("Temperature(C)", chip["celsius"]))
            if state.get("layout") != "310P":
                group.append(("NPU Real-time Power(W)", f"{chip['watts']:.1f}"))
            groups.append(group)
        if not one:
            groups.append([("Chip Name", "mcu"), ("Temperature(C)", 45),
                           ("NPU Real-time Power(W)", npu.get("board_watts", "NA"))])
    elif kind == "power" and state.get("layout") != "310P":
        for n, chip in chips:
            groups.append([("NPU Real-time Power(W)", f"{chip['watts']:.1f}"), ("Chip ID", n)])
    else:
        return None
    head: list[tuple[str, object]] = [("NPU ID", npu_id)]
    if one:
        groups[0][:0] = head
    else:
        groups.insert(0, [*head, ("Chip Count", len(npu["chips"]))])
    return "\n\n".join("\n".join(f"\t{key:<30} : {value}" for key, value in group) for group in groups) + "\n"


def _misbehave(kind: str) -> int:
    """Do what is wrong with the tool; return the exit status where it ends by itself."""
    if kind == "dcmi":
        print("dcmi module initialize failed. ret is -8005")
        return -8005 & 0xFF
    if kind == "binary":
        sys.stdout.buffer.write(bytes(range(256)) * 64)
        return 0
    if kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    while kind == "flood":
        sys.stdout.write("| 0     910B2               | OK            | 96.5        36 \n" * 1000)
    while kind == "hang":
        time.sleep(3600)
    return 0


def _option(args: list[str], name: str) -> str | None:
    return args[args.index(name) + 1] if name in args[:-1] else None


def main(args: list[str]) -> int:
    """Answer one call; return its exit status."""
    state: State = json.loads(Path(sys.argv[0] + ".json").read_text(encoding="utf-8"))
    kind = _option(args, "-t")
    fault = state.get("fault") or {}
    here = fault.get("on") in (None, kind or "info")
    if here and fault.get("kind") == "orphan":
        if os.fork() == 0:
            time.sleep(3600)
    elif here and fault.get("kind"):
        return _misbehave(fault["kind"])
    if args[:1] != ["info"]:
        print("Error parameter.")
        return 1
    if kind is None:
        text: str | None = state.get("before", "") + table(state) + state.get("after", "")
    else:
        chip = _option(args, "-c")
        text = details(state, kind, int(_option(args, "-i") or 0), None if chip is None else int(chip))
    if text is None:
        print(f"This device does not support querying {kind}.")
        return -8255 & 0xFF
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
