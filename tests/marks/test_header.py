"""marks.cuh as compilers see it: off it is nothing, on it compiles everywhere it should.  Each
source is compiled once."""

from __future__ import annotations

import ctypes
import glob
import re
import struct
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

import nsysalign.addons.marks as marks
from nsysalign.addons.marks import layout
from nsysalign.addons.marks.layout import name_hash

HEADER = Path(marks.include(), "nsysalign", "marks.cuh")
KERNEL = """
#include <nsysalign/marks.cuh>
extern "C" __global__ void kernel(float* x, int n, nsysalign_marks m) {
  NSYSALIGN_WARP(w, m);
  float a = x[threadIdx.x];
  for (int i = 0; i < n; i++) {
    NSYSALIGN_RANGE(w, "load") { a = a * 1.1f + x[i * 32 + threadIdx.x]; if (a > 9.f) continue; }
    NSYSALIGN_MARK_AFTER(w, "landed", a);
    if (a > 0.5f) { NSYSALIGN_COUNT(w, "hot"); a *= 2; } else NSYSALIGN_COUNT(w, "cold");
  }
  NSYSALIGN_MARK(w, "done");
  x[threadIdx.x] = a;
}
"""
EXAMPLE = Path(__file__).with_name("programs") / "example.cu"
ON, OFF = "-DNSYSALIGN_MARKS", "-DNOTHING"


