"""NVML of a made-up GPU, by the functions that the sampler asks: idle at 345 MHz, rising while its
SM clock is read eight times, then 1980 MHz with the power cap pulling it to 1755 for every other
eight.  It lives by these readings, so that a busy machine changes nothing.  FAKE_NVML makes it
fail: init or hang.  Clocks that are locked and let go are written to the file
FAKE_NVML_LOG; FAKE_NVML_DENY: the error of locking, with @ of the second GPU alone."""

import os
import threading
import time

NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NO_PERMISSION = 3, 4
NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
_STEP_S = 0.025  # the sampler's period
_readings = 0
_how = os.environ.get("FAKE_NVML", "")
hanging = threading.Event()  # a call that never ends has begun
_names = os.environ.get("FAKE_NVML_NAMES", "GPU A").split(",")


class NVMLError(Exception):
    def __init__(self, said):
        super().__init__("Insufficient Permissions" if said == NVML_ERROR_NO_PERMISSION else said)
        self.value = said


def _since():
    """Seconds, as if it had been read in time."""
    return max(0, _readings - 1) * _STEP_S


def _capped():
    return _since() > 0.4 and int(_since() / 0.2) % 2 == 0


def nvmlInit():
    if _how == "init":
        raise NVMLError("Driver Not Loaded")


def nvmlShutdown():
    if path := os.environ.get("FAKE_NVML_SHUTDOWN"):
        open(path, "w").close()


def nvmlDeviceGetCount():
    return len(_names)


def nvmlDeviceGetHandleByIndex(index):
    return index


def nvmlDeviceGetName(handle):
    return _names[handle]


def nvmlDeviceGetUUID(handle):
    return f"GPU-secret-{handle}"


def nvmlDeviceGetClockInfo(handle, kind):
    global _readings
    if _how == "hang":
        hanging.set()
        time.sleep(60)
    if kind == NVML_CLOCK_MEM:
        return 2619
    _readings += 1
    if _since() < 0.2:
        return 345 + int(1635 * _since() / 0.2)
    return 1755 if _capped() else 1980


def nvmlDeviceGetCurrentClocksEventReasons(handle):
    raise NVMLError("Function Not Found")  # an older driver under a newer binding


def nvmlDeviceGetCurrentClocksThrottleReasons(handle):
    return 1 if _since() < 0.05 else 4 if _capped() else 0


def _log(text):
    with open(os.environ["FAKE_NVML_LOG"], "a") as file:
        file.write(text + "\n")


def nvmlDeviceGetSupportedMemoryClocks(handle):
    return [2619, 3201]


def nvmlDeviceGetSupportedGraphicsClocks(handle, memory):
    return [345, 1200, 1500, 1980] if memory == 3201 else [345]


def nvmlDeviceSetGpuLockedClocks(handle, low, high):
    deny = os.environ.get("FAKE_NVML_DENY")
    if deny and (deny[0] != "@" or handle == 1):
        raise NVMLError(int(deny.lstrip("@")))
    _log(f"lock {handle} {low} {high}")


def nvmlDeviceResetGpuLockedClocks(handle):
    _log(f"reset {handle}")
