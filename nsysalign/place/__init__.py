"""Where the two events of every interval lie on the trace's clock (docs/design.md, section 3).
`solve.align` does all of it, in this order:

    match          is the log of this run (`belongs`), and which of its lines is which call of the trace (`records`)
    streams        the stream of each record: by event rows, else as the log numbers it, else by the work around it
    bounds         where a record must lie, however long records take; pairs that contradict this are refused
    surroundings   what it met on its stream: the operation before it and after it, waits, work elsewhere
    latency        where it lies if it took as long as records do: a table by situation
    fit            where the events' own clock lies, if the log has references
    windows        each pair by the best that is known of it: its clock, its time stamps, the table

Without a log, `inferred` says which records were probably compared, and `ranges` where NVTX ranges
lie.  `marked` joins marks inside kernels.
"""
