"""`nsysalign run --recorder cupti` on a GPU made of C: what is recorded, how programs end, and what is said
where CUPTI records nothing."""

import ast
import json
import shutil
import signal
import subprocess

import numpy as np
import pytest

from nsysalign.engine import load
from nsysalign.model import KIND
from nsysalign.trace.cupti import Recording
from nsysalign.trace.read import read_trace

from .conftest import COMPILER, NVTX, ROOT


def test_the_whole_answer_without_nsys(program):
    ran = program.run("timed(20); print('its own words'); sys.exit(5)")
    assert ran.returncode == 5, ran.stderr
    assert ran.stdout.startswith("its own words\n")
    assert "recorded by nsysalign itself" in ran.stderr
    analysis = load(program.folder / "out")
    (label,) = analysis.labels["label"]
    own = analysis.measured
    assert len(own) == 20 and analysis.unaligned.empty
    parts = analysis.parts.pivot(index="interval", columns="cause", values="ns").loc[
        own["interval"]
    ]
    assert (parts["kernel"] == 80_000).all()  # the two kernels, to the nanosecond
    assert (parts.sum(axis=1) == own["elapsed_ns"].to_numpy()).all()
    assert analysis.trace.devices == ("Fake GPU",)
    assert analysis.trace.monotonic
    assert label.startswith("script.py")
    # a time without nsys is predicted for nsys's recordings alone
    assert analysis.unprofiled["predicted_ns"].isna().all()
    assert json.loads((program.folder / "out" / "run.json").read_text())["recorder"] == "cupti"


@pytest.mark.parametrize("how", [["--recorder", "cupti"], []], ids=["asked for", "no nsys"])
def test_a_script_is_checked_without_nsys(program, how):
    program.written("timed(20)")
    ran = program.python(
        "-m", "nsysalign", "check", *how, "-o", "out", "script.py", PATH="/usr/bin:/bin"
    )
    assert ran.returncode == 0, ran.stderr
    assert "Nothing found in 20 timed intervals" in ran.stdout
    assert "recorded by nsysalign itself" in ran.stderr


def test_check_needs_a_trace(program):
    """Where neither nsys nor CUPTI records, and where the log alone is asked for, the script is not run."""
    program.written("open('ran', 'w')")
    for how, words in ((["--recorder", "log"], "which check needs"), ([], "nsys was not found")):
        nothing = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": ""}
        ran = program.python("-m", "nsysalign", "check", *how, "script.py", **nothing)
        assert ran.returncode == (2 if how else 3) and words in ran.stderr
    assert not (program.folder / "ran").exists()


def test_kernels_are_those_of_the_program_with_their_names_calls_and_shapes(program):
    ran, (path,) = program.alone("timed(50)")
    assert ran.returncode == 0, ran.stderr
    trace = read_trace(path)
    kernels = trace.operations[trace.operations["kind"] == KIND["kernel"]]
    names = [trace.names[n] for n in kernels["name_id"]]
    assert names == ["fake::adds(float*, int)", "fake::muls(float*, int)"] * 50
    called = trace.calls["name_id"].to_numpy()[kernels["call"]]
    assert {trace.names[n] for n in called} == {"cudaLaunchKernel"}
    assert trace.shapes(kernels["row"].to_numpy()[:1]).tolist() == [
        [100, 1, 1, 256, 1, 1, 32, 0, 0]
    ]
    assert trace.streams[["stream", "flag"]].values.tolist() == [[7, 3], [13, 2]]


def test_calls_that_cost_nothing_are_left_out(program):
    text = "timed(5); [gpu.fake_get_device() for _ in range(1000)]"
    _, (path,) = program.alone(text)
    trace = read_trace(path)
    assert "cudaGetDevice" not in trace.names.values() and len(trace.calls) == 5 * 5


def test_more_than_a_buffer_is_whole_and_in_order(program):
    _, (path,) = program.alone("timed(500)", NSYSALIGN_RECORDER_OPTIONS="buffer=4096")
    kernels = read_trace(path).operations
    assert len(kernels) == 1000
    assert (np.diff(kernels["start_ns"]) > 0).all() and (kernels["call"] >= 0).all()


ENDS = {
    "exit": ("sys.exit(3)", 3),
    "exception": ("raise ValueError", 1),
    "_exit": ("os._exit(7)", 7),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)", -signal.SIGTERM),
    "thread at work": (
        "import threading; threading.Thread(target=timed, args=(10**9,), daemon=True).start(); time.sleep(0.2)",
        0,
    ),
}