def nvcc(folder: str | Path, *flags: str, source: str = "k.cu") -> str:
    """What the compiler says of a file in a folder; it makes k.out there."""
    command = ["nvcc", *flags, "-I", marks.include(), source, "-o", "k.out"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@cache
def compiled(source: str, *flags: str, arch: str = "sm_90") -> tuple[bytes, str]:
    """(cubin, what ptxas says)."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "k.cu").write_text(source)
        said = nvcc(folder, f"-arch={arch}", "-O3", "-Xptxas", "-v", "-cubin", *flags)
        return Path(folder, "k.out").read_bytes(), said


def code_of(cubin: bytes, name: str = ".text.kernel") -> bytes:
    """The machine code of a kernel in a cubin (ELF64)."""
    (at,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, at + i * size) for i in range(count)]
    texts = sections[names][4]
    for section in sections:
        end = cubin.index(b"\0", texts + section[0])
        if cubin[texts + section[0] : end].decode() == name:
            return cubin[section[4] : section[4] + section[5]]
    raise AssertionError(f"no {name}")


@pytest.mark.nvcc
def test_off_it_leaves_no_instruction():
    bare = re.sub(r"NSYSALIGN_(RANGE)\(.*?\)", "", KERNEL)
    bare = re.sub(r"NSYSALIGN_\w+\([^;]*?\);", ";", bare)
    assert "NSYSALIGN" not in bare.replace("nsysalign_marks", "")
    assert code_of(compiled(KERNEL)[0]) == code_of(compiled(bare)[0])
    assert code_of(compiled(KERNEL, ON)[0]) != code_of(compiled(bare)[0])


def operations(code: bytes) -> list[int]:
    """The operation of each instruction, by its low twelve bits."""
    return [int.from_bytes(code[at : at + 2], "little") & 0xFFF for at in range(0, len(code), 16)]


TIMER, STORE, LOAD, VOTE = 0x805, 0x986, 0x981, 0x806


@pytest.mark.nvcc
def test_the_timer_is_read_after_a_value_that_a_mark_waits_for():
    """A load, a vote that needs it, then the timer: instructions are issued in order."""
    source = """
    #include <nsysalign/marks.cuh>
    extern "C" __global__ void kernel(float* x, nsysalign_marks m) {
      NSYSALIGN_WARP(w, m);
      for (int i = 0; i < 100; i++) { const float a = x[i * 32 + threadIdx.x]; NSYSALIGN_MARK_AFTER(w, "landed", a); }
    }"""
    code = operations(code_of(compiled(source, ON)[0]))
    load = next(i for i, op in enumerate(code) if op == LOAD and STORE in code[i : i + 24])
    timer = next(i for i in range(load, len(code)) if code[i] == TIMER)
    assert VOTE in code[load:timer]


@pytest.mark.nvcc
def test_a_mark_without_a_warp_is_the_compilers_error():
    source = '#include <nsysalign/marks.cuh>\n__global__ void k() { NSYSALIGN_MARK(w, "x"); }\n'
    source += '__global__ void other(int w) { NSYSALIGN_MARK(w, "x"); }'
    with pytest.raises(AssertionError, match='"w" is undefined') as error:
        compiled(source, ON)
    assert "NSYSALIGN_WARP(w, marks)" in str(error.value)


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("arch", "standard", "flag"),
    [("sm_75", "c++17", ON), ("sm_90", "c++14", ON), ("sm_90", "c++14", OFF), ("sm_100", "c++20", ON)],
)  # fmt: skip
def test_every_macro_compiles_without_a_warning(tmp_path, arch, standard, flag):
    """On and off; nvcc 13 knows no compute capability below 7.5."""
    more = 'NSYSALIGN_COUNT_WARPS(w, "done");'
    (tmp_path / "k.cu").write_text(KERNEL.replace('NSYSALIGN_MARK(w, "done");', more))
    strict = ("-Xcompiler", "-Wall,-Wextra,-Wshadow", "-Wreorder", "-c")
    assert nvcc(tmp_path, f"-arch={arch}", f"-std={standard}", flag, *strict) == ""


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("program", "flag"),
    [("checks.cu", ON), ("launches.cu", OFF)],
)
def test_programs_with_a_recorder_compile(tmp_path, program, flag):
    nvcc(tmp_path, "-arch=sm_90", flag, "-c", source=str(EXAMPLE.with_name(program)))


def nvrtc() -> ctypes.CDLL | None:
    for folder in sys.path:
        for path in glob.glob(f"{folder}/nvidia/*/lib/libnvrtc.so*"):
            return ctypes.CDLL(path)
    return None


@pytest.mark.skipif(nvrtc() is None, reason="no NVRTC")
def test_nvrtc_takes_it_without_anything_of_the_host():
    library = nvrtc()
    flags = marks.flags()
    for source, options in (
        (KERNEL, flags),
        (KERNEL, flags[:1]),
        (marks.source() + KERNEL.replace("#include <nsysalign/marks.cuh>", ""), []),
    ):
        program = ctypes.c_void_p()
        library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"k.cu", 0, None, None)
        given = [b"--gpu-architecture=sm_90", *(o.encode() for o in options)]
        status = library.nvrtcCompileProgram(
            program, len(given), (ctypes.c_char_p * len(given))(*given)
        )
        size = ctypes.c_size_t()
        library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        library.nvrtcGetProgramLog(program, log)
        assert status == 0, log.value.decode()
        assert b"error" not in log.value and b"warning" not in log.value, log.value.decode()


def test_the_numbers_of_the_header_are_the_hosts():
    text = HEADER.read_text()
    for name, value in (
        ("MAGIC", layout.MAGIC), ("CHUNK", layout.CHUNK), ("LINE", layout.LINE), ("SM_LINES", layout.SM_LINES),
        ("REGIONS", layout.REGIONS), ("HEAD", layout.HEAD), ("STRAY", layout.STRAY),
        ("BEGIN", layout.BEGIN), ("END", layout.END), ("EXIT", layout.EXIT), ("LINES", layout.LINES),
    ):  # fmt: skip
        found = re.search(rf"\b{name} = (0x[0-9a-f]+|\d+)u?[,;]", text)
        assert int(found[1], 0) == value, name
    assert f"NSYSALIGN_MARKS_VERSION {layout.VERSION}\n" in text


@pytest.mark.nvcc
def test_the_compiler_hashes_as_the_host_does():
    literals = ["load", "mma", "a longer name, with more in it", "x", "slow path"]
    checks = "".join(
        f'static_assert(nsysalign::hash("{n}") == {name_hash(n)}u, "");\n' for n in literals
    )
    compiled(f"#include <nsysalign/marks.cuh>\n{checks}__global__ void kernel() {{}}", ON)


def test_flags_leave_marks_out_where_they_are_off(monkeypatch):
    monkeypatch.setenv("NSYSALIGN_MARKS", "0")
    assert marks.flags() == [f"-I{marks.include()}"]
    assert not marks.source().startswith("#define")
    buffer = marks.buffer(mib=1)
    assert int(buffer) == 0 and buffer.__cuda_array_interface__["shape"] == (0,)
    monkeypatch.delenv("NSYSALIGN_MARKS")
    assert "-DNSYSALIGN_MARKS" in marks.flags()
