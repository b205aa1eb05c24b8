"""NVML without a GPU: what is set and reset is written to the file that FAKE_NVML names.
FAKE_NVML_DENY: error value."""

import os

NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NO_PERMISSION = 3, 4
_NAMES = os.environ.get("FAKE_NVML_GPUS", "NVIDIA H200,NVIDIA H200").split(",")


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(
            {3: "Not Supported", 4: "Insufficient Permissions"}.get(value, f"error {value}")
        )
        self.value = value


def _log(text):
    with open(os.environ["FAKE_NVML"], "a") as file:
        file.write(text + "\n")


def nvmlInit():
    if "FAKE_NVML_BROKEN" in os.environ:
        raise NVMLError(12)


def nvmlShutdown():
    pass


def nvmlDeviceGetCount():
    return len(_NAMES)


def nvmlDeviceGetHandleByIndex(index):
    return index


def nvmlDeviceGetName(device):
    return _NAMES[device].encode()


def nvmlDeviceGetUUID(device):
    return f"GPU-{device}abc"


def nvmlDeviceGetSupportedMemoryClocks(device):
    return [2619, 3201]


def nvmlDeviceGetSupportedGraphicsClocks(device, memory):
    return [345, 1200, 1500, 1980] if memory == 3201 else [345]


def nvmlDeviceSetGpuLockedClocks(device, low, high):
    deny = os.environ.get("FAKE_NVML_DENY")
    if deny and (deny[0] != "@" or device == 1):
        raise NVMLError(int(deny.lstrip("@")))
    _log(f"lock {device} {low} {high}")


def nvmlDeviceResetGpuLockedClocks(device):
    _log(f"reset {device}")
