"""Models of torchvision and transformers, with random weights, for `nsysalign run --baseline` and `bench_turns.py`.

    nsysalign run --baseline -o DIR scripts/bench_libraries.py [more]
    python scripts/bench_turns.py DIR scripts/bench_libraries.py [more]

How good the prediction without nsys is on programs as people run them.  Those of `more`, which also has small programs of other
kinds (reinforcement learning, clustering, graphs, recurrent nets), were recorded after the costs had been fitted.  A model
that the installed libraries do not have is named and left out.
"""

from __future__ import annotations

import sys

import bench_baseline

REPEATS = 15


def of_torchvision(torch):
    """Name -> call: inference of one image, and a training step."""
    from torchvision import models

    image, images = (
        torch.randn(1, 3, 224, 224, device="cuda"),
        torch.randn(8, 3, 64, 64, device="cuda"),
    )
    out = {}
    for name in (
        "resnet18",
        "mobilenet_v3_small",
        "efficientnet_b0",
        "vit_b_16",
        "swin_t",
        "densenet121",
    ):
        net = getattr(models, name)(weights=None).cuda().eval()
        out[f"vision_{name}"] = torch.no_grad()(lambda net=net: net(image))
    half = models.resnet50(weights=None).cuda().half().eval()
    out["vision_resnet50_half"] = torch.no_grad()(lambda: half(image.half()))
    student = models.resnet18(weights=None).cuda()
    sgd = torch.optim.SGD(student.parameters(), lr=1e-3, momentum=0.9)

    def step():
        sgd.zero_grad(set_to_none=True)
        student(images).square().mean().backward()
        sgd.step()

    return out | {"vision_resnet18_step": step}


def of_transformers(torch):
    """Name -> call: small configurations of common models, forward, decoding and a training step."""
    import transformers as t

    ids = torch.randint(5, 1000, (1, 32), device="cuda")
    small = {
        "vocab_size": 2000,
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
    }
    bert = t.BertModel(t.BertConfig(**small, intermediate_size=1024)).cuda().eval()
    gpt2 = (
        t.GPT2LMHeadModel(t.GPT2Config(vocab_size=2000, n_embd=256, n_layer=4, n_head=4))
        .cuda()
        .eval()
    )
    llama = t.LlamaForCausalLM(
        t.LlamaConfig(**small, intermediate_size=688, num_key_value_heads=2)
    ).cuda().half().eval()  # fmt: skip
    t5 = (
        t.T5EncoderModel(t.T5Config(vocab_size=2000, d_model=256, num_layers=4, num_heads=4))
        .cuda()
        .eval()
    )
    tuned = t.BertForSequenceClassification(t.BertConfig(**small, intermediate_size=1024)).cuda()
    adam = torch.optim.AdamW(tuned.parameters(), lr=1e-4)
    labels = torch.zeros(1, dtype=torch.long, device="cuda")

    def step():
        adam.zero_grad()
        tuned(ids, labels=labels).loss.backward()
        adam.step()

    calls = {
        "bert": lambda: bert(ids),
        "gpt2": lambda: gpt2(ids),
        "llama_half": lambda: llama(ids),
        "t5_encoder": lambda: t5(ids),
        "gpt2_generate_4": lambda: gpt2.generate(
            ids, max_new_tokens=4, do_sample=False, pad_token_id=0
        ),
        "llama_generate_4": lambda: llama.generate(
            ids, max_new_tokens=4, do_sample=True, pad_token_id=0
        ),
    }
    return {f"text_{k}": torch.no_grad()(v) for k, v in calls.items()} | {"text_bert_step": step}


def more_of_torchvision(torch):
    """Name -> call."""
    from torchvision import models

    image, images = (
        torch.randn(1, 3, 128, 128, device="cuda"),
        torch.randn(4, 3, 64, 64, device="cuda"),
    )
    out = {}
    for name in (
        "convnext_tiny",
        "regnet_y_400mf",
        "shufflenet_v2_x1_0",
        "squeezenet1_1",
        "maxvit_t",
    ):
        net = getattr(models, name)(weights=None).cuda().eval()
        size = torch.randn(1, 3, 224, 224, device="cuda") if name == "maxvit_t" else image
        out[f"vision_{name}"] = torch.no_grad()(lambda net=net, size=size: net(size))
    lraspp = (
        models.segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None)
        .cuda()
        .eval()
    )
    student = models.mobilenet_v2(weights=None).cuda()
    adam = torch.optim.Adam(student.parameters(), lr=1e-4)

    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = student(images).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()

    return out | {
        "vision_lraspp": torch.no_grad()(lambda: lraspp(image)),
        "vision_mobilenet_v2_step": step,
    }


