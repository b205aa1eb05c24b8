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
        target=_guarded, args=(path, stop, notes, flush_s), name="nsysalign-clocks", daemon=True
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


def _guarded(
    path: Path, stop: threading.Event, notes: list[str], flush_s: float = _FLUSH_S
) -> None:
    try:
        nvml = start_nvml()
    except Exception as error:
        notes.append(_LOST.format(f"NVML: {error}"))
        return
    try:
        _sample(nvml, path, stop, notes, flush_s)
    except OSError as error:
        notes.append(f"the clock samples end early: {error.strerror or error}")
    except Exception as error:
        notes.append(f"the clock samples end early: {error}")
    finally:
        with contextlib.suppress(Exception):
            nvml.nvmlShutdown()


def _sample(nvml: Any, path: Path, stop: threading.Event, notes: list[str], flush_s: float) -> None:
    handles, order = visible(nvml, os.environ)
    if not handles:
        notes.append(_LOST.format("NVML sees no GPU"))
        return
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
    silent, round_number, flushed = 0, 0, time.monotonic()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(json.dumps(header, separators=(",", ":")) + "\n")
        while not stop.is_set():
            began = time.monotonic()
            rows = [
                _reading(readers, device, handle, slow=round_number % SLOW_EVERY == 0)
                for device, handle in enumerate(handles)
            ]
            file.writelines(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
            silent = silent + 1 if all(row[4] is None for row in rows) else 0
            if silent >= _GIVE_UP:
                notes.append(_LOST.format("the driver does not report it for this GPU"))
                return
            round_number += 1
            now = time.monotonic()
            if now - flushed > flush_s:
                file.flush()
                flushed = now
            stop.wait(max(PERIOD_S - (now - began), IDLE_FACTOR * (now - began)))


#: The same query under its new and its old name: a new binding may meet an old driver, and vice
#: versa.
_REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")


def _readers(nvml: Any, handle: Any) -> Mapping[str, Callable[[Any], int]]:
    """One function per column."""
    known = [getattr(nvml, name) for name in _REASONS if hasattr(nvml, name)]
    reasons = next((ask for ask in known if _ask(ask, handle) is not None), known[-1])
    return {
        "sm_mhz": lambda handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "mem_mhz": lambda handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "reasons": reasons,
        "power_mw": nvml.nvmlDeviceGetPowerUsage,
        "temperature_c": lambda handle: nvml.nvmlDeviceGetTemperature(
            handle, nvml.NVML_TEMPERATURE_GPU
        ),
    }


def _reading(
    readers: Mapping[str, Callable[[Any], int]], device: int, handle: Any, *, slow: bool
) -> list[int | None]:
    before = time.monotonic_ns()
    fast = [_ask(readers[name], handle) for name in ("sm_mhz", "mem_mhz", "reasons")]
    after, real = time.monotonic_ns(), time.time_ns()
    rest = [_ask(readers[name], handle) if slow else None for name in ("power_mw", "temperature_c")]
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
    chosen, followed = every, True
    asked = environ.get("CUDA_VISIBLE_DEVICES")
    if asked is not None:
        followed, chosen = False, []
        with contextlib.suppress(Exception):
            for item in filter(None, map(str.strip, asked.split(","))):
                found = _named(nvml, every, item)
                if found is None:  # CUDA ends the list at the first entry that it does not know
                    break
                chosen.append(found)
            followed = True
        if not followed or (not chosen and asked.strip().startswith("MIG")):
            chosen, followed = every, False
    names = {name_of(nvml, handle) for handle in every}
    sure = followed and (len(names) <= 1 or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID")
    return chosen, "pci" if sure else "assumed"


def _named(nvml: Any, every: list[Any], item: str) -> Any:
    if item.isdecimal():
        return every[int(item)] if int(item) < len(every) else None
    uuids = {k: nvml.nvmlDeviceGetUUID(handle) for k, handle in enumerate(every)}
    texts = {k: uuid.decode() if isinstance(uuid, bytes) else uuid for k, uuid in uuids.items()}
    same = [k for k, text in texts.items() if item.startswith("GPU-") and text.startswith(item)]
    return (
        every[same[0]] if len(same) == 1 else None
    )  # as in CUDA: a prefix that two devices share names neither


def name_of(nvml: Any, handle: Any) -> str:
    """What NVML calls the GPU, "" if it does not tell."""
    try:
        name = nvml.nvmlDeviceGetName(handle)
    except Exception:
        return ""
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)