def test_nothing_is_lost_at_an_end(program):
    """Of processes of one run that end in different ways."""
    text = f"""
import subprocess
ENDS = {[text for text, _ in ENDS.values()]}
if sys.argv[1:]:
    timed(20)
    exec(ENDS[int(sys.argv[1])])
else:
    started = [subprocess.Popen([sys.executable, "script.py", str(n)]) for n in range(len(ENDS))]
    print([(process.pid, process.wait()) for process in started])
"""
    ran = program.run(text, "-q")
    assert ran.returncode == 0, ran.stderr
    ended = ast.literal_eval(ran.stdout)
    assert [status for _, status in ended] == [status for _, status in ENDS.values()], ran.stderr
    trace = read_trace(program.folder / "out" / "trace.cupti")
    assert len(trace.operations) >= 40 * len(ENDS) and not trace.info.notes
    placed = load(program.folder / "out").measured["pid"].value_counts()
    assert all(placed.get(pid, 0) >= 20 for pid, _ in ended), placed


def test_who_is_killed_loses_at_most_the_last_second(program):
    text = "timed(20); time.sleep(2.2); timed(3); os.kill(os.getpid(), signal.SIGKILL)"
    ran = program.run(text, "-q")
    assert ran.returncode == 128 + signal.SIGKILL
    analysis = load(program.folder / "out")
    assert analysis.measured["label"].value_counts().tolist()[0] >= 20


def test_forked_children_work_and_record_nothing_of_their_parents(program):
    text = """
timed(20)
child = os.fork()
if not child:
    for _ in range(10): launch(0, 5)
    os._exit(4)
assert os.waitpid(child, 0)[1] >> 8 == 4
timed(20)
"""
    ran, recordings = program.alone(text)
    assert ran.returncode == 0, ran.stderr
    (path,) = recordings
    assert len(read_trace(path).operations) == 80


#: How a child that was forked before CUDA was used ends, and how its parent sees it.
CHILDREN = {
    "returns": ("pass", 0),
    "_exit": ("os._exit(3)", 3),
    "raises": ("raise ValueError", 1),
}


def test_a_child_forked_before_cuda_is_used_records_itself(program):
    text = f"""
for end in {[text for text, _ in CHILDREN.values()]}:
    if not os.fork():
        gpu.cuInit(0)
        timed(7)
        exec(end)
        sys.exit()
    print(os.wait()[1] >> 8, flush=True)
"""
    (program.folder / "script.py").write_text("")
    streams = program.folder / "torch"  # in whose import nothing is initialised
    shutil.copytree(program.machine / "python" / "torch", streams)
    lazy = (streams / "cuda" / "streams.py").read_text().replace("    gpu.cuInit(0)\n", "")
    (streams / "cuda" / "streams.py").write_text(lazy)
    ran = program.run(text, "-q", PYTHONPATH=f"{program.folder}:{program.machine / 'python'}")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [str(status) for _, status in CHILDREN.values()]
    counts = load(program.folder / "out").measured["pid"].value_counts()
    assert counts.tolist() == [7] * len(CHILDREN)


def test_a_child_of_a_recorded_process_that_ends_at_once_takes_nothing_with_it(program):
    """What waits in the recorder when the process forks is the parent's, and is written once."""
    text = """
for n in range(20):
    timed(3)
    if not os.fork():
        os._exit(5)
    assert os.wait()[1] >> 8 == 5
"""
    ran = program.run(text, "-q")
    assert ran.returncode == 0, ran.stderr
    assert len(load(program.folder / "out").measured) == 60
    kernels = read_trace(program.folder / "out" / "trace.cupti").operations
    assert len(kernels) == 120 == kernels["start_ns"].nunique()


REASONS = {
    "held by another": ({"FAKE_CUPTI_REFUSES": "39"}, "MULTIPLE_SUBSCRIBERS"),
    "no permission": ({"FAKE_CUPTI_REFUSES": "35"}, "INSUFFICIENT_PRIVILEGES"),
    "another tool": ({"CUDA_INJECTION64_PATH": "/other.so"}, "unset CUDA_INJECTION64_PATH"),
    "no driver": ({"LD_LIBRARY_PATH": "/nowhere", "FAKE_CUDA": ""}, "no NVIDIA driver"),
}


