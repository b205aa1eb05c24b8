"""A cell of a notebook on a machine where CUPTI cannot record."""

from __future__ import annotations

import os
import subprocess
import sys

#: rich takes a shell of this name for a notebook's.
PROGRAM = """
import builtins
builtins.get_ipython = type("ZMQInteractiveShell", (), {})
import nsysalign
nsysalign.load_ipython_extension(type("Shell", (), {"register_magic_function": lambda *_: None})())
with nsysalign.recording() as run:
    pass
print(run._repr_html_())
run.show()
"""


def test_a_cell_says_in_words_what_could_not_be_recorded(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=60,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("<pre>") and ran.stdout.count("only events are recorded") == 2
