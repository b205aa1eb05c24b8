"""Hand-drawn cases of the kinds host and nvtx.  Everything in microseconds."""

from __future__ import annotations

from simulator.world import D2H, HostInterval, Range

from .drawing import MAIN, OTHER, collector, kernel

HOST_CASES, host_case = collector("host")
NVTX_CASES, nvtx_case = collector("nvtx")


def between(w, start: float, end: float) -> None:
    w.host_intervals.append(HostInterval("case#0", start, end, MAIN))


@host_case("host 9, api_launch 5, sync 9, kernel 32, api 6", kernel_only=32, kernel_outside=0)
def launch_and_synchronise(w):
    """
    H  |0   s5-10  y12--------------53  m55-61  |61
    G              .   #13-------45
       0-5 host, 5-10 api_launch, 10-12 host, 12-13 sync, 13-45 kernel, 45-53 sync, 53-55 host,
       55-61 api
    """
    kernel(w, (5, 10), (13, 45))
    w.sync(12, 53)
    w.call("other", 55, 61)
    between(w, 0, 61)


@host_case("host 5, queued 30, sync 5", kernel_only=0, kernel_outside=0)
def synchronising_with_earlier_work(w):
    """
    H  s-20--16  |0  y5---------40 |40
    G           #-10--------35              30 us of a kernel that was launched before
    """
    kernel(w, (-20, -16), (-10, 35))
    w.sync(5, 40)
    between(w, 0, 40)


@host_case("host 7, memcpy 35", kernel_only=0)
def pageable_copy(w):
    """
    H  |0   s5-----------40 |42
    G          #15--30              staging 10, copy 15, staging 10
    """
    w.copy(15, 30, w.call("memcpy", 5, 40), pageable=True)
    between(w, 0, 42)


@host_case("host 7, queued 15, memcpy 30", kernel_only=0)
def pageable_copy_behind_a_blocking_stream(w):
    """
    H    s-20--16  |0  s5-----------------50 |52
    G14         #-10------20                       15 us of a kernel that was launched before
    G7                       #25--40               staging 5, copy 15, staging 10
    """
    kernel(w, (-20, -16), (-10, 20), 14)
    w.copy(25, 40, w.call("memcpy", 5, 50), pageable=True)
    between(w, 0, 52)


@host_case("host 7, api_launch 10, memcpy 25", kernel_only=0)
def pageable_copy_to_the_host(w):
    """The data come from the GPU: before the copy begins there is nothing to stage."""
    w.copy(15, 30, w.call("memcpy", 5, 40), pageable=True, kind=D2H)
    between(w, 0, 42)


@host_case("host 7, queued 15, api_launch 5, memcpy 25", kernel_only=0)
def pageable_copy_to_the_host_in_unknown_order(w):
    """
    H    s-20--16  |0  s5-----------------50 |52
    G7          #-10------20                       the default stream: 15 us of a kernel that was launched before
    G21                      #25--40               whether it is a blocking stream is not known: the copy waited
    """
    kernel(w, (-20, -16), (-10, 20))
    w.copy(25, 40, w.call("memcpy", 5, 50), 21, pageable=True, kind=D2H)
    between(w, 0, 52)


@host_case("host 7, api_launch 20, memcpy 25", kernel_only=0)
def copy_to_the_host_beside_the_default_stream(w):
    """A kernel of the default stream that still runs when the copy begins does not hold it up."""
    kernel(w, (-20, -16), (-10, 45))
    w.copy(25, 40, w.call("memcpy", 5, 50), 21, pageable=True, kind=D2H)
    between(w, 0, 52)


@host_case("host 7, api_launch 35")
def pinned_copy(w):
    """The call does not wait for a pinned copy."""
    w.copy(15, 30, w.call("memcpy", 5, 40), pageable=False)
    between(w, 0, 42)


@host_case("host 14, api_launch 12")
def memset_and_graph_launches(w):
    w.op("memset", 12, 14, w.call("memset", 4, 8))
    w.op("graph", 30, 50, w.call("graph_launch", 12, 20))
    between(w, 0, 26)


@host_case(
    "host 85, api_launch 10, sync 5", kernel_only=4, kernel_outside=0, with_graphs=74, gpu_busy=75
)
def a_graph_beneath_the_work_of_the_host(w):
    """
    H  |0  s5-10  s10-15                       y95--100 |100     a graph, and a kernel behind it
    G             #12-------------82  #84--88     the copy of another stream overlaps the graph
    G13                         #80-83
    """
    w.op("graph", 12, 82, w.call("graph_launch", 5, 10))
    kernel(w, (10, 15), (84, 88))
    w.copy(80, 83, w.call("memcpy", -5, -2, OTHER), 13, pageable=False)
    w.sync(95, 100)
    between(w, 0, 100)


