"""The tables of the insides of kernels, only of programs that mark them."""

from nsysalign.frames import specs

MARKS_SPECS = (
    MARKED_KERNELS,
    KERNEL_MARKS,
    KERNEL_PHASES,
    SM_TIME,
    SM_SPANS,
    PATH_COUNTS,
    MARK_CHANGES,
) = specs("""
marked_kernels: one row per kernel that left marks or counts (nsysalign.marks), by dump and grid id:
        in the order of their launches
    kernel         int64  its number, the key of the tables of marks
    name           str    the kernel's name, '' unknown
    pid            int64  process id
    device         int64  CUDA device
    stream         int64  CUPTI stream id, -1 unknown
    grid_id        int64  PTX %gridid, nsys's gridId
    interval       int64  number of the interval whose stream it ran on, -1 none, and with `run
                          --marks`, whose intervals are of the run without marks
    row            int64  rowid of its kernel row, -1 where the trace has none
    start_ns       int64  start; without a kernel row that of its first mark, by the GPU's timer
    end_ns         int64  end; without a kernel row that of its last mark, by the GPU's timer
    error_ns       int64  its marks lie within this of where they are said to be, -1: not placed,
                          times are the GPU timer's
    sms            int64  SMs of the device
    blocks         int64  blocks of its grid, -1 unknown
    marked_blocks  int64  blocks that left marks
    warps          int64  warps that left marks
    marks          int64  marks written, without those that end a warp
    complete       bool   every warp of the grid was seen from its beginning to its end
    registers      int64  per thread, -1 unknown
    local_bytes    int64  local memory (spills, stack) per thread, -1 unknown

marks: marks of some launches of each kernel (the median and the slowest), in time order;
        kernel_phases and sm_time are of all
    kernel      int64  row of marked_kernels
    sm          int64  SM number (%smid)
    block_x     int64  blockIdx.x
    block_y     int64  blockIdx.y
    block_z     int64  blockIdx.z
    warp        int64  warp in its block
    first_lane  bool   the warp's first lane is among them: those marks, in order, are that lane's
                       way through the kernel
    kind        str    enter and exit of a warp; begin and end of a range; mark
    name        str    its name, '' for enter and exit
    t_ns        int64  when, on the trace's clock: good to the kernel's error_ns
    clock       int64  low 32 bits of the SM's clock64: differences on one SM are cycles

kernel_phases: ranges inside kernels, by name
    kernel     int64  row of marked_kernels
    phase      str    name of the range
    count      int64  how often a warp passed it
    total_ns   int64  sum over warps
    min_ns     int64  shortest
    median_ns  int64  lower median
    max_ns     int64  longest
    unclosed   int64  begun and not ended, or the reverse

sm_time: the SM-time budget: SMs x duration of a kernel, split exactly; ns sums to sms * (end_ns -
        start_ns)
    kernel  int64  row of marked_kernels
    part    str    before (the SM's first block), phase, unmarked (blocks there, outside of ranges),
                   between (its blocks), after (its last block), none (SMs without a block), unknown
                   (marks are missing)
    phase   str    name of the innermost range; '' for the other parts
    ns      int64  nanoseconds of SM time; an instant is shared equally by the warps that are on the
                   SM

sm_spans: each SM's share in a kernel
    kernel    int64  row of marked_kernels
    sm        int64  SM number
    blocks    int64  blocks that ran there
    first_ns  int64  its first block began, after the kernel's start_ns
    last_ns   int64  its last block ended, after the kernel's start_ns
    busy_ns   int64  a block was there

path_counts: how often a path inside a kernel was taken, per launch and SM
    like sm_spans: kernel sm
    counter  str    its name
    warps    int64  NSYSALIGN_COUNT: warps of which a thread passed; COUNT_WARPS:
                    executions by a warp
    lanes    int64  executions by a thread

mark_changes: what marks change in a kernel: the run with them and the run without (nsysalign run
        --marks)
    name                 str      the kernel
    marked_count         int64    launches with marks
    plain_count          int64    launches without, 0: not measured
    marked_ns            float64  median duration with marks
    plain_ns             float64  median duration without, NaN where not measured
    change               float64  marked_ns / plain_ns - 1, NaN where not measured
    marked_registers     int64    registers per thread with marks, -1 unknown
    plain_registers      int64    without, -1 unknown
    marked_local_bytes   int64    local memory per thread (spills, stack) with marks, -1 unknown
    plain_local_bytes    int64    without, -1 unknown
""")
