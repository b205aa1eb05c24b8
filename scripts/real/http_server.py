"""`python -m http.server` on loopback, asked a few times, stopped by SIGTERM as a supervisor
would."""

import signal
import socket
import subprocess
import sys
import time
import urllib.request

with socket.create_server(("127.0.0.1", 0)) as probe:
    port = probe.getsockname()[1]
server = subprocess.Popen(
    [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"],
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
)
for _ in range(200):
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
        break
    except OSError:
        time.sleep(0.05)
answers = []
for _ in range(20):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
        answers.append(answer.status)
server.send_signal(signal.SIGTERM)
print(answers, server.wait(30))
