"""`--lock-clocks MHZ`: the SM clock is held at one frequency while the script runs, and released
whatever happens.

NVML does it (the package nvidia-ml-py, `import pynvml`).  It needs administrator rights.  NVML
cannot tell whether a lock was set before, so what is restored is the default: no lock.  A small
process of its own releases the clocks when its standard input ends, which it does with us, however
we end:

    python -m nsysalign.record.lock UUID...
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from nsysalign.errors import NsysError, UsageError
from nsysalign.record.clock_sampler import start_nvml, visible
from nsysalign.record.processes import ENDING

_RIGHTS = (
    "run it as root (in a container: one that was given CAP_SYS_ADMIN), or let an administrator lock them: "
    "sudo nvidia-smi -lgc MHZ, and sudo nvidia-smi -rgc afterwards"
)
_LEAVE_OUT = "leave out --lock-clocks"


@contextlib.contextmanager
def locked(mhz: int | None, environ: Mapping[str, str] = os.environ) -> Iterator[tuple[str, ...]]:
    """Lock the clocks of the GPUs that the script can see; yields what the report must say about
    the run.  Raises UsageError if the clock or the GPUs cannot be what was asked for, NsysError if
    NVML or the rights are missing: nothing stays locked then.
    """
    if mhz is None:
        yield ()
        return
    nvml = _nvml()
    try:
        devices = _visible(nvml, environ)
        for device in devices:
            _check(nvml, device, mhz)
        guardian = subprocess.Popen(
            [sys.executable, "-m", "nsysalign.record.lock", *(_text(nvml.nvmlDeviceGetUUID(d)) for d in devices)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            for device in devices:
                try:
                    nvml.nvmlDeviceSetGpuLockedClocks(device, mhz, mhz)
                except nvml.NVMLError as error:
                    raise _refused(nvml, device, mhz, error) from error
            names = ", ".join(dict.fromkeys(_name(nvml, d) for d in devices))
            many = f"{len(devices)} GPUs" if len(devices) > 1 else "the GPU"
            yield (
                f"SM clocks of {many} ({names}) were locked at {mhz} MHz during the run (--lock-clocks)",
            )
        finally:
            guardian.stdin.close()
            guardian.wait()
    finally:
        nvml.nvmlShutdown()


def _nvml() -> Any:
    try:
        return start_nvml()
    except Exception as error:
        raise NsysError(
            f"NVML does not start: {error}",
            "check the driver: nvidia-smi; or leave out --lock-clocks",
        ) from error


def _visible(nvml: Any, environ: Mapping[str, str]) -> list[Any]:
    """Handles of the GPUs that CUDA_VISIBLE_DEVICES leaves to the script; all of them if it is not
    set.  Raises UsageError if it is not certain which these are: another GPU's clock is not ours to
    lock."""
    asked = [
        name for name in map(str.strip, environ.get("CUDA_VISIBLE_DEVICES", "").split(",")) if name
    ]
    if any(name.startswith("MIG-") for name in asked):
        raise UsageError(
            "--lock-clocks: a MIG slice has no clock of its own, the whole GPU would be locked for its other users",
            _LEAVE_OUT,
        )
    found, order = visible(nvml, environ)
    if len(found) < len(asked):
        raise UsageError(
            f"--lock-clocks: CUDA_VISIBLE_DEVICES names {asked[len(found)]}, and NVML reports no single GPU of that name",
            "check it: nvidia-smi -L",
        )
    if not found:
        raise UsageError(
            "--lock-clocks: no GPU is visible to the script",
            "check CUDA_VISIBLE_DEVICES and nvidia-smi",
        )
    if order != "pci" and any(name.isdecimal() for name in asked):
        raise UsageError(
            "--lock-clocks: CUDA numbers these different GPUs by speed, NVML by PCI bus: it is not clear which one is "
            f"number {asked[0]}",
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID",
        )
    return found


def _check(nvml: Any, device: Any, mhz: int) -> None:
    """Check that the GPU supports this frequency; a GPU that does not list its frequencies is
    tested by locking it."""
    try:
        memory = max(nvml.nvmlDeviceGetSupportedMemoryClocks(device))
        known = sorted(nvml.nvmlDeviceGetSupportedGraphicsClocks(device, memory))
    except (nvml.NVMLError, ValueError):
        return
    if known and mhz not in known:
        near = sorted(sorted(known, key=lambda c: abs(c - mhz))[:2])
        raise UsageError(
            f"{_name(nvml, device)} does not support an SM clock of {mhz} MHz (it knows {known[0]} to {known[-1]})",
            f"the nearest: {' and '.join(map(str, near))}; all: nvidia-smi -q -d SUPPORTED_CLOCKS",
        )


def _refused(nvml: Any, device: Any, mhz: int, error: Any) -> NsysError:
    value = getattr(error, "value", None)
    if value == nvml.NVML_ERROR_NO_PERMISSION:
        said = "no permission to lock clocks: NVML requires administrator rights"
        return NsysError(said, _RIGHTS)
    name = _name(nvml, device)
    if value == nvml.NVML_ERROR_NOT_SUPPORTED:
        return NsysError(f"{name} cannot lock its clocks (GPUs since Volta can)", _LEAVE_OUT)
    return NsysError(f"{name}: its clocks could not be locked at {mhz} MHz: {error}", _RIGHTS)


def _name(nvml: Any, device: Any) -> str:
    return _text(nvml.nvmlDeviceGetName(device))


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def guard(names: list[str]) -> None:
    """The guardian: release all; a failure is reported and does not keep the others locked."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    nvml = _nvml()
    for k in range(nvml.nvmlDeviceGetCount()):
        device = nvml.nvmlDeviceGetHandleByIndex(k)
        if _text(nvml.nvmlDeviceGetUUID(device)) not in names:
            continue
        try:
            nvml.nvmlDeviceResetGpuLockedClocks(device)
        except nvml.NVMLError as error:
            # where it is not allowed or not supported it could not be locked either
            never = (nvml.NVML_ERROR_NO_PERMISSION, nvml.NVML_ERROR_NOT_SUPPORTED)
            if getattr(error, "value", None) not in never:
                name = _name(nvml, device)
                said = f"nsysalign: the clocks of {name} could not be reset ({error}): sudo nvidia-smi -rgc"
                print(said, file=sys.stderr, flush=True)


if __name__ == "__main__":
    guard(sys.argv[1:])
