"""Where the two events of every interval lie on the trace's clock (docs/design.md, section 3).
`align.align` does all of it, in four stages; each file says what is known after it:

    matched        which line of the log is which process, call and wait (`host_clock`: their clocks);
                   without a log, which records were compared (`pairs`)
    streams        the stream of each record
    bounded        what it met there, and between what it must lie, however long records take
    placed         where it lies: by the events' own clock (`event_clock`), by its time stamp, or by how
                   long records take in such a situation (`latency`)

`host_timers` places what was timed on the host's clock, `projected_ranges` NVTX ranges, `gpu_clock`
samples of clocks; `own_work` is what the tool itself did.
"""
