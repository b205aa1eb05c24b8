"""Programs that look closely at torch.cuda.Event and the clocks: they must print the same with and without the
probe.

Those of `TOGETHER` run one after the other in one process; those of `ALONE` need a process, options
or an end of their own.
"""

DRIVER = """
import sys, traceback
from programs import TOGETHER
for name, text in TOGETHER.items():
    print("##", name, flush=True)
    try:
        exec(compile(text, f"{name}.py", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
    except BaseException as error:
        mine = [(f.name, f.lineno, f.filename) for f in traceback.extract_tb(error.__traceback__)
                if f.filename.startswith(name)]
        print("raised", type(error), error.args, mine)
"""

TOGETHER = {
    "subclasses": """
from torch.cuda import Event
class With(Event):
    def record(self, stream=None):
        print("mine")
        return super().record(stream)
class Without(Event):
    def record(self, stream=None):
        self.when = 1
class Slots(Event):
    __slots__ = ("extra",)
events = [With(), Without(), Slots(), Event(enable_timing=True)]
for e in events:
    print(type(e).__mro__, isinstance(e, Event), type(e) is Event, e.record(), e.elapsed_time(e))
print(issubclass(With, Event), Event in With.__bases__, With.record is Event.record, Slots.record is Event.record)
""",
    "pickles": """
import copy, pickle
from torch.cuda import Event, Stream
print(pickle.loads(pickle.dumps(Event)) is Event, pickle.dumps([Event, Event.record, Stream.wait_event], 0))
print(pickle.loads(pickle.dumps(Event.elapsed_time)) is Event.elapsed_time)
e = Event()
e.record()
for twin in (pickle.loads(pickle.dumps(e)), copy.copy(e), copy.deepcopy(e)):
    print(type(twin) is Event, twin.when == e.when, twin.elapsed_time(e), e.elapsed_time(twin), twin.record())
""",
    "introspection": """
import inspect, pydoc, typing
from torch.cuda import Event, Stream, graphs
for owner in (Event, Stream, graphs.CUDAGraph):
    print(list(vars(owner)), inspect.getmodule(owner), inspect.getsourcefile(owner) is not None)
    print(pydoc.render_doc(owner, renderer=pydoc.plaintext))
    for name, f in inspect.getmembers(owner, inspect.isfunction):
        print(name, inspect.signature(f), f.__qualname__, f.__module__, f.__doc__, f.__defaults__, f.__kwdefaults__)
        print(inspect.getsource(f), typing.get_type_hints(f), inspect.isroutine(f), callable(f), type(f))
print(Event.record == Event.record, hash(Event.record) == hash(Event.record), Event().record.__func__ is Event.record)
""",
    "ways_to_call": """
import functools, operator
import torch
from torch.cuda import Event, Stream
e, f, s = Event(), Event(), Stream(5)
later = functools.partial(Event.record, e, stream=s)
print(later(), functools.partial(f.record)(), list(map(Event.record, [e, f])), operator.methodcaller("record", s)(e))
print(Event.record(self=e), e.record(None), e.record(stream=s), Event.elapsed_time(e, end_event=f) == e.elapsed_time(f))
print(e.wait(), e.wait(s), s.wait_event(e), s.record_event(e) is e, type(s.record_event()) is Event, s.wait_stream(s))
class Holder:
    record = Event.record
    bound = e.record
Holder.bound()
h = Holder()
h.record()
print(vars(h).keys() >= {"when"})
""",
    "errors": """
import torch
from torch.cuda import Event
def attempt(f):
    try:
        f()
    except Exception as error:
        print(type(error), error, error.__cause__, error.__context__, error.__suppress_context__)
e = Event()
attempt(lambda: e.record("broken"))
attempt(lambda: e.elapsed_time(Event()))
attempt(lambda: e.elapsed_time(3))
attempt(lambda: e.record(1, 2, 3))
attempt(lambda: e.record(strea=1))
attempt(lambda: e.elapsed_time())
attempt(lambda: Event.record())
attempt(lambda: torch.cuda.Stream().wait_event(None))
attempt(lambda: torch.cuda.Stream().record_event(7))
e.record()
e.record("broken")
""",
    "patched_by_the_user": """
from unittest import mock
import torch
from torch.cuda import Event
original = Event.record
def record(self, stream=None):
    print("patched")
    return original(self, stream)
Event.record = record
e = Event()
e.record()
Event.record = original
e.record()
print(Event.record is original)
with mock.patch.object(Event, "elapsed_time", autospec=True, return_value=3.0) as fake, mock.patch.object(torch.cuda, "current_stream") as stream:
    e.record()
    print(e.elapsed_time(e), fake.call_args == mock.call(e, e))
print(e.elapsed_time(e))
""",
    "references": """
import gc, sys, weakref
from torch.cuda import Event
e = Event()
gone = []
weakref.finalize(e, gone.append, "e")
r, table, both = weakref.ref(e), weakref.WeakKeyDictionary({e: 1}), {e, Event()}
before = sys.getrefcount(e)
e.record(); e.elapsed_time(e)
print(sys.getrefcount(e) - before, r() is e, len(table), len(both), e == e, e in both, hash(e) == hash(e))
del e, both
gc.collect()
print(gone, r(), len(table))
""",
    "clocks": """
import copy, functools, inspect, pickle, time, timeit, weakref
from time import perf_counter, time_ns as wall
for name in ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns"):
    f = getattr(time, name)
    print(f.__name__, f.__qualname__, f.__module__, f.__doc__, callable(f), type(f()).__name__)
    print(pickle.loads(pickle.dumps(f)) is f, copy.copy(f) is f, copy.deepcopy([f])[0] is f)
    print(f == f, f in {f: 1}, weakref.ref(f)() is f, time.get_clock_info(name.removesuffix("_ns")))
    try:
        f(1)
    except TypeError as error:
        print("TypeError")
print(perf_counter is time.perf_counter, timeit.default_timer is time.perf_counter, wall is time.time_ns)
class Clocked:
    clock = time.perf_counter
    def go(self):
        return self.clock()
print(type(Clocked().go()), type(functools.partial(time.time)()), len(list(map(lambda f: f(), [time.time] * 3))))
""",
}

