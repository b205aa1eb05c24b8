"""A program that profiles itself under nsys is told so; its own work is not touched."""

from __future__ import annotations

import pytest

TORCH = """
from torch.autograd.profiler import profile
for _ in range(3):
    with profile(ACTIVITIES) as p:
        print(type(p) is profile)
"""


@pytest.mark.parametrize(
    ("activities", "nsys", "notes"),
    [
        ("'ProfilerActivity.CUDA'", True, 1),
        ("'ProfilerActivity.CPU'", True, 0),
        ("'ProfilerActivity.CUDA'", False, 0),
    ],
)
def test_torch_profiler(probed, activities, nsys, notes):
    env = {"NVTX_INJECTION64_PATH": "/nonexistent"} if nsys else {}
    run = probed(TORCH.replace("ACTIVITIES", activities), env=env)
    assert (run.status, run.out, run.err) == (0, "began\nTrue\n" * 3, "")
    texts = [line["text"] for line in run.lines("note")]
    assert len(texts) == notes
    if notes:
        assert texts[0].startswith("torch.profiler began at script.py:4 inside the program")
        assert "void" in texts[0] and "DG_USE_NVIDIA_TOOLS=1" in texts[0] and "r610" in texts[0]


@pytest.mark.parametrize(
    ("package", "module", "function", "name"),
    [
        ("triton/profiler", "profile", "start", "Proton"),
        ("cupti", "cupti", "activity_enable", "CUPTI's Python binding"),
    ],
)
def test_proton_and_cupti(probed, tmp_path, package, module, function, name):
    folder = tmp_path / "libraries" / package
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "__init__.py").write_text(f"from .{module} import {function}\n")
    (folder / f"{module}.py").write_text(f"def {function}(what=None):\n    return 7\n")
    dotted = package.replace("/", ".")
    run = probed(
        f"import sys\nsys.path.insert(0, {str(tmp_path / 'libraries')!r})\nimport {dotted} as p\nprint(p.{function}('x'))",
        env={"NVTX_INJECTION64_PATH": "/nonexistent"},
    )
    assert (run.status, run.out, run.err) == (0, "7\n", "")
    assert [line["text"].partition(" began")[0] for line in run.lines("note")] == [name]