@pytest.mark.parametrize("why", REASONS)
def test_where_cupti_records_nothing_the_log_answers_and_it_is_said_why(program, why):
    environment, words = REASONS[why]
    text = "timed(3); sys.exit(6)"
    if why == "no driver":
        text = "a = torch.cuda.current_stream(); sys.exit(6)"
        (program.folder / "torch").mkdir()
        shutil.copytree(
            ROOT / "tests/collect/faketorch/torch", program.folder / "torch", dirs_exist_ok=True
        )
        environment = {
            **environment,
            "PYTHONPATH": f"{program.folder}:{program.machine / 'python'}",
        }
        (program.folder / "script.py").write_text(f"import sys, torch\n{text}")
        ran = program.python("-m", "nsysalign", "run", "--recorder", "cupti", "--no-clocks", "-o", "out", "script.py", **environment)  # fmt: skip
    else:
        ran = program.run(text, **environment)
    assert ran.returncode == 6
    assert sum(words in line for line in ran.stderr.splitlines()) == 1, ran.stderr
    assert "Recorded without nsys" in ran.stdout
    if why != "no driver":
        assert len(__import__("nsysalign").load(program.folder / "out").intervals) == 3


def test_a_program_without_a_gpu_and_a_gate_without_a_trace_do_not_pass(program):
    """As under nsys: 4 where nothing used a GPU, 3 where an option needs the trace that is missing."""
    idle = program.run("print('its own words')", "--fail-on", "error")
    assert idle.returncode == 4 and idle.stdout == "its own words\n"
    assert "did no CUDA work" in idle.stderr
    shutil.rmtree(program.folder / "out")
    assert program.run("sys.exit(6)").returncode == 6
    shutil.rmtree(program.folder / "out")
    held, _ = REASONS["held by another"]
    blind = program.run("timed(3)", "--fail-on", "error", **held)
    assert blind.returncode == 3 and "which --fail-on needs" in blind.stderr
    assert "Recorded without nsys" in blind.stdout


def test_without_the_library_the_log_answers(program, tmp_path):
    """pip install without a compiler."""
    copy = tmp_path / "python"
    shutil.copytree(program.machine / "python", copy, ignore=shutil.ignore_patterns("*.so"))
    ran = program.run("timed(3)", PYTHONPATH=str(copy))
    assert ran.returncode == 0
    assert "no C compiler" in ran.stderr and "Recorded without nsys" in ran.stdout


def test_the_recording_is_bounded(program):
    options = "limit=40000 buffer=4096"
    ran, (path,) = program.alone(
        "timed(2000); print('went on')", NSYSALIGN_RECORDER_OPTIONS=options
    )
    assert ran.stdout == "went on\n"
    assert path.stat().st_size < 60_000
    assert any("reached its limit" in note for note in read_trace(path).info.notes)


def test_a_full_disk_ends_the_recording_not_the_program(program):
    import resource

    begin = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, resource.RLIM_INFINITY))\n"
    assert resource.RLIM_INFINITY  # Python ignores SIGXFSZ: a write fails as on a full disk
    ran, (path,) = program.alone(f"{begin}timed(1000); print('went on')", NSYSALIGN_RECORDER_OPTIONS="buffer=4096")  # fmt: skip
    assert ran.returncode == 0 and ran.stdout == "went on\n"
    assert path.stat().st_size <= 30_000
    assert len(read_trace(path).operations) > 10


def test_a_program_that_closes_all_descriptors_gets_none_of_it(program):
    text = """
timed(20); time.sleep(1.3)
os.closerange(0, 4096)
mine = [os.open(f"mine{n}", os.O_RDWR | os.O_CREAT) for n in range(1000)]
timed(20)
time.sleep(1.2)
assert all(os.fstat(n).st_size == 0 for n in mine)
"""
    ran, (path,) = program.alone(text)
    assert ran.returncode == 0
    assert len(read_trace(path).operations) == 80


def test_it_steps_aside_for_torchs_profiler(program):
    text = """
import torch.autograd.profiler as p
timed(20)
with p.profile():
    timed(5)
timed(20)
"""
    ran = program.run(text, "-q")
    assert ran.returncode == 0, ran.stderr
    kernels = read_trace(program.folder / "out" / "trace.cupti").operations
    assert len(kernels) == 80  # but for those of the profiler's 5 pairs


def test_who_takes_over_finds_no_buffer_of_ours(program):
    """What is recorded then would be written to it."""
    text = """
import ctypes, threading
stop = threading.Event()
def work():
    while not stop.is_set(): launch(0, 1)
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads: thread.start()
library = ctypes.CDLL(os.environ["CUDA_INJECTION64_PATH"])
left = 0
for _ in range(100):
    time.sleep(0.001)
    library.nsysalign_aside(1)
    left += gpu.fake_holds_a_buffer()
    gpu.fake_late_record()
    left += gpu.fake_holds_a_buffer()
    library.nsysalign_aside(0)
stop.set()
for thread in threads: thread.join()
print(left)
"""
    ran, (path,) = program.alone(text)
    assert ran.stdout == "0\n", ran.stderr
    assert not any("dropped" in note for note in read_trace(path).info.notes)


