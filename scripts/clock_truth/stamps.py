"""Kernels that note the GPU's own clock (%globaltimer), and the distances of events to reference events.

Shared by globaltimer.py and event_place.py; both run on a GPU only.
"""

from __future__ import annotations

import ctypes

import torch

_SOURCE = """
typedef unsigned long long u64;
__device__ __forceinline__ u64 now() {
  u64 t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t) :: "memory"); return t;
}
// out[3 * slot ...] = {%gridid, first reading, last reading}; spins for ns in between
extern "C" __global__ void stamp(u64 *out, int slot, int ns) {
  u64 first = now(), last = first, grid;
  asm volatile("mov.u64 %0, %gridid;" : "=l"(grid));
  u64 *mine = out + 3ll * slot;
  mine[0] = grid; mine[1] = first;
  do last = now(); while (last - first < (u64)ns);
  mine[2] = last;
}
// For i = 1..count: note the time, then set *flag = i; wait until *answer is i, then note the time again.
// Who waits for flag and then sets answer did so between the two readings.  Nothing is waited for longer than limit_us.
extern "C" __global__ void bounce(volatile unsigned *go, volatile unsigned *flag, volatile unsigned *answer,
                                  u64 *out, int count, int limit_us) {
  u64 end = now() + 1000ull * limit_us;
  while (*go == 0 && now() < end) {}
  for (int i = 1; i <= count; i++) {
    u64 before = now();
    *flag = i + (unsigned)(before >> 63);  // 0, but the store cannot be issued before the reading is there
    while (*answer != (unsigned)i) { if (now() > end) { i = count; break; } }
    u64 after = now();
    if (after > end) break;
    out[2 * (i - 1)] = before; out[2 * (i - 1) + 1] = after;
  }
  *flag = 0x3fffffff;  // whoever still waits goes on
  __threadfence_system();
}
"""
#: Values of CUstreamWaitValue_flags and CUstreamWriteValue_flags (cuda.h).
WAIT_GEQ, WRITE_DEFAULT, WRITE_NO_BARRIER = 0, 0, 1
_kernels: dict[str, object] = {}


def launch(name: str, *arguments: torch.Tensor | int) -> None:
    """One thread of a kernel above, on the current stream."""
    if name not in _kernels:
        _kernels[name] = torch.cuda._compile_kernel(_SOURCE, name)
    _kernels[name]((1, 1, 1), (1, 1, 1), arguments)


def event(**more: bool) -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True, **more)


class Stamps:
    """Slots for stamping kernels."""

    def __init__(self, slots: int = 4096) -> None:
        self.out = torch.zeros((slots, 3), dtype=torch.int64, device="cuda")
        self.used = 0

    def stamp(self, ns: int = 0) -> int:
        """A stamping kernel on the current stream that lasts `ns`; its slot."""
        slot, self.used = self.used, self.used + 1
        if slot >= len(self.out):
            raise IndexError(f"more than {len(self.out)} stamps before they were read")
        launch("stamp", self.out, slot, ns)
        return slot

    def read(self) -> list[list[int]]:
        """[grid id, first, last] (ns of %globaltimer) of every slot used so far; the slots are free again."""
        torch.cuda.synchronize()
        values = self.out[: self.used].tolist()
        self.used = 0
        return values


class References:
    """Reference events on a stream of their own, each linked to the one before.

    Through the driver, past torch: the probe of nsysalign is to see the program's own pairs only.
    """

    def __init__(self) -> None:
        self.driver, self.stream = ctypes.CDLL("libcuda.so.1"), torch.cuda.Stream()
        self.driver.cuEventRecord.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self.driver.cuEventSynchronize.argtypes = [ctypes.c_void_p]
        self.driver.cuEventElapsedTime.argtypes = [ctypes.c_void_p] * 3
        self.handle, self.lines = None, []

    def renew(self) -> None:
        """A new reference; its distance to the previous one in ms goes to `lines` (0 for the first)."""
        new = ctypes.c_void_p()
        check(self.driver.cuEventCreate(ctypes.byref(new), 0))
        check(self.driver.cuEventRecord(new, self.stream.cuda_stream))
        check(self.driver.cuEventSynchronize(new))
        self.lines.append(self._between(self.handle, new) if self.handle else 0.0)
        self.handle = new  # the old one is not destroyed: its place in memory is not used again

    def distance(self, other: torch.cuda.Event) -> tuple[int, float]:
        """Number of the reference in use, and the completed event's distance to it in ms."""
        return len(self.lines) - 1, self._between(self.handle, ctypes.c_void_p(other.cuda_event))

    def _between(self, start: ctypes.c_void_p, end: ctypes.c_void_p) -> float:
        ms = ctypes.c_float()
        check(self.driver.cuEventElapsedTime(ctypes.byref(ms), start, end))
        return ms.value


def check(status: int) -> None:
    """Raise where a call of the driver failed."""
    if status:
        raise RuntimeError(f"the CUDA driver answered CUresult {status}")


class StreamMemory:
    """cuStreamWaitValue32 and cuStreamWriteValue32: the stream itself waits for a word of memory, or writes one."""

    def __init__(self) -> None:
        driver = ctypes.CDLL("libcuda.so.1")
        self._wait, self._write = driver.cuStreamWaitValue32_v2, driver.cuStreamWriteValue32_v2
        for call in (self._wait, self._write):
            call.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint]

    def wait(self, word: torch.Tensor, value: int) -> None:
        check(self._wait(self._stream(), word.data_ptr(), value, WAIT_GEQ))

    def write(self, word: torch.Tensor, value: int, flags: int = WRITE_DEFAULT) -> None:
        check(self._write(self._stream(), word.data_ptr(), value, flags))

    @staticmethod
    def _stream() -> int:
        return torch.cuda.current_stream().cuda_stream
