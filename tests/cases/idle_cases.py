"""The second half of the cause table: what the host does while the stream is idle.  In
microseconds."""

from __future__ import annotations

from simulator.world import Overhead, Range

from .drawing import OTHER, collector, events, kernel

IDLE_CASES, case = collector()


@case("host 1, event 5")
def rule_8_and_9_an_empty_pair(w):
    """
    H  r0-2  r7-9
    G     |6     |12       6-7 host, 7-9 in the record's call, 9-12 after it
    """
    events(w, 6, (7, 9), 12)


@case("host 14, api_launch 10, launch_latency 2, kernel 10, event 4")
def rule_9_api_launch(w):
    """
    H  r0-2        s20--30      r34-36
    G     |6             #32-42     |46
    """
    kernel(w, (20, 30), (32, 42))
    events(w, 6, (34, 36), 46)


@case("host 17, api_launch 7, kernel 15, event 1")
def rule_9_a_kernel_that_starts_inside_its_call(w):
    """
    H  r0-2        s20-----30    r40-41
    G     |3           #27----------42 |43       3-20 host, 20-27 api_launch
    """
    kernel(w, (20, 30), (27, 42))
    events(w, 3, (40, 41), 43)


@case("host 6, sync 28, api_launch 5, launch_latency 2, kernel 10, event 5")
def rule_10_device_synchronise(w):
    """
    H  r0-2   y10-------38  s40-45    r58-60      10-38 a synchronisation
    G     |6                     #47-57   |62
    """
    w.sync(10, 38)
    kernel(w, (40, 45), (47, 57))
    events(w, 6, (57, 60), 62)


@case("host 6, api_launch 33, launch_latency 2, kernel 10, event 5")
def rule_11_the_thread_launches_elsewhere_first(w):
    """
    H  r0-2   s10-------38  s40-45    r57-60      10-38 launches on stream 13
    G7    |6                     #47-57   |62
    """
    kernel(w, (10, 38), (39, 46), 13)
    kernel(w, (40, 45), (47, 57))
    events(w, 6, (57, 60), 62)


@case("host 4, event 14, api_launch 5, launch_latency 2, kernel 10")
def rule_12_another_record_and_a_query(w):
    """
    H  r0-2  r8-12 q14-19  s20-25      r37-39
    G      |7                  #27-37      |42      host 7-8, 12-14, 19-20; event 8-12, 14-19, 37-42
    """
    w.record(11, 8, 12, 13)
    w.call("query_event", 14, 19)
    kernel(w, (20, 25), (27, 37))
    events(w, 7, (37, 39), 42)


@case("host 6, api 28, api_launch 5, launch_latency 2, kernel 10, event 5")
def rule_13_allocation(w):
    w.call("other", 10, 38, nested=(("cuMemAlloc_v2", 12, 36),))
    kernel(w, (40, 45), (47, 57))
    events(w, 6, (57, 60), 62)


@case("host 6, api 28, api_launch 5, launch_latency 2, kernel 10, event 5")
def rule_13_a_wait_call_is_another_cuda_call(w):
    """A reading of the table: rule 12 names records and queries only."""
    r = w.record(-10, -20, -18, 13)
    w.wait(r, 10, 38, 7)
    kernel(w, (40, 45), (47, 57))
    events(w, 6, (57, 60), 62)


@case("host 20, profiler 14, api_launch 5, launch_latency 2, kernel 10, event 5")
def rule_14_profiler_overhead(w):
    w.overheads.append(Overhead(12, 26, 500))
    w.overheads.append(Overhead(28, 36, OTHER))  # another thread's: never a part
    kernel(w, (40, 45), (47, 57))
    events(w, 6, (57, 60), 62)


@case("host 34, api_launch 5, launch_latency 2, kernel 10, event 5", details={"tokenise": 20})
def rule_15_host_inside_a_range(w):
    """
    H  r0-2   [step 8 [tokenise 10-30] 39]  s40-45    r57-60
    G     |6                                    #47-57    |62
    """
    w.ranges.append(Range("step", 8, 39, 500))
    w.ranges.append(Range("tokenise", 10, 30, 500))
    kernel(w, (40, 45), (47, 57))
    events(w, 6, (57, 60), 62)


@case("unknown 41, kernel 10, event 5")
def rule_16_no_api_row(w):
    w.kernel(47, 57, None)
    events(w, 6, (57, 60), 62)


@case("host 6, api 28, api_launch 5, launch_latency 2, kernel 10, event 5")
def the_thread_that_will_issue_counts(w):
    """
    H    r0-2   y8-----------------------56 r57-60
    H'            m10-------38  s40-45               another thread (autograd's) allocates, then launches
    G       |6                        #47-57    |62  6-10 and 38-40 host: it is the other thread that counts
    """
    w.sync(8, 56)
    w.call("other", 10, 38, OTHER)
    kernel(w, (40, 45), (47, 57), thread=OTHER)
    events(w, 6, (57, 60), 62)


@case("host 4, api_launch 4, launch_latency 2, kernel 30, event 4")
def events_on_two_streams(w):
    """The start is on 13, the end on 7: the budget is stream 7's."""
    kernel(w, (-8, -5), (0, 5), 13)
    kernel(w, (10, 14), (16, 46))
    kernel(w, (14, 15), (17, 27), 13)
    events(w, 6, (16, 18), 50, stream=13)


@case("kernel 14, api_launch 0, launch_latency 0, event 4")
def a_kernel_cut_by_the_window(w):
    """
    G13   |6
    G7  #0----20  |24         the kernel began before the start event of another stream
    """
    kernel(w, (-8, -5), (0, 20))
    events(w, 6, (16, 18), 24, stream=13)
