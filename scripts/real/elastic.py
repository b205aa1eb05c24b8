"""Run by torchrun: two ranks over gloo; rank 1 fails in the first round, so torchrun stops the other and restarts both."""

import os
import sys

import torch
import torch.distributed as dist

if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
    os._exit(9)
dist.init_process_group("gloo")
total = torch.ones(4)
dist.all_reduce(total)
dist.barrier()
print(
    f"rank {dist.get_rank()} restart {os.environ['TORCHELASTIC_RESTART_COUNT']} {total.tolist()}", flush=True
)
dist.destroy_process_group()
sys.exit(0)
