"""Waits for the GPU with torch imported already, then becomes the program: imports need no GPU to themselves.

    python gate.py LOCK SECONDS alone|beside PROGRAM.py [ARGS...]

The lock is held until the process ends; after SECONDS with it the process is ended.  beside: without the lock.
"""

import fcntl
import os
import runpy
import signal
import sys

import torch  # noqa: F401

lock = open(sys.argv[1], "a")  # noqa: SIM115
if sys.argv[3] == "alone":
    fcntl.flock(lock, fcntl.LOCK_EX)
signal.alarm(int(sys.argv[2]))
sys.argv = sys.argv[4:]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
