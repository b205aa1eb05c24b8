"""`--lock-clocks MHZ`: the SM clock is held at one frequency while the script runs, and released whatever happens.

NVML does it (the package nvidia-ml-py, `import pynvml`).  It needs administrator rights.  NVML cannot tell whether a
lock was set before, so what is restored is the default: no lock.  KeyboardInterrupt, SIGTERM, SIGHUP and exceptions release the
clocks as well; if this process is killed outright, a small guardian process does.

    python -m nsysalign.record.lock UUID...      is that guardian: it waits for the end of its standard input
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nsysalign.errors import NsysError, UsageError
from nsysalign.record.clock_sampler import visible
from nsysalign.record.processes import ENDING

_DONE = b"done\n"
_RIGHTS = (
    "run it as root (in a container: one that was given CAP_SYS_ADMIN), or let an administrator lock them: "
    "sudo nvidia-smi -lgc MHZ, and sudo nvidia-smi -rgc afterwards"
)


@contextlib.contextmanager
def locked(mhz: int | None, environ: Mapping[str, str] = os.environ) -> Iterator[tuple[str, ...]]:
    """Lock the clocks of the GPUs that the script can see; yields what the report must say about the run.  Raises UsageError if
    the clock or the GPUs cannot be what was asked for, NsysError if NVML or the rights are missing: nothing is locked then.
    """
    if mhz is None:
        yield ()
        return
    nvml = _nvml()
    try:
        devices = _visible(nvml, environ)
        for device in devices:
            _check(nvml, device, mhz)
        stopping = _Stopping()
        with stopping.handlers(), _guardian(nvml, devices):
            try:
                try:
                    _lock(nvml, devices, mhz)
                    yield (_said(nvml, devices, mhz),)
                finally:
                    stopping.now = True  # from here on signals wait until the clocks are released
            finally:
                _reset(nvml, devices)
    finally:
        nvml.nvmlShutdown()


def _nvml() -> Any:
    try:
        import pynvml
    except ImportError as error:
        raise NsysError(
            "--lock-clocks needs NVIDIA's Python package for NVML",
            "pip install 'nsysalign[clocks]'",
        ) from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NsysError(
            f"NVML does not start: {error}",
            "check the driver: nvidia-smi; or leave out --lock-clocks",
        ) from error
    return pynvml


def _visible(nvml: Any, environ: Mapping[str, str]) -> list[Any]:
    """Handles of the GPUs that CUDA_VISIBLE_DEVICES leaves to the script; all of them if it is not set.  Raises UsageError if
    it is not certain which these are: another GPU's clock is not ours to lock."""
    asked = [
        name for name in map(str.strip, environ.get("CUDA_VISIBLE_DEVICES", "").split(",")) if name
    ]
    if any(name.startswith("MIG-") for name in asked):
        raise UsageError(
            "--lock-clocks: a MIG slice has no clock of its own, the whole GPU would be locked for its other users",
            "leave out --lock-clocks",
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
    """Check that the GPU supports this frequency; a GPU that does not list its frequencies is tested by locking it."""
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


def _lock(nvml: Any, devices: Sequence[Any], mhz: int) -> None:
    for device in devices:
        try:
            nvml.nvmlDeviceSetGpuLockedClocks(device, mhz, mhz)
        except nvml.NVMLError as error:
            value = getattr(error, "value", None)
            if value == nvml.NVML_ERROR_NO_PERMISSION:
                raise NsysError(
                    "no permission to lock clocks: NVML requires administrator rights", _RIGHTS
                ) from error
            if value == nvml.NVML_ERROR_NOT_SUPPORTED:
                raise NsysError(
                    f"{_name(nvml, device)} cannot lock its clocks (GPUs since Volta can)",
                    "leave out --lock-clocks",
                ) from error
            raise NsysError(
                f"{_name(nvml, device)}: its clocks could not be locked at {mhz} MHz: {error}",
                _RIGHTS,
            ) from error


def _reset(nvml: Any, devices: Sequence[Any]) -> None:
    """Release all; a failure is reported and does not keep the others locked."""
    for device in devices:
        try:
            nvml.nvmlDeviceResetGpuLockedClocks(device)
        except nvml.NVMLError as error:
            if getattr(error, "value", None) in (
                nvml.NVML_ERROR_NO_PERMISSION,
                nvml.NVML_ERROR_NOT_SUPPORTED,
            ):
                continue  # then it could not be locked either
            print(
                f"nsysalign: the clocks of {_name(nvml, device)} could not be reset ({error}): sudo nvidia-smi -rgc",
                file=sys.stderr,
                flush=True,
            )


def _said(nvml: Any, devices: Sequence[Any], mhz: int) -> str:
    names = ", ".join(dict.fromkeys(_name(nvml, d) for d in devices))
    many = f"{len(devices)} GPUs" if len(devices) > 1 else "the GPU"
    return f"SM clocks of {many} ({names}) were locked at {mhz} MHz during the run (--lock-clocks)"


def _name(nvml: Any, device: Any) -> str:
    return _text(nvml.nvmlDeviceGetName(device))


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


class _Stopping:
    """Turns the first signal into an exception, so that every `finally` runs."""

    def __init__(self) -> None:
        self.now = False
        self._late: list[int] = []

    @contextlib.contextmanager
    def handlers(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._asked) for number in ENDING}
        try:
            yield
        finally:
            for number, old in before.items():
                signal.signal(number, old if old is not None else signal.SIG_DFL)
            for number in self._late:
                signal.raise_signal(number)

    def _asked(self, number: int, _frame: object) -> None:
        if self.now:
            self._late.append(number)
            return
        self.now = True
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)


@contextlib.contextmanager
def _guardian(nvml: Any, devices: Sequence[Any]) -> Iterator[None]:
    """A process that resets the clocks if this one is killed: its input then ends without the closing message."""
    names = [_text(nvml.nvmlDeviceGetUUID(d)) for d in devices]
    process = subprocess.Popen(
        [sys.executable, "-m", "nsysalign.record.lock", *names],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            process.stdin.write(_DONE)
            process.stdin.flush()
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.wait()


def guard(names: Sequence[str]) -> None:
    """The guardian's main loop."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read().endswith(_DONE):
        return
    nvml = _nvml()
    devices = [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(nvml.nvmlDeviceGetCount())]
    _reset(nvml, [d for d in devices if _text(nvml.nvmlDeviceGetUUID(d)) in names])


if __name__ == "__main__":
    guard(sys.argv[1:])