_SMALL = """
import torch
e, f = torch.cuda.Event(), torch.cuda.Event()
e.record(); f.record()
print(e.elapsed_time(f) >= 0)
"""

#: name -> (options of Python, program, what of stderr cannot be compared)
ALONE = {
    "an uncaught error": ((), _SMALL + "f.record('broken')", "frames"),
    "an error in a thread, and at exit": (
        (),
        _SMALL
        + """
import threading
t = threading.Thread(target=f.record, args=("broken",), name="T")
t.start(); t.join()
import atexit, weakref
class Late:
    def __init__(self): self.e = torch.cuda.Event()
    def __del__(self):
        self.e.record()
        print("del", self.e.elapsed_time(self.e))
kept = Late()
atexit.register(lambda: (e.record(), print("exit", e.elapsed_time(e))))
weakref.finalize(e, lambda: (f.record(), print("final", f.elapsed_time(f))))
import sys
sys.modules["kept"] = kept
""",
        "frames",
    ),
    "profiled, and a fault": (
        ("-X", "faulthandler", "-m", "cProfile", "-s", "name", "-o", "/dev/null"),
        _SMALL + "import ctypes\nctypes.string_at(0)",
        "threads",
    ),
    "sub-interpreters": (
        (),
        """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
number = interpreters.create()
run = getattr(interpreters, "run_string", None) or interpreters.exec
print(run(number, "import torch\\ne = torch.cuda.Event(); e.record(); e.elapsed_time(e)\\nimport sys; print('inside', flush=True)"))
interpreters.destroy(number)
"""
        + _SMALL,
        "",
    ),
}

#: The real torch on a machine without CUDA: the calls of its C base do nothing.
STUB = """
import torch
C = torch._C._CudaEventBase
C.__new__ = lambda cls, *args, **kwargs: object.__new__(cls)
C.__init__ = lambda self, *args, **kwargs: None
C.record = lambda self, stream: None
C.wait = lambda self, stream: None
C.elapsed_time = lambda self, end: 0.0005
class Stream:
    cuda_stream, device_index, stream_id = 0, 0, 0
S = Stream()
"""

REAL = (
    STUB
    + """
import inspect, pickle, sys
E, G = torch.cuda.Event, torch.cuda.CUDAGraph
for f in (E.record, E.wait, E.elapsed_time, G.capture_begin, G.capture_end):
    print(f.__qualname__, inspect.signature(f), inspect.getsource(f))
    if "_nsysalign_probe" in sys.modules:
        assert f._nsysalign_wrapped and f.__wrapped__.__code__.co_filename.startswith(torch.__path__[0]), f
print(pickle.loads(pickle.dumps(E)) is E, inspect.getsource(E), list(vars(E)))
try:
    torch.cuda.current_stream()
except Exception as error:
    print(type(error), error)

e, f = E(enable_timing=True), E(enable_timing=True)
x = torch.ones(3, requires_grad=True)
x.register_hook(lambda g: (e.record(S), g * 2)[1])
(x * 2).sum().backward()
class Timed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        f.record(S)
        return x.clone()
    @staticmethod
    def backward(ctx, g):
        e.record(S)
        return g
Timed.apply(x).sum().backward()
print(x.grad, e.elapsed_time(f), type(e), isinstance(e, E))

@torch.compile(backend="eager")
def step(x):
    e.record(S)
    y = x + 1
    f.record(S)
    return y * 2, e.elapsed_time(f)
print(step(torch.ones(2)), step(torch.zeros(2)))
counted = torch._dynamo.utils.counters
print(counted["stats"], counted["resumes"], len(counted["graph_break"]))
"""
)
