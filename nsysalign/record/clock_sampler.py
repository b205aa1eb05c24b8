"""GPU clocks, power and the reasons for slowing down, sampled through NVML while the script runs.

A thread of the runner reads them: nothing runs in the timed process, and the sampling ends with the
runner. NVML is only queried, nothing is set.  Its calls take the driver's lock for some
microseconds, which can delay an allocation or a module load of the script, never a launch; so the
sampler sleeps at least twenty times as long as its last round took, however slow the driver is and
however many GPUs there are.  Clocks and reasons are the driver's current state; power and
temperature are averages that it updates more slowly, so they are read in every fourth round only.

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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

FORMAT, VERSION = "nsysalign-clocks", 1
#: What a line holds.  `device` is CUDA's number; values that the GPU does not report are null.
COLUMNS = (
    "monotonic_ns",  # CLOCK_MONOTONIC, the middle of the reading
    "half_width_ns",  # half of how long the reading took
    "realtime_ns",
    "device",
    "sm_mhz",
    "mem_mhz",
    "reasons",  # NVML's bits: nvmlClocksEventReason*
    "power_mw",
    "temperature_c",
)
PERIOD_S = 0.025
#: The sampler may spend at most one part in this many of its time inside NVML.
IDLE_FACTOR = 20
SLOW_EVERY = 4
#: How long a finished run waits for an NVML call that hangs.
JOIN_S = 3.0
_FLUSH_S = 1.0
_GIVE_UP = 40  # rounds in a row in which no GPU answered
_LOST = "the GPU's clock was not sampled ({}): clock changes and throttling cannot be seen"
#: The same query under its new and its old name: a new binding may meet an old driver, and vice
#: versa.
_REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")


@contextlib.contextmanager
def sampling(path: Path, *, wanted: bool = True, flush_s: float = _FLUSH_S) -> Iterator[list[str]]:
    """Sample into `path` while the block runs; others can read samples older than `flush_s`.  The
    list holds notes once the block has ended.  Never raises."""
    notes: list[str] = []
    if not wanted:
        yield notes
        return
    stop, name = threading.Event(), "nsysalign-clocks"
    given = (path, stop, notes, flush_s)
    thread = threading.Thread(target=_guarded, args=given, name=name, daemon=True)
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


def _guarded(path: Path, stop: threading.Event, notes: list[str], flush_s: float) -> None:
    try:
        nvml = start_nvml()
    except Exception as error:
        notes.append(_LOST.format(f"NVML: {error}"))
        return
    try:
        if why := _sample(nvml, path, stop, flush_s):
            notes.append(_LOST.format(why))
    except Exception as error:
        said = error.strerror if isinstance(error, OSError) else None
        notes.append(f"the clock samples end early: {said or error}")
    finally:
        with contextlib.suppress(Exception):
            nvml.nvmlShutdown()


def _sample(nvml: Any, path: Path, stop: threading.Event, flush_s: float) -> str:
    """Until it is stopped; why there is nothing to sample, "" if there was."""
    handles, order = visible(nvml, os.environ)
    if not handles:
        return "NVML sees no GPU"
    readers = _readers(nvml, handles[0])
    header = {
        "type": "header",
        "format": FORMAT,
        "version": VERSION,
        "columns": COLUMNS,
        "period_ns": round(PERIOD_S * 1e9),
        "devices": len(handles),
        "order": order,
    }
    write = json.JSONEncoder(separators=(",", ":")).encode
    silent, round_number, flushed = 0, 0, time.monotonic()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(write(header) + "\n")
        while not stop.is_set():
            began, slow = time.monotonic(), round_number % SLOW_EVERY == 0
            rows = [_reading(readers, device, slow, h) for device, h in enumerate(handles)]
            file.writelines(write(row) + "\n" for row in rows)
            silent = silent + 1 if all(row[4] is None for row in rows) else 0
            if silent >= _GIVE_UP:
                return "the driver does not report it for this GPU"
            round_number += 1
            now = time.monotonic()
            if now - flushed > flush_s:
                file.flush()
                flushed = now
            stop.wait(max(PERIOD_S - (now - began), IDLE_FACTOR * (now - began)))
    return ""


def _readers(nvml: Any, handle: Any) -> list[Callable[[Any], int]]:
    """One function per column from sm_mhz on."""
    known = [getattr(nvml, name) for name in _REASONS if hasattr(nvml, name)]
    return [
        lambda handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        lambda handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        next((ask for ask in known if _ask(ask, handle) is not None), known[-1]),
        nvml.nvmlDeviceGetPowerUsage,
        lambda handle: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
    ]


def _reading(
    readers: list[Callable[[Any], int]], device: int, slow: bool, handle: Any
) -> list[int | None]:
    before = time.monotonic_ns()
    fast = [_ask(read, handle) for read in readers[:3]]
    after, real = time.monotonic_ns(), time.time_ns()
    rest = [_ask(read, handle) if slow else None for read in readers[3:]]
    middle = (before + after) // 2
    return [middle, (after - before + 1) // 2, real - (after - middle), device, *fast, *rest]


def _ask(read: Callable[[Any], int], handle: Any) -> int | None:
    try:
        return int(read(handle))
    except Exception:  # NVMLError and its many children: not supported, no permission, GPU lost
        return None


def visible(nvml: Any, environ: Mapping[str, str]) -> tuple[list[Any], str]:
    """Handles in the order in which CUDA numbers the devices, and how sure that order is: "pci" or
    "assumed".

    NVML numbers by PCI bus.  CUDA does the same for equal GPUs or with
    CUDA_DEVICE_ORDER=PCI_BUS_ID; of unequal ones it takes the fastest first.  CUDA_VISIBLE_DEVICES
    selects by number or UUID; a selection that cannot be followed (MIG) leaves all GPUs.
    """
    every = [nvml.nvmlDeviceGetHandleByIndex(k) for k in range(nvml.nvmlDeviceGetCount())]
    equal = len({name_of(nvml, handle) for handle in every}) <= 1
    chosen, sure = every, equal or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    asked = environ.get("CUDA_VISIBLE_DEVICES")
    if asked is not None and "MIG" in asked:
        return every, "assumed"
    if asked is not None:
        chosen = []
        uuids = [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in every]
        for item in filter(None, map(str.strip, asked.split(","))):
            same = [k for k, u in enumerate(uuids) if item[:4] == "GPU-" and u.startswith(item)]
            if item.isdecimal():
                same = [int(item)] if int(item) < len(every) else []
            # CUDA ends the list at the first entry that it does not know; a prefix that two
            # devices share names neither
            if len(same) != 1:
                break
            chosen.append(every[same[0]])
    return chosen, "pci" if sure else "assumed"


def name_of(nvml: Any, handle: Any) -> str:
    """What NVML calls the GPU, "" if it does not tell."""
    try:
        return _text(nvml.nvmlDeviceGetName(handle))
    except Exception:
        return ""


def _text(said: str | bytes) -> str:
    return said.decode(errors="replace") if isinstance(said, bytes) else str(said)
