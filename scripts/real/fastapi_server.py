"""A FastAPI application under uvicorn on loopback, 100 requests from four threads, stopped by
SIGTERM.

With --gpu each request times a kernel by events.
"""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

Path("application.py").write_text(
    f"""
import sys, time
sys.path.append({str(Path(__file__).parent)!r})
from fastapi import FastAPI
app = FastAPI()
if {"--gpu" in sys.argv}:
    from timed import pairs
else:
    pairs = bool
"""
    + """
@app.get("/square/{n}")
def square(n: int):
    began = time.perf_counter()
    pairs(1)
    return {"n": n * n, "quick": time.perf_counter() - began < 10}
@app.on_event("shutdown")
def bye():
    print("shut down", flush=True)
"""
)
with socket.create_server(("127.0.0.1", 0)) as probe:
    port = probe.getsockname()[1]
server = subprocess.Popen(
    [
        *(sys.executable, "-W", "ignore", "-m", "uvicorn", "application:app"),
        *("--port", str(port), "--log-level", "error"),
    ]
)


def ask(n: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/square/{n}", timeout=10) as answer:
        return json.load(answer)["n"]


for _ in range(400):
    try:
        ask(0)
        break
    except OSError:
        time.sleep(0.05)
with ThreadPoolExecutor(4) as pool:
    print(sum(pool.map(ask, range(100))))
server.send_signal(signal.SIGTERM)
print(server.wait(30))