@host_case("host 10, api_launch 5", kernel_only=0, kernel_outside=36, with_graphs=40, gpu_busy=4)
def a_graph_that_ends_after_the_timer(w):
    w.op("graph", 11, 51, w.call("graph_launch", 5, 10))
    between(w, 0, 15)


@host_case("host 4, api_launch 6, sync 3, kernel 20, memcpy 7")
def a_kernel_wins_over_a_copy(w):
    """
    H  |0  s2-5 s5-8  y10-----------40 |40
    G7            kernel #12----32
    G13                  copy #20-----39      12-32 kernel, 32-39 memcpy, 10-12 and 39-40 sync
    """
    kernel(w, (2, 5), (12, 32))
    w.copy(20, 39, w.call("memcpy", 5, 8), 13, pageable=False)
    w.sync(10, 40)
    between(w, 0, 40)


@host_case("host 10, api_launch 5, sync 5", kernel_only=0, kernel_outside=0)
def another_stream_is_not_waited_for(w):
    """A synchronisation with stream 13 while stream 7 is busy: nothing that it waits for
    executes."""
    kernel(w, (-5, -2), (0, 90))
    w.copy(8, 11, w.call("memcpy", 2, 7), 13, pageable=False)
    w.sync(12, 17, stream=13)
    between(w, 0, 20)


@host_case("host 5, api_launch 5", kernel_only=40, kernel_outside=34)
def no_synchronisation_at_the_end(w):
    """
    H  |0  s2-7  |10
    G         #4---------44         6 us inside, 34 outside; kernel_only_ns is all of it
    """
    kernel(w, (2, 7), (4, 44))
    between(w, 0, 10)


@host_case("host 30, api_launch 10", gpu_busy=38, gpu_earlier=22)
def earlier_work_and_copies_beside_the_host(w):
    """
    H  s-9  |0  s5-10  s10-15                 |40
    G7          #-5-------25    #30--50          25 us of a kernel that was launched before, 10 of one inside
    G13               #22--28                    a copy: 3 of its 6 us beside the earlier kernel
    """
    kernel(w, (-9, -6), (-5, 25))
    kernel(w, (5, 10), (30, 50))
    w.copy(22, 28, w.call("memcpy", 10, 15), 13, pageable=False)
    between(w, 0, 40)


@host_case("host 4, queued 96")
def full_launch_queue(w):
    """1,020 kernels are queued behind a long one; the next launch blocks for 96 us."""
    for i in range(1020):
        kernel(w, (-5000 + 4 * i, -5000 + 4 * i + 2), (90 + i, 90.5 + i))
    kernel(w, (2, 98), (1200, 1201))
    between(w, 0, 100)


@host_case("host 4, api_launch 96")
def a_slow_launch_without_a_queue(w):
    """The next launch takes as long while 20 kernels are queued, not 1,000: it is no queue that
    blocks it."""
    for i in range(1020):
        kernel(w, (-5000 + 4 * i, -5000 + 4 * i + 2), (-4990 + 4 * i, -4989 + 4 * i))
    for i in range(20):
        kernel(w, (-500 + 4 * i, -500 + 4 * i + 2), (90 + i, 90.5 + i))
    kernel(w, (2, 98), (1200, 1201))
    between(w, 0, 100)


@host_case("host 50", kernel_only=10, kernel_outside=0)
def another_threads_calls_do_not_count(w):
    """What another thread issues inside counts for kernel_only_ns, its calls are not this thread's
    time."""
    kernel(w, (10, 20), (22, 32), thread=OTHER)
    between(w, 0, 50)


@nvtx_case("kernel 30, host 6, api_launch 4, launch_latency 2", kernel_only=30)
def range_on_one_stream(w):
    """
    H  [0 step  s2-6            s22-26           60]
    G              |#8--16           #28------50|       16-22 host, 22-26 api_launch, 26-28 latency
    """
    kernel(w, (2, 6), (8, 16))
    kernel(w, (22, 26), (28, 50))
    w.ranges.append(Range("step", 0, 60, MAIN))


@nvtx_case("kernel 10, memcpy 12, launch_latency 2, api_launch 3, host 3", kernel_only=10)
def only_work_launched_inside_the_range(w):
    """
    H  s-9--5  [0 step  s2-6                s18-21     40]  s42-44
    G                   |#5-15      ... 15-18 host     #23-35|     #46-50
       the kernel of -9 ended at -1; the one of 42 is launched after the range
    """
    kernel(w, (-9, -5), (-3, -1))
    kernel(w, (2, 6), (5, 15))
    w.copy(23, 35, w.call("memcpy", 18, 21), pageable=False)
    w.ranges.append(Range("step", 0, 40, MAIN))
    kernel(w, (42, 44), (46, 50))