def test_what_a_profiler_with_a_cupti_of_its_own_runs_into_is_explained(program):
    folder = program.folder / "triton" / "profiler"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("")
    (folder / "__init__.py").write_text("from .profile import start\n")
    (folder / "profile.py").write_text(
        "def start(name):\n    raise RuntimeError(f'error 39: {name}')\n"
    )
    ran = program.run("timed(3); import triton.profiler; triton.profiler.start('mine')")
    assert ran.returncode == 1 and "RuntimeError: error 39: mine" in ran.stderr
    notes = load(program.folder / "out").notes
    assert any("triton.profiler could not start" in note for note in notes)


def test_nothing_is_lost_when_a_program_executes_another(program):
    text = """
timed(10)
if len(sys.argv) == 1:
    os.execv(sys.executable, [sys.executable, "script.py", "again"])
"""
    ran = program.run(text, "-q")
    assert ran.returncode == 0, ran.stderr
    assert len(load(program.folder / "out").measured) == 20


@pytest.mark.parametrize("version", ["11.8", "13.0"])
def test_layouts_of_several_versions(program, version):
    _, (path,) = program.alone("timed(10)", FAKE_CUPTI=version)
    trace = read_trace(path)
    assert len(trace.operations) == 20
    assert trace.info.nsys_version == {"11.8": "(CUPTI API 18)", "13.0": "(CUPTI 13.0.1)"}[version]
    assert any("by their kernels" in note for note in trace.info.notes) == (version == "11.8")


def test_a_layout_that_is_not_known_is_refused(program):
    ran = program.run("timed(10)", FAKE_CUPTI="unknown")
    assert ran.returncode == 3
    assert "240 bytes" in ran.stderr and "200, 208, 216" in ran.stderr


def test_kernels_without_times_are_counted(program):
    _, (path,) = program.alone("timed(10); [gpu.fake_zero_kernel() for _ in range(4)]")
    trace = read_trace(path)
    assert len(trace.operations) == 20
    assert any(note.startswith("4 operations with impossible times") for note in trace.info.notes)


def test_ranges_of_a_domain_that_are_left_with_a_payload(program):
    """As NCCL leaves ncclCommInitRankConfig: else it would seem to last until the end of the program."""
    text = f"""
from ctypes import *
library = CDLL(os.environ["NVTX_INJECTION64_PATH"])
{NVTX}"""
    text += """
class Segment(Structure):
    _fields_ = [("id", c_size_t), ("size", c_size_t), ("slots", POINTER(c_void_p))]
class Extension(Structure):
    _fields_ = [("version", c_uint16), ("bytes", c_uint16), ("module", c_uint16), ("compatible", c_uint16),
                ("count", c_size_t), ("segments", POINTER(Segment)), ("export", c_void_p), ("types", c_void_p)]
functions = (c_void_p * 8)()
segments = (Segment * 1)(Segment(0, 8, cast(functions, POINTER(c_void_p))))
def extension(module):
    return library.InitializeInjectionNvtxExtension(byref(Extension(3, 48, module, 0x103, 1, segments)))
assert extension(1) == 0 and not any(functions)
assert extension(2) == 1
class Text(Structure):
    _fields_ = [("version", c_uint16), ("size", c_uint16), ("category", c_uint32), ("color_type", c_int32),
                ("color", c_uint32), ("payload_type", c_int32), ("reserved", c_int32), ("payload", c_uint64),
                ("type", c_int32), ("message", c_char_p)]
def named(text):
    return byref(Text(3, sizeof(Text), 0, 0, 0, 0, 0, 0, 1, text))
domain = CFUNCTYPE(c_void_p, c_char_p)(slots[5][12])(b"NCCL")
push = CFUNCTYPE(c_int, c_void_p, c_void_p)(slots[5][4])
pop = CFUNCTYPE(c_int, c_void_p)(slots[5][5])
pop_payload = CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t)(functions[4])
start = CFUNCTYPE(c_uint64, c_void_p, c_void_p, c_size_t)(functions[5])
end = CFUNCTYPE(None, c_void_p, c_uint64, c_void_p, c_size_t)(functions[6])
push(domain, named(b"init")); push(domain, named(b"inside")); pop(domain); pop_payload(domain, None, 0)
launch(0, 9)
end(domain, start(domain, None, 0), None, 0)
"""
    library = next((program.machine / "python/nsysalign/recorder").glob("*.so"))
    ran, (path,) = program.alone(text, NVTX_INJECTION64_PATH=str(library))
    assert ran.returncode == 0, ran.stderr
    trace = read_trace(path)
    (launched,) = trace.operations["start_ns"].tolist()
    ends = dict(zip(trace.ranges["text"], trace.ranges["end_ns"], strict=True))
    assert ends["inside"] < ends["init"] < launched
    assert (trace.ranges["end_ns"] > 0).all()


