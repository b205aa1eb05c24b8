"""Numbers into text, and foreign text into one harmless line."""

import math

import pytest

from nsysalign.text import (
    bytes_text,
    duration,
    fixed,
    middle,
    percent,
    quantity,
    safe_text,
    short_name,
)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "."),
        (234_720, "234.72"),
        (32, "0.03"),
        (4, "0.00"),
        (None, "?"),
        (math.nan, "?"),
        (78_709_984, "78,709.98"),
    ],
)
def test_a_cell_is_microseconds_and_zero_is_a_dot(ns, text):
    assert fixed(ns) == text


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (32, "32 ns"),
        (999, "999 ns"),
        (1_000, "1.00 us"),
        (24_768, "24.8 us"),
        (217_000, "217 us"),
        (999_499, "999 us"),
        (999_500, "1.00 ms"),
        (1_786_000, "1.79 ms"),
        (78_709_984, "78.7 ms"),
        (3.2e9, "3.20 s"),
        (9_996, "10.0 us"),
        (99_960, "100 us"),
        (-24_768, "-24.8 us"),
        (None, "unknown"),
    ],
)
def test_prose_has_three_digits_and_a_unit(ns, text):
    assert duration(ns) == text


def test_bytes_and_shares():
    assert [bytes_text(n) for n in (512, 2_100_000, 84e9)] == ["512 B", "2.10 MB", "84.0 GB"]
    assert [percent(s) for s in (0, 0.001, 0.742)] == ["0 %", "<1 %", "74 %"]


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("a\nb\tc", "a b c"),
        ("\x9b2J", ""),
        ("ab\u202edc", "abdc"),
        ("a\u200bb\u2060", "ab"),
        ("\ud800", "\ufffd"),
        ("\x00\x07\x7f", ""),
        ("[bold]x[/]", "[bold]x[/]"),
    ],
)
def test_control_characters_do_not_reach_a_terminal(text, safe):
    assert safe_text(text) == safe


def test_shortened_in_the_middle_keeps_both_ends():
    assert middle("abcdefghij", 5) == "ab…ij"
    assert middle("abc", 3) == "abc"
    assert [len(middle("abcdefghij", n)) for n in range(1, 12)] == [*range(1, 11), 10]


def test_evidence_takes_its_unit_from_its_key():
    assert quantity("idle_ns", 174_490) == "174 us"
    assert quantity("host_share", 0.743) == "74 %"
    assert quantity("copies", 0) == "0"
    assert quantity("names", ["a", "b"]) == "a, b"


@pytest.mark.parametrize(
    ("kernel", "short"),
    [
        ("void at::native::reduce_kernel<512, 1, Op<a::b>>(Op<int>, long)", "reduce_kernel"),
        ("(anonymous namespace)::scale(float*)", "scale"),
        ("nvjet_sm90_hsh_TNT", "nvjet_sm90_hsh_TNT"),
        ("copy D2H pinned", "copy D2H pinned"),
        ("<<<", "<<<"),
    ],
)
def test_a_kernels_short_name(kernel, short):
    assert short_name(kernel) == short
