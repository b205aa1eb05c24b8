"""Run by torchrun: two ranks over gloo; rank 1 fails in the first round, so torchrun stops the
other and restarts both.

Three restarts are allowed: gloo's own may fail with `Connection refused`, also plainly (1 of 6 on
two busy cores). With --gpu every rank of every round times some kernels first.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

if "--gpu" in sys.argv:
    import timed

    timed.pairs()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
    os._exit(9)
dist.init_process_group("gloo")
total = torch.ones(4)
dist.all_reduce(total)
line = f"rank {dist.get_rank()} {total.tolist()}"
sys.stdout.write(line + "\n")  # at once, also where Python does not buffer
sys.stdout.flush()
time.sleep(1)  # gloo fails in a rank whose peer is gone before it has read everything
dist.destroy_process_group()
