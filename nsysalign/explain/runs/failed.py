"""Which CUDA calls failed?"""

from __future__ import annotations

from nsysalign.explain.clauses import Clause, Cut, ever_shorter
from nsysalign.explain.facts import COPIES, LAUNCHES, Facts
from nsysalign.explain.finding import Advice, Finding, Findings
from nsysalign.explain.runs.no_work import CallsWithoutWork, first_reason
from nsysalign.model import LASTING_ERRORS
from nsysalign.text import plural, times_over

#: Calls that are named, those that failed first; the others are counted.
_MOST_NAMED = 3
#: Names of CUDA's error codes (driver_types.h), without `cudaError`.
ERRORS = {
    1: "InvalidValue", 2: "MemoryAllocation", 3: "InitializationError", 9: "InvalidConfiguration", 35: "InsufficientDriver",
    98: "InvalidDeviceFunction", 100: "NoDevice", 101: "InvalidDevice", 200: "InvalidKernelImage", 201: "DeviceUninitialized",
    209: "NoKernelImageForDevice", 218: "InvalidPtx", 222: "UnsupportedPtxVersion", 400: "InvalidResourceHandle", 401: "IllegalState",
    500: "SymbolNotFound", 700: "IllegalAddress", 701: "LaunchOutOfResources", 702: "LaunchTimeout", 709: "ContextIsDestroyed", 710: "Assert",
    714: "HardwareStackError", 715: "IllegalInstruction", 716: "MisalignedAddress", 717: "InvalidAddressSpace", 718: "InvalidPc", 719: "LaunchFailure",
    720: "CooperativeLaunchTooLarge", 800: "NotPermitted", 801: "NotSupported", 802: "SystemNotReady", 803: "SystemDriverMismatch",
    900: "StreamCaptureUnsupported", 901: "StreamCaptureInvalidated", 999: "Unknown",
}  # fmt: skip


#: What did not happen, by the kind of the call that failed.
_LAUNCHED, _COPIED, _CALLED = (
    "a failed launch does nothing, and its time is no kernel's",
    "the bytes of a failed copy never arrived, and what ran behind it worked on what was there before",
    "what a failed call should have done did not happen",
)
_CHECK = "Check the status of every call; {}:   cudaError_t error = cudaGetLastError();   compute-sanitizer ./PROGRAM"
_FIND = "Find the kernel that fails before anything is timed:   compute-sanitizer ./PROGRAM"


def failed_calls(facts: Facts) -> Findings:
    """Yield a finding if calls failed: how many did, the first three by name, and their error codes.  What such a call
    should have done did not happen.

    The trace's reader chose them: launches, copies and synchronisations that returned an error, and any call that
    returned one after which no later call works.

    Where no call of the trace gives work to the GPU, the recorder's own reason is said with it.
    """
    failed = facts.failed_calls
    if not failed:
        return
    texts = []
    explained_codes = set[int]()  # a code has its name where it comes first
    for call, code, count in failed[:_MOST_NAMED]:
        is_new = code in ERRORS and code not in explained_codes
        name = f" (cudaError{ERRORS[code]})" if is_new else ""
        texts.append(f"{call} {times_over(count)} with error {code}{name}")
        explained_codes.add(code)
    total = sum(count for _, _, count in failed)
    first, *later = texts
    calls = f"first {first}, then {', '.join(later)}" if later else first
    more = ", …" if len(failed) > _MOST_NAMED else ""
    by_call = {f"{call}, error {code}": count for call, code, count in failed[:_MOST_NAMED]}
    shorter = {}
    if not later:
        shorter = {
            Cut.WORDS: f"{plural(total, 'call')} of {first.replace(times_over(total), 'failed', 1)}."
        }
    clauses = [Clause(f"{plural(total, 'CUDA call')} failed: {calls}{more}.", shorter)]
    recorder = facts.analysis.trace
    without_work = facts.analysis.of_runs_by(CallsWithoutWork)
    if recorder.reasons and any(calls_made.issuing == 0 for calls_made in without_work):
        why = f" No call in the trace gives work to the GPU; {recorder.by.title} says: {first_reason(recorder.reasons)}"
        clauses.append(Clause(why, {Cut.SECOND_CLAUSE: ""}))
    lasting = any(code in LASTING_ERRORS for _, code, _ in failed)
    texts = ever_shorter(*clauses)
    yield Finding(
        "error",
        "the run",
        texts[0],
        {"failed_calls": total, "by_call": by_call},
        Advice(_FIND if lasting else _CHECK.format(_what_did_not_happen(facts))),
        shorter=texts,
    )


def _what_did_not_happen(facts: Facts) -> str:
    """Return in words what did not happen where calls failed: a launch, where one of them launched; else a copy."""
    names = [call for call, _, _ in facts.failed_calls]
    if any(map(LAUNCHES.search, names)):
        return _LAUNCHED
    return _COPIED if all(map(COPIES.search, names)) else _CALLED