def more_of_transformers(torch):
    """Name -> call."""
    import transformers as t

    ids = torch.randint(5, 1000, (2, 24), device="cuda")
    small = {
        "vocab_size": 2000,
        "hidden_size": 192,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
    }
    wide = small | {"intermediate_size": 512}
    distil = t.DistilBertModel(
        t.DistilBertConfig(vocab_size=2000, dim=192, n_layers=3, n_heads=3, hidden_dim=512)
    )
    opt = t.OPTForCausalLM(t.OPTConfig(**small, ffn_dim=512, word_embed_proj_dim=192))
    bart = t.BartModel(t.BartConfig(
        vocab_size=2000, d_model=192, encoder_layers=2, decoder_layers=2, encoder_attention_heads=3, decoder_attention_heads=3,
        encoder_ffn_dim=512, decoder_ffn_dim=512,
    ))  # fmt: skip
    models = {
        "roberta": t.RobertaModel(t.RobertaConfig(**wide)),
        "electra": t.ElectraModel(t.ElectraConfig(**wide, embedding_size=128)),
        "qwen2": t.Qwen2ForCausalLM(t.Qwen2Config(**wide, num_key_value_heads=3)),
        "neox": t.GPTNeoXForCausalLM(t.GPTNeoXConfig(**wide)),
        "distilbert": distil,
        "opt": opt,
        "bart": bart,
    }
    models = {name: model.cuda().eval() for name, model in models.items()}
    calls = {f"text_{n}": torch.no_grad()(lambda m=m: m(ids)) for n, m in models.items()}
    generate = models["qwen2"].generate
    calls["text_qwen2_generate_6"] = torch.no_grad()(
        lambda: generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0)
    )
    tuned = t.GPT2LMHeadModel(t.GPT2Config(vocab_size=2000, n_embd=192, n_layer=3, n_head=3)).cuda()
    sgd = torch.optim.SGD(tuned.parameters(), lr=1e-3)

    def step():
        sgd.zero_grad()
        tuned(ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(tuned.parameters(), 1.0)
        sgd.step()

    return calls | {"text_gpt2_step": step}


def of_other_kinds(torch):
    """Name -> call: small programs as people write them."""
    nn, F = torch.nn, torch.nn.functional
    policy = nn.Sequential(
        nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4)
    ).cuda()
    adam = torch.optim.Adam(policy.parameters(), lr=3e-4)
    state, returns = torch.randn(32, 8, device="cuda"), torch.randn(32, device="cuda")
    points, centres = torch.randn(2000, 8, device="cuda"), torch.randn(16, 8, device="cuda")
    edges, nodes = (
        torch.randint(0, 500, (2, 4000), device="cuda"),
        torch.randn(500, 32, device="cuda"),
    )
    layer = nn.Linear(32, 32).cuda()
    words, text = nn.Embedding(500, 64).cuda(), torch.randint(0, 500, (4, 12), device="cuda")
    gru, head = nn.GRU(64, 64, batch_first=True).cuda(), nn.Linear(64, 500).cuda()
    rnn_sgd = torch.optim.SGD([*words.parameters(), *gru.parameters(), *head.parameters()], lr=0.1)
    field = torch.randn(128, 128, device="cuda")

    def policy_step():
        chosen = torch.distributions.Categorical(logits=policy(state))
        action = chosen.sample()
        loss = -(chosen.log_prob(action) * returns).mean() - 0.01 * chosen.entropy().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        return loss.item()

    def clustering(rounds=3):
        c = centres
        for _ in range(rounds):
            nearest = torch.cdist(points, c).argmin(1)
            one = F.one_hot(nearest, 16).float()
            c = (one.T @ points) / one.sum(0).clamp(min=1)[:, None]
        return c

    def message_passing(rounds=3):
        x = nodes
        for _ in range(rounds):
            gathered = torch.zeros_like(x).index_add_(0, edges[1], x[edges[0]])
            x = torch.relu(layer(gathered)) + x
        return x

    def language_step():
        out, _ = gru(words(text))
        loss = F.cross_entropy(head(out[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        rnn_sgd.zero_grad()
        loss.backward()
        rnn_sgd.step()

    def stencil(rounds=10):
        x = field
        for _ in range(rounds):
            x = 0.25 * (x.roll(1, 0) + x.roll(-1, 0) + x.roll(1, 1) + x.roll(-1, 1))
        return x

    def newton(rounds=5):
        x = torch.full((64,), 3.0, device="cuda")
        for _ in range(rounds):
            x = x - (x * x - 2.0) / (2.0 * x)
            if float((x * x - 2.0).abs().max()) < 1e-12:
                break
        return x

    calls = (
        policy_step,
        torch.no_grad()(clustering),
        torch.no_grad()(message_passing),
        language_step,
    )
    names = ("policy_step", "clustering", "message_passing", "language_step")
    return {f"other_{n}": c for n, c in zip(names, calls, strict=True)} | {
        "other_stencil": stencil, "other_newton": newton, "other_svd": lambda: torch.linalg.svd(points[:64, :8]),
        "other_solve": lambda: torch.linalg.solve(field[:32, :32], field[:32, :4]), "other_fft": lambda: torch.fft.rfft2(field).abs().sum(),
    }  # fmt: skip


def main() -> None:
    import torch

    if not torch.cuda.is_available():
        print("bench_libraries.py needs a CUDA device")
        return
    torch.manual_seed(0)
    work = {}
    sets = (more_of_torchvision, more_of_transformers, of_other_kinds)
    for library in sets if "more" in sys.argv[1:] else (of_torchvision, of_transformers):
        try:
            work |= library(torch)
        except Exception as error:
            print(f"left out: {library.__name__}: {type(error).__name__}: {error}")
    bench_baseline.timed_each(work, REPEATS)


if __name__ == "__main__":
    sys.exit(main())
