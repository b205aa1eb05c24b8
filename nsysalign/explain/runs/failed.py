"""Which CUDA calls failed?"""

from __future__ import annotations

from nsysalign.explain.facts import Facts
from nsysalign.explain.finding import Advice, Finding, Findings
from nsysalign.text import plural, times_over

#: Calls that are named; the others are counted.
_MOST_NAMED = 3
#: Names of CUDA's error codes (driver_types.h), without `cudaError`.
ERRORS = {
    1: "InvalidValue", 2: "MemoryAllocation", 3: "InitializationError", 9: "InvalidConfiguration", 35: "InsufficientDriver",
    98: "InvalidDeviceFunction", 100: "NoDevice", 101: "InvalidDevice", 200: "InvalidKernelImage", 201: "DeviceUninitialized",
    209: "NoKernelImageForDevice", 218: "InvalidPtx", 222: "UnsupportedPtxVersion", 400: "InvalidResourceHandle", 401: "IllegalState",
    500: "SymbolNotFound", 700: "IllegalAddress", 701: "LaunchOutOfResources", 702: "LaunchTimeout", 710: "Assert",
    715: "IllegalInstruction", 716: "MisalignedAddress", 717: "InvalidAddressSpace", 718: "InvalidPc", 719: "LaunchFailure",
    720: "CooperativeLaunchTooLarge", 800: "NotPermitted", 801: "NotSupported", 802: "SystemNotReady", 803: "SystemDriverMismatch",
    900: "StreamCaptureUnsupported", 901: "StreamCaptureInvalidated", 999: "Unknown",
}  # fmt: skip


def failed_calls(facts: Facts) -> Findings:
    """Yield a finding if launches, copies or synchronisations returned an error: how many did, the three most frequent by
    name, and their error codes.  What such a call should have done did not happen.
    """
    failed = sorted(facts.failed_calls, key=lambda row: -row[2])
    if not failed:
        return
    named = [
        f"{call} {times_over(count)} with error {code}"
        + (f" (cudaError{ERRORS[code]})" if code in ERRORS else "")
        for call, code, count in failed[:_MOST_NAMED]
    ]
    total = sum(count for _, _, count in failed)
    more = ", …" if len(failed) > _MOST_NAMED else ""
    by_call = {f"{call}, error {code}": count for call, code, count in failed[:_MOST_NAMED]}
    yield Finding(
        "error",
        "the run",
        f"{plural(total, 'CUDA call')} failed: {', '.join(named)}{more}.",
        {"failed_calls": total, "by_call": by_call},
        Advice(
            "Check the status of every call; a failed launch does nothing, and its time is no kernel's:   "
            "cudaError_t error = cudaGetLastError();   compute-sanitizer ./PROGRAM"
        ),
    )
