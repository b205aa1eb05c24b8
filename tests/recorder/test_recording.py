"""`with nsysalign.recording()` in a process that goes on."""

from pathlib import Path


def test_a_stretch_of_a_program_and_nothing_stays_behind(program):
    text = """
import gc, nsysalign
E, env, path, callbacks = torch.cuda.Event, dict(os.environ), list(sys.meta_path), list(gc.callbacks)
before = E.record, E.elapsed_time, torch.Event.record
timed(5)
for count in (7, 3):
    with nsysalign.recording() as run:
        for _ in range(count):
            with nsysalign.region("here"):
                timed(1)
    timed(5)
    assert (E.record, E.elapsed_time, torch.Event.record) == before
    assert dict(os.environ) == env and sys.meta_path == path
    assert "_nsysalign_probe" not in sys.modules and gc.callbacks == callbacks
    own = run.analysis.measured
    assert own["label"].tolist() == ["here"] * count, own
    assert not run.notes
parts = run.analysis.parts
assert (parts[parts["cause"] == "kernel"].groupby("interval")["ns"].sum().loc[own["interval"]] == 80_000).all()
run.show()
print(run.save("kept"), run)
# a graph that was made before must not be recorded as a whole: libcupti 13.0 crashes
assert b'"graphs":"nodes"' in (run.path / "trace.cupti").read_bytes()
"""
    (program.folder / "script.py").write_text(program_text(text))
    ran = program.python("script.py")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("here")  # the answer, of the label
    again = program.python("-m", "nsysalign", "analyze", "-q", "kept")
    assert again.returncode == 0, again.stderr


def test_no_descriptor_stays_behind(program):
    """Seven did for each recording, and what they map: a service would run out of them."""
    text = """
import gc, nsysalign
counts = []
for _ in range(4):
    with nsysalign.recording() as run:
        timed(1)
    del run
    gc.collect()
    counts.append(len(os.listdir("/proc/self/fd")))
print(counts)
assert counts[1] == counts[3], counts
"""
    (program.folder / "script.py").write_text(program_text(text))
    ran = program.python("script.py")
    assert ran.returncode == 0, ran.stderr


def test_cupti_leaves_the_process_only_if_no_other_thread_calls_cuda(program):
    """It must not leave under their calls; the threads of torch's autograd work for one that waits."""
    text = """
import ctypes, nsysalign, threading
def others(name):
    def work():
        ctypes.CDLL(None).prctl(15, name, 0, 0, 0)
        while not stop.is_set():
            launch(); time.sleep(0.001)
    stop = threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    with nsysalign.recording() as run:
        timed(20)
    stop.set()
    thread.join()
    print(gpu.fake_finalized(), len(run.analysis.measured))
others(b"python")
others(b"pt_autograd_0")
with nsysalign.recording() as run:
    timed(1)
print(gpu.fake_finalized())
"""
    (program.folder / "script.py").write_text(program_text(text))
    ran = program.python("script.py")
    assert ran.stdout == "0 20\n1 20\n2\n", ran.stderr


def test_graphs_made_before_inside_and_replayed_behind_it(program):
    text = """
import nsysalign
gpu.fake_graph(5000)
with nsysalign.recording() as run:
    gpu.fake_graph(5000)
    timed(3)
gpu.fake_graph(5000)
print(len(run.analysis.measured))
"""
    (program.folder / "script.py").write_text(program_text(text))
    ran = program.python("script.py")
    assert ran.stdout == "3\n", ran.stderr


def test_it_does_not_nest(program):
    text = """
import nsysalign
with nsysalign.recording() as run:
    try:
        run.analysis
    except nsysalign.errors.UsageError as error:
        print(error)
    try:
        with nsysalign.recording():
            pass
    except nsysalign.errors.UsageError as error:
        print(error)
    timed(3)
print(len(run.analysis.measured))
"""
    (program.folder / "script.py").write_text(program_text(text))
    ran = program.python("script.py")
    assert ran.returncode == 0, ran.stderr
    assert "still recording" in ran.stdout and "open in this process already" in ran.stdout
    assert ran.stdout.count("next:") == 2 and ran.stdout.endswith("\n3\n")
    ran = program.run("import nsysalign\nwith nsysalign.recording(): pass")
    assert ran.returncode == 1 and "recorded already" in ran.stderr


def test_an_exception_inside_is_the_programs_own(program):
    text = """
import nsysalign
record = torch.cuda.Event.record
try:
    with nsysalign.recording() as run:
        timed(3)
        raise KeyError("own")
except KeyError as error:
    print(error)
assert torch.cuda.Event.record is record
print(len(run.analysis.measured))
"""
    (program.folder / "script.py").write_text(program_text(text))
    ran = program.python("script.py")
    assert ran.stdout == "'own'\n3\n", ran.stderr


def test_where_cupti_does_not_record_the_log_answers(program):
    text = """
import nsysalign
with nsysalign.recording() as run:
    timed(3)
print(run.notes, type(run.analysis).__name__, len(run.analysis.intervals))
run.show()
"""
    (program.folder / "script.py").write_text(program_text(text))
    ran = program.python("script.py", FAKE_CUPTI_REFUSES="39")
    assert ran.returncode == 0, ran.stderr
    assert "MULTIPLE_SUBSCRIBERS" in ran.stdout and "UnprofiledRun 3" in ran.stdout


def test_a_cell_of_a_notebook(program):
    text = """
import nsysalign
class Shell:  # what IPython gives an extension
    def register_magic_function(self, function, kind, name):
        assert (kind, name) == ("cell", "nsysalign")
        self.magic = function
    def run_cell(self, cell):
        class Result: success = True
        try:
            exec(cell, globals())
        except Exception:
            Result.success = False
        return Result
shell = Shell()
nsysalign.load_ipython_extension(shell)
with nsysalign.recording() as run:  # still the function, not the file behind it
    timed(1)
run = shell.magic("", "timed(4)")
print(len(run.analysis.measured), "<table" in run._repr_html_())
print(shell.magic("", "timed(1); 1 / 0"))
"""
    (program.folder / "script.py").write_text(program_text(text))
    ran = program.python("script.py")
    assert ran.stdout == "4 True\nNone\n", ran.stderr


def test_the_lines_for_pytest_work(program):
    """docs/where-people-work.md: its test, of a step that waits and of one that only launches."""
    page = Path(__file__).parents[2] / "docs" / "where-people-work.md"
    block = page.read_text("utf-8").partition("## pytest")[2].partition("```python\n")[2]
    block = block.partition("```")[0]
    test = block.partition("def test")[2].partition("(")[0]
    for name, inside in (
        ("waits", "a.record(); launch(0, 50); synchronize(); b.record()"),
        ("launches", "a.record(); launch(0, 50); b.record()"),
    ):
        step = f"""
def step():
    a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    {inside}
    synchronize(); a.elapsed_time(b)
"""
        (program.folder / f"test_{name}.py").write_text(program_text(step) + block)
    ran = program.python("-m", "pytest", "-rA", "-p", "no:cacheprovider", "test_waits.py", "test_launches.py")  # fmt: skip
    assert f"FAILED test_waits.py::test{test}" in ran.stdout, ran.stdout + ran.stderr
    assert f"PASSED test_launches.py::test{test}" in ran.stdout, ran.stdout


def program_text(text: str) -> str:
    from .conftest import BEGIN

    return BEGIN + text
