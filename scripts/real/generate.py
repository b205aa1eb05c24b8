"""transformers' generate on a tiny random GPT-2, each call between two events."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
model = GPT2LMHeadModel(
    GPT2Config(n_layer=2, n_head=2, n_embd=64, vocab_size=500, bos_token_id=0, eos_token_id=1)
)
model = model.eval().cuda()
prompt = torch.arange(2, 10, device="cuda")[None]
for _ in range(10):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    tokens = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), min_new_tokens=16, max_new_tokens=16, do_sample=False,
        pad_token_id=1,
    )  # fmt: skip
    end.record()
    end.synchronize()
    start.elapsed_time(end)
print(tokens.shape)
