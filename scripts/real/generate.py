"""transformers' generate and its pipeline on a tiny random GPT-2, each call between two events."""

from collections.abc import Callable

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, pipeline

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def timed(call: Callable[[], object], times: int) -> object:
    for _ in range(times):
        if DEVICE == "cpu":
            answer = call()
            continue
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        answer = call()
        end.record()
        end.synchronize()
        start.elapsed_time(end)
    return answer


torch.manual_seed(0)
model = GPT2LMHeadModel(
    GPT2Config(n_layer=2, n_head=2, n_embd=64, vocab_size=500, bos_token_id=0, eos_token_id=1)
)
model = model.eval().to(DEVICE)
prompt = torch.arange(2, 10, device=DEVICE)[None]
mask = torch.ones_like(prompt)
length = {"min_new_tokens": 16, "max_new_tokens": 16, "do_sample": False, "pad_token_id": 1}
print(timed(lambda: model.generate(prompt, attention_mask=mask, **length), 10).shape)

words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(500)}, unk_token="w0"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=words, bos_token="w0", eos_token="w1", pad_token="w1"
)
answer = pipeline("text-generation", model=model, tokenizer=tokenizer, device=DEVICE)
(said,) = timed(lambda: answer("w5 w6 w7", **length), 5)
print(len(said["generated_text"].split()))
