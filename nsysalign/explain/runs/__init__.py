"""What is said of runs, the work of a process on a device from its first to its last: one file per
question, with what must be known for it (a record, made in one pass over the trace), its thresholds
and its sentence.

    failed    calls that failed                  set_up   what passes before and after the GPU's work
    records   records that were lost             gaps     one pass over the gaps ...
    no_work   calls without any work             idle     ... and why the GPU was idle
    ranges    ranges of the program              rounds   the same calls again and again
    blocks    launches too small for it          copies   it copied
    pages     managed memory that moved              threads  which of them launch, and when
"""
