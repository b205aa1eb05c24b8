"""The raw files of one process: their names and contents.

`<pid>-<n>.rec`   fixed-size slots, memory-mapped in chunks.  The slot's place is the record's `seq`, plus
                  the header's `first_seq`.  A slot whose two kind bytes are not equal and non-zero
                  was never finished.
`<pid>-<n>.txt`   JSON lines, memory-mapped, NUL-padded: the header, clock readings, notes, the strings that
                  slots refer to by number, `{"str": 3, "text": ...}`, `{"ctx": 5, "frames": [[file,
                  line], ...], "library": false}`, and why a comparison failed, by its slot's seq:
                  `{"err": 12, "text": ...}`.  A garbage collection: `{"gc": [t0, t1, generation, collected]}`.
                  A thread that hardly ran: `{"off": [tid, t0, t1, its CPU time, the process's]}`.
                  Where nsys listens, `{"end": ""}`: how the process
                  ends will follow in another such line, and when, unless it is killed.

`<n>` counts the starts within one pid: exec() keeps the pid.
All survive SIGKILL, os._exit and exec, because the kernel owns the pages.
"""

from __future__ import annotations

import struct

#: kind, flags, device, context number, region string number, repetition of the region, t0, t1, a,
#: b, x, tid, kind again.
#:   record   a = stream handle, b = stream id
#:   wait     a = stream handle, b = stream id, x = seq of the record waited for (-1 unknown)
#:   elapsed  a = seq of the start record, b = seq of the end record (-1 unknown), x = milliseconds, NaN if that failed
#:   reference  a = its number, the seq of its record; b = number of the one before (-1 none), x = milliseconds from that
#:              one (NaN for none)
#:   distance   a = seq of the elapsed slot, b = number of the reference; t0, t1 = bits of two float32: milliseconds
#:              from the reference to the start and to the end event
#:   between    a, b = seq of two records, x = milliseconds from one to the other, not compared by the program
SLOT = struct.Struct("<BBhIIIqqqqdI3xB")
SLOT_SIZE = SLOT.size

#: Slots per mapped chunk: a multiple of every page size in use (4, 16, 64 KiB).
CHUNK_BITS = 13
CHUNK_SLOTS = 1 << CHUNK_BITS
CHUNK_BYTES = CHUNK_SLOTS * SLOT_SIZE

RECORD, WAIT, ELAPSED, REFERENCE, DISTANCE, BETWEEN = range(1, 7)
CAPTURED, CALIBRATION, INTERVENED = 1, 2, 4

#: Number 0 of strings and contexts means "none".
NONE = 0
TEXT_CHUNK = 1 << 18

#: `<pid>-<n>.clk`: readings of the host's clocks and edges of regions: CLOCK_MONOTONIC in ns; a
#: word that names thread, clock and context (0: never finished); a third word: for the wall clocks
#: their value in ns, for a region its repetition (its context is its string number).
READING = struct.Struct("<qQq")
CLOCKS = ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "time_ns")
MONOTONIC_CLOCKS = 4  # the first this many read CLOCK_MONOTONIC themselves
REGION_ENTERED, REGION_LEFT = 14, 15
CONTEXT_BITS, CLOCK_BITS = 24, 4  # the rest of the word is the thread's number, Linux's own
#: A process logs at most this many readings: 3 MiB.
READINGS = 1 << 17
