"""The DataFrames of a measurement: columns, types, meaning."""

from nsysalign.frames import specs

(CURVE, MODES, SAMPLES) = specs("""
curve: one row per target and batch of `nsysalign measure`: its headline
    target           str      what was measured
    batch            Int64    batch size, NA for the function's own default
    processes        int64    fresh processes that measured it
    latency_ns       float64  one request on an idle GPU: mean of the processes' medians
    latency_low_ns   float64  its 95 % interval; -inf if there are too few samples
    latency_high_ns  float64  and its upper end
    p90_ns           float64  90th percentile of the latency, all processes together
    p99_ns           float64  99th percentile
    p99_bounded      bool     whether there are enough samples for it; otherwise it is a lower bound
    rate             float64  outputs per second with calls queued back to back
    rate_low         float64  its 95 % interval
    rate_high        float64  and its upper end
    memory_bytes     int64    the most that torch's allocator held
    sm_mhz           float64  median SM clock while it was measured, NaN where unknown
    marks            str      best, advised, largest, in words

modes: one row per target, batch, mode and L2 of `nsysalign measure`
    like curve: target batch
    mode       str      latency, event, device, steady, graph, do_bench, do_bench_cudagraph
    l2         str      warm (as called) or cold
    value_ns   float64  mean of the processes' medians
    low_ns     float64  its 95 % interval
    high_ns    float64  and its upper end
    p50_ns     float64  median of all processes together
    p90_ns     float64  90th percentile
    like curve: p99_ns p99_bounded
    mean_ns    float64  mean of all samples
    std_ns     float64  their standard deviation
    min_ns     float64  least
    max_ns     float64  most
    samples    int64    samples, none removed
    effective  float64  effective number of independent samples
    outliers   int64    far outliers among them (three times the middle half's width away)
    processes  int64    fresh processes
    differ     bool     the processes differ by more than their samples explain

samples: one row per timed repetition of `nsysalign measure`
    like curve: target batch
    process  int64    number of the worker
    role     str      time, or probe: of the search
    mode     str      latency, event, device, steady, graph, do_bench, do_bench_cudagraph
    l2       str      warm or cold
    block    int64    number of the block of consecutive samples
    k        int64    place in the block
    ns       int64    what was measured
    t0_ns    int64    start of the block, CLOCK_MONOTONIC
    sm_mhz   float64  SM clock during the block, NaN where unknown
""")
