"""A notebook run by nbconvert, as `jupyter nbconvert --execute` does; prints what its cells
printed."""

import json
import subprocess
import sys
from pathlib import Path

import nbformat

cells = [
    "import time, sys",
    "began = time.perf_counter(); sum(range(100_000)); print(time.perf_counter() > began)",
    "import subprocess; print(subprocess.run([sys.executable, '-c', 'print(6 * 7)'], capture_output=True).stdout)",
]
book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
book.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
nbformat.write(book, "book.ipynb")
done = subprocess.run(
    [
        *(sys.executable, "-m", "nbconvert", "--to", "notebook", "--execute", "book.ipynb"),
        *("--output", "run.ipynb", "--log-level", "ERROR"),
    ]
)
for cell in json.loads(Path("run.ipynb").read_text())["cells"]:
    print([output.get("text") for output in cell["outputs"]])
sys.exit(done.returncode)
