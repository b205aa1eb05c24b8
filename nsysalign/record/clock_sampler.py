"""GPU clocks and the reasons for slowing down, sampled through NVML while the script runs.

A thread of the runner reads them: nothing runs in the timed process, and the sampling ends with the
runner. NVML is only queried, nothing is set.  Its calls take the driver's lock for some
microseconds, which can delay an allocation or a module load of the script, never a launch; so the
sampler sleeps at least twenty times as long as its last round took, however slow the driver is and
however many GPUs there are.

`clocks.jsonl`: a header line {"format": "nsysalign-clocks", "version": 1, "columns": [...], ...},
then one array per GPU and round.  No UUID, serial number, process or host name.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FORMAT, VERSION = "nsysalign-clocks", 1
#: What a line holds.  `device` is CUDA's number; values that the GPU does not report are null.
COLUMNS = (
    "monotonic_ns",  # CLOCK_MONOTONIC, the middle of the reading
    "realtime_ns",
    "device",
    "sm_mhz",
    "mem_mhz",
    "reasons",  # NVML's bits: nvmlClocksEventReason*
)
PERIOD_S = 0.025
#: The sampler may spend at most one part in this many of its time inside NVML.
IDLE_FACTOR = 20
#: How long a finished run waits for an NVML call that hangs.
JOIN_S = 3.0
_FLUSH_S = 1.0
_LOST = "the GPU's clock was not sampled (NVML: {}): clock changes and throttling cannot be seen"


@contextlib.contextmanager
def sampling(path: Path, *, wanted: bool = True, flush_s: float = _FLUSH_S) -> Iterator[list[str]]:
    """Sample into `path` while the block runs; others can read samples older than `flush_s`.  The
    list holds notes once the block has ended.  Never raises."""
    notes: list[str] = []
    if not wanted:
        yield notes
        return
    stop = threading.Event()
    thread = threading.Thread(
        target=_sample, args=(path, stop, notes, flush_s), name="nsysalign-clocks", daemon=True
    )
    thread.start()
    try:
        yield notes
    finally:
        stop.set()
        thread.join(JOIN_S)
        if thread.is_alive():
            notes.append("NVML stopped answering, so the clock samples end early")


def start_nvml() -> Any:
    """NVML's Python binding, started.  Raises whatever that raises: no driver, no permission, a
    mismatch."""
    with warnings.catch_warnings():  # the package named pynvml warns that it is not nvidia-ml-py
        warnings.simplefilter("ignore")
        import pynvml
    pynvml.nvmlInit()
    return pynvml


def _sample(path: Path, stop: threading.Event, notes: list[str], flush_s: float) -> None:
    """Until it is stopped; `notes`: why it ended before."""
    begun = False
    try:
        nvml = start_nvml()
        handles, order = visible(nvml, os.environ)
        if not handles:
            raise RuntimeError("no GPU")
        if _row(nvml, 0, handles[0])[COLUMNS.index("sm_mhz")] is None:
            raise RuntimeError("the driver does not report it for this GPU")
        header = {"type": "header", "format": FORMAT, "version": VERSION, "columns": COLUMNS}
        header |= {"period_ns": round(PERIOD_S * 1e9), "devices": len(handles), "order": order}
        write = json.JSONEncoder(separators=(",", ":")).encode
        begun = True
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(write(header) + "\n")
            flushed = time.monotonic()
            while True:
                began = time.monotonic()
                for device, handle in enumerate(handles):
                    file.write(write(_row(nvml, device, handle)) + "\n")
                took_s = time.monotonic() - began
                if began - flushed > flush_s:
                    file.flush()
                    flushed = began
                if stop.wait(max(PERIOD_S - took_s, IDLE_FACTOR * took_s)):
                    break
        nvml.nvmlShutdown()
    except Exception as error:
        why = error.strerror if begun and isinstance(error, OSError) else error
        notes.append(f"the clock samples end early: {why}" if begun else _LOST.format(why))


def _row(nvml: Any, device: int, handle: Any) -> list[int | None]:
    """One line, by COLUMNS."""

    def ask(name: str, *arguments: int) -> int | None:
        try:
            return int(getattr(nvml, f"nvmlDeviceGet{name}")(handle, *arguments))
        except Exception:  # not supported, no permission, GPU lost, an old binding
            return None

    before = time.monotonic_ns()
    sm_mhz, mem_mhz = (ask("ClockInfo", k) for k in (nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM))
    # the same query under its new and its old name: a new binding may meet an old driver
    reasons = ask("CurrentClocksEventReasons")
    if reasons is None:
        reasons = ask("CurrentClocksThrottleReasons")
    after, real = time.monotonic_ns(), time.time_ns()
    middle = (before + after) // 2
    return [middle, real - (after - middle), device, sm_mhz, mem_mhz, reasons]


def visible(nvml: Any, environ: Mapping[str, str]) -> tuple[list[Any], str]:
    """Handles in the order in which CUDA numbers the devices, and how sure that order is: "pci" or
    "assumed".

    NVML numbers by PCI bus.  CUDA does the same for equal GPUs or with
    CUDA_DEVICE_ORDER=PCI_BUS_ID; of unequal ones it takes the fastest first.  CUDA_VISIBLE_DEVICES
    selects by number or UUID; a selection that cannot be followed (MIG) leaves all GPUs.
    """
    handles = [nvml.nvmlDeviceGetHandleByIndex(k) for k in range(nvml.nvmlDeviceGetCount())]
    equal = len({nvml.nvmlDeviceGetName(handle) for handle in handles}) <= 1
    order = "pci" if equal or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" else "assumed"
    asked = environ.get("CUDA_VISIBLE_DEVICES")
    if asked is None:
        return handles, order
    if "MIG" in asked:
        return handles, "assumed"
    chosen = []
    uuids = [nvml.nvmlDeviceGetUUID(handle) for handle in handles]
    for item in filter(None, map(str.strip, asked.split(","))):
        if item.isdecimal():
            matches = [int(item)] if int(item) < len(handles) else []
        else:
            matches = [k for k, u in enumerate(uuids) if item[:4] == "GPU-" and u.startswith(item)]
        # CUDA ends the list at the first entry that it does not know; a prefix that two devices
        # share names neither
        if len(matches) != 1:
            break
        chosen.append(handles[matches[0]])
    return chosen, order
