"""Numbers into text, and foreign text into one harmless line."""

import math

import pytest

from nsysalign.text import (
    bytes_text,
    demangled,
    duration,
    fixed,
    kernel_name,
    percent,
    safe_text,
    short_name,
    told_apart,
)
from nsysalign.text import middle as in_the_middle
from nsysalign.text import quantity as evidence

SAID = {
    fixed: {0: ".", 234_720: "234.72", 32: "0.03", 4: "0.00", None: "?", math.nan: "?", 78_709_984: "78,709.98"},
    duration: {
        0: "0 ns", 32: "32 ns", 999: "999 ns", 1_000: "1.00 us", 24_768: "24.8 us", 217_000: "217 us",
        999_499: "999 us", 999_500: "1.00 ms", 1_786_000: "1.79 ms", 78_709_984: "78.7 ms", 3.2e9: "3.20 s",
        9_996: "10.0 us", 99_960: "100 us", -24_768: "-24.8 us", None: "unknown",
    },
    bytes_text: {512: "512 B", 2_100_000: "2.10 MB", 84e9: "84.0 GB"},
    percent: {0: "0 %", 0.001: "<1 %", 0.742: "74 %"},
    safe_text: {
        "\x1b[31mred\x1b[0m": "red", "\x1b]0;title\x07after": "after", "a\nb\tc": "a b c", "\x9b2J": "",
        "ab\u202edc": "abdc", "a\u200bb\u2060": "ab", "\ud800": "\ufffd", "\x00\x07\x7f": "", "[bold]x[/]": "[bold]x[/]",
    },
    short_name: {
        "void at::native::reduce_kernel<512, 1, Op<a::b>>(Op<int>, long)": "reduce_kernel",
        "(anonymous namespace)::scale(float*)": "scale", "nvjet_sm90_hsh_TNT": "nvjet_sm90_hsh_TNT",
        "copy D2H pinned": "copy D2H pinned", "<<<": "<<<",
    },
}  # fmt: skip


@pytest.mark.parametrize("function", SAID)
def test_what_a_number_or_a_name_is_called(function):
    assert {value: function(value) for value in SAID[function]} == SAID[function]


def test_shortened_in_the_middle_keeps_both_ends():
    assert in_the_middle("abcdefghij", 5) == "ab…ij" and in_the_middle("abc", 3) == "abc"
    assert [len(in_the_middle("abcdefghij", n)) for n in range(1, 12)] == [*range(1, 11), 10]


def test_evidence_takes_its_unit_from_its_key():
    assert evidence("idle_ns", 174_490) == "174 us" and evidence("host_share", 0.743) == "74 %"
    assert evidence("copies", 0) == "0" and evidence("names", ["a", "b"]) == "a, b"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("nvkernel__Z9transposePdS_S__F1L86_2", "transpose_F1L86_2"),  # OpenMP of nvc++
        ("__omp_offloading_803_2a4__Z6vecaddv_l12", "vecadd_l12"),  # and of clang
        ("_ZN3foo3barEii", "foo::bar"),
        ("main_28_gpu", "main_28_gpu"),
        ("_Z99cut", "_Z99cut"),
        ("_ZSt4sort", "_ZSt4sort"),
    ],
)
def test_mangled_names(name, shown):
    assert demangled(name) == shown


def test_kernels_keep_the_part_that_tells_them_apart():
    """Two kernels were `…align4>(T1::Params)` and `…align1>(T1::Params)`."""
    shape = "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_{}_16x4_nn_{}>(T1::Params)"
    names = [
        shape.format("256x64", "align4"),
        shape.format("256x64", "align1"),
        shape.format("64x64", "align4"),
    ]
    shown = told_apart({name: short_name(name) for name in names}, 48)
    assert len(set(shown.values())) == 3
    for name, text in shown.items():
        assert "Params" not in text and ("256x64" in text) == ("256x64" in name)
    assert len({kernel_name(name) for name in names}) == 3


def test_kernels_that_differ_in_numbers_keep_their_name():
    """They were `…1024, 5, 5, 3, …` and `…128, 5, 5, 3, …`, in a forward pass of Darknet."""
    shape = "void cudnn::detail::implicit_convolve_sgemm<float, float, {}, 3, 3, 0, true, false>(int, float const*)"
    names = [shape.format(sizes) for sizes in ("1024, 5, 5", "128, 6, 7", "128, 5, 5")]
    shown = told_apart({name: in_the_middle(short_name(name), 40) for name in names}, 40)
    assert len(set(shown.values())) == 3 and all(len(text) <= 40 for text in shown.values())
    assert all(text.startswith("implicit") for text in shown.values())
