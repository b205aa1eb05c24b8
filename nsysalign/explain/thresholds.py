"""Every threshold of the rules, in one place.  Shares are of the measured interval, times are
nanoseconds."""

from __future__ import annotations

from nsysalign.model import LAUNCH_QUEUE

#: From this share on the interval is not what the reader thinks it is: a warning.
WARN_SHARE = 0.20
#: Below the warning, from this share on, a part that need not be there is still worth mentioning:
#: an info.
SAY_SHARE = 0.05
#: A copy next to kernels is reported from this share on: "does it contain the copy?" is what people
#: ask.
COPY_SAY_SHARE = 0.01
#: Copies that are slower than this (GB/s) are many small ones.
IN_PIECES_BYTES_PER_NS = 0.01
#: A synchronisation is mentioned from this share on, in what the program timed.
SYNC_SAY_SHARE = 0.002
#: Kernels of a few blocks that ran for no longer than this would not gain by more.
FEW_BLOCKS_NS = 20_000
#: A label has a property when at least this share of its intervals has it.
TYPICAL_SHARE = 0.5
#: If the wait for the host is at least this share of the interval, the interval measures the host.
MOSTLY_SHARE = 0.5

#: One stretch with this much of the wait is "the" gap.
ONE_GAP_SHARE = 0.6
#: A gap of at least this length is host work of its own, not the cost of launching, and sampled
#: stacks can show it.
LONG_GAP_NS = 1_000_000

#: At least this many operations in one interval are "many": launching them one by one has a cost of
#: its own.
MANY_OPERATIONS = 10
#: A stream's launch queue holds about 1,024 entries.
QUEUE_DEPTH = LAUNCH_QUEUE
#: A delay kernel must outlast the host's enqueueing by this factor, at about this many cycles per
#: microsecond.
DELAY_MARGIN, DELAY_CYCLES_PER_US = 3, 1_800
#: A delay that is long enough for ordinary intervals (about 1 ms; measured), in cycles.
DELAY_CYCLES = 2_000_000

#: Allocation and free calls inside an interval are named from this share or time on.
ALLOCATION_SAY_SHARE, ALLOCATION_SAY_NS = 0.01, 20_000
#: A copy back to the host of at most this many bytes, followed by a synchronisation, is an
#: `.item()`.
ITEM_BYTES = 4_096
#: Pinned copies of at least this size show what the bus can do.
BANDWIDTH_BYTES = 1 << 20

#: Under CUDA_LAUNCH_BLOCKING nearly every kernel is followed by the rest of its own launch call.
BLOCKING_SHARE, BLOCKING_KERNELS = 0.8, 5

#: An interval shorter than this many empty pairs is mostly (warning) or partly (info) the event
#: pair's own cost.
FLOOR_WARN_FACTOR, FLOOR_SAY_FACTOR = 2.0, 4.0
#: No event pair costs this much: if all intervals of a trace are longer, the comparison is not
#: needed.
FLOOR_RELEVANT_NS = 50_000
#: The host ran ahead of an interval if the GPU waits for it for less than this share.
AHEAD_SHARE = 0.10
#: The event pair's own cost and launch latencies, with the host ahead, are named from this share
#: on.
FIXED_COST_SAY_SHARE = 0.20

#: Work on other streams makes "no kernel on the timed stream" a wrong stream when it is at least
#: this long.
OTHER_STREAM_NS = 1_000

#: Fewer repetitions than this give no idea of the spread.
FEW_SAMPLES = 5
#: If more labels than this were measured once each, they share one finding.
MANY_ONCE = 5
#: A first repetition is warm-up when it takes this many times the median of the rest ...
WARMUP_FACTOR = 1.5
#: ... and the run of slow ones at the start is at most this share of all.
WARMUP_SHARE = 0.3
#: Loading code is named from this time on.
LOAD_NS = 100_000
#: ... if it is at least this share of the slow interval: otherwise something else made it slow.
LOAD_SHARE = 0.05
#: Half of the repetitions spread over more than this share of the median: high variance.
SPREAD_SHARE = 0.15
#: Statistics of the spread need this many repetitions.
SPREAD_SAMPLES = 8
#: Two modes: the gap between two groups is this many times their own spread and this share of the
#: median, and the smaller group holds this share of the repetitions.
MODE_GAP_FACTOR, MODE_GAP_SHARE, MODE_SIZE_SHARE = 4.0, 0.10, 0.2
#: The profiler's own work is a finding if the disturbed repetitions are this much longer than the
#: others.
DISTURBED_FACTOR = 1.2
#: An outlier lies above this many times the median, and this many (normal) standard deviations off.
OUTLIER_FACTOR, OUTLIER_SIGMAS = 1.5, 6.0
#: Different work under one label: operation counts that differ by more than this factor.
MIXED_FACTOR = 1.5

#: The same kernels, slower by a factor in this range elsewhere: cold against warm L2 is the usual
#: cause.
COLD_FACTOR, COLD_FACTOR_MAX = 1.08, 1.6
#: Kernel times of a label that can be compared spread over less than this share of their median.
COLD_SPREAD_SHARE = 0.06

#: A host timer reads the enqueue only when this share of the kernels issued inside ran after its
#: end.
ENQUEUE_ONLY_SHARE = 0.5

#: Two SM clocks are different from this share on; a kernel follows the clock when it grows by this
#: much of what the clock lost, in step with it (correlation with the clock's period), and by at
#: least the SAY share.
CLOCK_SHARE, CLOCK_FOLLOWS, CLOCK_CORRELATION = 0.03, 0.3, 0.5
CLOCK_SAY_SHARE, CLOCK_WARN_SHARE = 0.02, 0.10
#: Slowed down by power or heat in this share of a label's runs: worth mentioning.
THROTTLED_SAY_SHARE = 0.05
