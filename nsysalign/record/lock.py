"""`--lock-clocks MHZ`: the SM clock is held at one frequency while the script runs.

NVML does it, which needs administrator rights and cannot tell whether a lock was set before: what is
restored is the default, no lock.  A nsysalign that is killed (SIGKILL) restores nothing, so the command
that does is printed first.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from nsysalign.errors import NsysError, UsageError
from nsysalign.record.clock_sampler import start_nvml, visible
from nsysalign.record.processes import say

_RESTORES = "sudo nvidia-smi -rgc"
_RIGHTS = (
    "locking needs administrator rights (in a container: CAP_SYS_ADMIN): run it as root, or let an administrator lock "
    f"them: sudo nvidia-smi -lgc MHZ, and {_RESTORES} afterwards; or leave out --lock-clocks"
)


@contextlib.contextmanager
def locked(mhz: int | None, environ: Mapping[str, str] = os.environ) -> Iterator[tuple[str, ...]]:
    """Lock the clocks of the GPUs that the script can see; yields what the report must say about
    the run.  Raises UsageError if it is not certain which these are or one has no such clock,
    NsysError if NVML or the rights are missing or a GPU refuses: nothing stays locked then.
    """
    if mhz is None:
        yield ()
        return
    try:
        nvml = start_nvml()
    except Exception as error:
        reason = f"NVML does not start: {error}"
        raise NsysError(
            reason, "check the driver: nvidia-smi; or leave out --lock-clocks"
        ) from error
    with contextlib.ExitStack() as held:
        held.callback(nvml.nvmlShutdown)
        handles, order = visible(nvml, environ)
        asked = environ.get("CUDA_VISIBLE_DEVICES")
        if not handles or (asked is not None and order != "pci"):
            raise UsageError(
                f"--lock-clocks: it is not clear which GPUs the script can see (CUDA_VISIBLE_DEVICES={asked or ''})",
                "check nvidia-smi -L; set CUDA_DEVICE_ORDER=PCI_BUS_ID where GPUs differ; a MIG slice has no clock of its own",
            )
        names = [nvml.nvmlDeviceGetName(handle) for handle in handles]
        for handle, name in zip(handles, names, strict=True):
            known: list[int] = []  # NVML takes any frequency and locks the nearest of these
            with contextlib.suppress(nvml.NVMLError, ValueError):  # it does not tell
                memory = max(nvml.nvmlDeviceGetSupportedMemoryClocks(handle))
                known = nvml.nvmlDeviceGetSupportedGraphicsClocks(handle, memory)
            if known and mhz not in known:
                near = " and ".join(map(str, sorted(sorted(known, key=lambda c: abs(c - mhz))[:2])))
                raise UsageError(
                    f"{name} does not support an SM clock of {mhz} MHz (the nearest: {near})",
                    "all that it supports: nvidia-smi -q -d SUPPORTED_CLOCKS",
                )
            try:
                nvml.nvmlDeviceSetGpuLockedClocks(handle, mhz, mhz)
            except nvml.NVMLError as error:
                reason = f"{name}: its clock could not be locked at {mhz} MHz: {error}"
                raise NsysError(reason, _RIGHTS) from error
            held.callback(_restore, nvml, handle, name)
        say(f"the clocks are locked; if nsysalign is killed, this lets them go: {_RESTORES}")
        gpus = f"{len(handles)} GPUs" if len(handles) > 1 else "the GPU"
        models = ", ".join(dict.fromkeys(names))
        yield (
            f"SM clocks of {gpus} ({models}) were locked at {mhz} MHz during the run (--lock-clocks)",
        )


def _restore(nvml: Any, handle: Any, name: str) -> None:
    try:
        nvml.nvmlDeviceResetGpuLockedClocks(handle)
    except nvml.NVMLError as error:
        say(f"the clock of {name} is still locked ({error}): {_RESTORES}")