def test_ranges_of_nvtx(program):
    """By the calls that NVTX's header makes: with the text itself, and with a registered one."""
    text = f"""
from ctypes import *
library = CDLL(os.environ["NVTX_INJECTION64_PATH"])
{NVTX}"""
    text += """
start = CFUNCTYPE(c_uint64, c_char_p)(slots[1][5]); end = CFUNCTYPE(None, c_uint64)(slots[1][7])
push, pop = CFUNCTYPE(c_int, c_char_p)(slots[1][9]), CFUNCTYPE(c_int)(slots[1][11])
for n in range(3):
    push(b"outer"); launch(0, 9); push("inner é".encode()); launch(0, 9); pop(); pop()
push(b"never closed")
wide = CFUNCTYPE(c_int, c_wchar_p)(slots[1][10]); wide("wide ü\\U0001f600"); pop()
"""
    library = next((program.machine / "python/nsysalign/recorder").glob("*.so"))
    ran, (path,) = program.alone(text, NVTX_INJECTION64_PATH=str(library))
    assert ran.returncode == 0, ran.stderr
    trace = read_trace(path)
    ranges = trace.ranges
    assert trace.info.nsys_version == "(CUPTI 13.0.1)"
    assert ranges["text"].tolist() == ["outer", "inner é"] * 3 + [
        "never closed",
        "wide ü\U0001f600",
    ]
    inner = ranges[ranges["text"] == "inner é"]
    outer = ranges[ranges["text"] == "outer"]
    assert (outer["start_ns"].to_numpy() < inner["start_ns"].to_numpy()).all()
    assert (outer["end_ns"].to_numpy() > inner["end_ns"].to_numpy()).all()


def test_programs_that_are_not_python(program):
    (program.folder / "program.c").write_text("""
int cuInit(unsigned); void fake_launch(int, unsigned long); void fake_synchronize(void);
int main(void) { cuInit(0); for (int i = 0; i < 30; i++) fake_launch(i, 7000); fake_synchronize(); return 4; }
""")
    cuda = program.machine / "cuda"
    (program.folder / "libcuda.so").symlink_to(cuda / "libcuda.so.1")
    words = [COMPILER, "program.c", "-o", "program", "-L.", "-lcuda", f"-Wl,-rpath,{cuda}"]
    subprocess.run(words, cwd=program.folder, check=True)
    ran = program.python(
        "-m", "nsysalign", "run", "--recorder", "cupti", "-q", "-o", "out", "--", "./program"
    )
    assert ran.returncode == 4, ran.stderr
    assert len(read_trace(program.folder / "out" / "trace.cupti").operations) == 30


def test_a_run_of_several_processes_is_one_trace(program):
    text = """
import subprocess
if len(sys.argv) == 1:
    for _ in range(2):
        subprocess.run([sys.executable, "script.py", "child"], check=True)
timed(5)
"""
    ran = program.run(text, "-q")
    assert ran.returncode == 0, ran.stderr
    analysis = load(program.folder / "out")
    assert analysis.measured["pid"].value_counts().tolist() == [5, 5, 5]
    assert len(Recording(program.folder / "out" / "trace.cupti").content) > 2


def test_which_recorder(program):
    """Without nsys: cupti; --recorder log and usage."""
    ran = program.python("-m", "nsysalign", "run", "--recorder", "log", "--accurate", "x.py")
    assert ran.returncode == 2 and "--accurate needs" in ran.stderr
    ran = program.python("-m", "nsysalign", "run", "--recorder", "cupti", "--sample-python", "x.py")
    assert ran.returncode == 2 and "--sample-python needs" in ran.stderr
    ran = program.run("timed(3)", how="log")
    assert "Recorded without nsys" in ran.stdout
    ran = program.python(
        "-m", "nsysalign", "run", "--no-clocks", "-o", "default", "script.py", PATH="/usr/bin:/bin"
    )
    assert (program.folder / "default" / "trace.cupti").is_file(), ran.stderr
