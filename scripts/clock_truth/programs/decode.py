"""Token by token: a small transformer with a key-value cache; every step's time, and the token read back each time."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
WIDTH, HEADS, LAYERS, LENGTH, VOCABULARY = 512, 8, 4, 96, 8000


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x, cache, position):
        q, k, v = self.qkv(self.norm1(x)).view(1, HEADS, 1, -1).chunk(3, dim=-1)
        cache[0][:, :, position : position + 1] = k
        cache[1][:, :, position : position + 1] = v
        keys, values = cache[0][:, :, : position + 1], cache[1][:, :, : position + 1]
        seen = F.scaled_dot_product_attention(q, keys, values)
        x = x + self.out(seen.reshape(1, 1, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


embed, head = (
    nn.Embedding(VOCABULARY, WIDTH).half().cuda(),
    nn.Linear(WIDTH, VOCABULARY).half().cuda(),
)
blocks = nn.ModuleList(Block() for _ in range(LAYERS)).half().cuda().eval()
caches = [
    [
        torch.zeros(1, HEADS, LENGTH, WIDTH // HEADS, dtype=torch.half, device="cuda")
        for _ in range(2)
    ]
    for _ in range(LAYERS)
]
token, steps = 1, []
with torch.inference_mode():
    for position in range(LENGTH):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        x = embed(torch.tensor([[token]], device="cuda"))
        for block, cache in zip(blocks, caches, strict=True):
            x = block(x, cache, position)
        logits = head(x)[0, 0]
        end.record()
        token = logits.argmax().item()
        steps.append((start, end))
torch.cuda.synchronize()
times = [s.elapsed_time(e) for s, e in steps]
print(f"first token {times[0]:.2f} ms, then {sorted(times[1:])[LENGTH // 2]:.3f} ms per token")
