"""Correctness of the engine before anything is timed: a tiny model against the stock one."""

from __future__ import annotations

import copy

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hipcli.engine.answering.decoding import DeviceDecoder
from hipcli.engine.forward.runner import Runner
from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.configs import HipConfig
from hipcli.engine.methods.dense import DenseMethod
from hipcli.engine.methods.hip import HipMethod
from hipcli.engine.passes import AnswerPass, PrefillPass

LENGTH = 1100
VOCAB = 512
SMALL = HipConfig(
    sink_tokens=64,
    window_tokens=128,
    budget_tokens=128,
    prefill_budget_tokens=128,
    dense_tokens=0,
    candidate_tokens=256,
    query_distance_tokens=200,
)
COVERING = HipConfig(
    sink_tokens=64, window_tokens=64, dense_tokens=0, prefill_budget_tokens=2048, budget_tokens=2048
)


def tiny_llama() -> LlamaForCausalLM:
    """Random fp32 weights on the CPU, attention sharp enough for keys to matter."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=512,
        intermediate_size=768,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                parameter.mul_(3)
    return model


def relative(value: torch.Tensor, truth: torch.Tensor) -> float:
    """||value - truth|| / ||truth||."""
    value, truth = value.detach().cpu().double(), truth.detach().cpu().double()
    return float((value - truth).norm() / truth.norm())


def require(name: str, error: float, budget: float) -> None:
    """Print an error; raise AssertionError where it is over its budget."""
    if not error < budget:
        raise AssertionError(f"{name}: relative error {error:.2e} is over {budget:.1e}")
    print(f"   right  {name:44s} {error:.1e} < {budget:.1e}", flush=True)


def stock(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Logits of the stock model, fp32 [T, vocab_size]."""
    with torch.inference_mode():
        return model(ids.unsqueeze(0), use_cache=False).logits[0].float()


def read(runner: Runner, method, ids: torch.Tensor, chunk: int, spare: int = 0):
    """Logits of all tokens read in chunks, and the store."""
    store = runner.new_store(len(ids) + spare)
    parts = []
    for start in range(0, len(ids), chunk):
        part = ids[start : start + chunk]
        step = StepInput(store, runner.tables, PrefillPass(method), start)
        parts.append(runner.logits(part, step, keep=len(part)))
    method.reset()
    return torch.cat(parts), store


def check_prefill() -> None:
    """Dense, covering and sparse selections, in fp32 and bf16."""
    model = tiny_llama()
    ids = torch.randint(0, VOCAB, (LENGTH,), generator=torch.Generator().manual_seed(1))
    exact = stock(model, ids)
    low = copy.deepcopy(model).to("cuda", torch.bfloat16)
    stock_error = relative(stock(low, ids.cuda()), exact)
    host = Runner(copy.deepcopy(model))
    sparse, _ = read(host, HipMethod(SMALL), ids, 256)
    gpu, low = Runner(model.to("cuda")), Runner(low)
    for name, method in (("dense", DenseMethod()), ("hip covering all", HipMethod(COVERING))):
        for chunk in (LENGTH, 256):
            logits, _ = read(gpu, method, ids, chunk)
            require(f"{name}, fp32, chunks of {chunk}", relative(logits, exact), 1e-4)
            logits, _ = read(low, method, ids, chunk)
            error = relative(logits, exact)
            require(f"{name}, bf16, chunks of {chunk}", error, 1.5 * stock_error)
    logits, _ = read(gpu, HipMethod(SMALL), ids, 256)
    require("hip, fp32, against the CPU engine", relative(logits, sparse), 1e-3)


def check_fp8_prefill() -> None:
    """Keys and values in fp8: Triton's kernels against the references on the GPU."""
    ids = torch.randint(0, VOCAB, (LENGTH,), generator=torch.Generator().manual_seed(1))
    for name, method in (("dense", DenseMethod()), ("hip", HipMethod(SMALL))):
        logits = []
        for backend in ("reference", "triton"):
            runner = Runner(tiny_llama().to("cuda"), "fp8_e4m3", backend)
            logits.append(read(runner, method, ids, 256)[0])
        require(f"{name}, fp8 KV, against the references", relative(logits[1], logits[0]), 1e-3)


def check_all(kv_dtype: str) -> None:
    """Reading and decoding with keys and values stored as `kv_dtype`."""
    check_prefill()
    if kv_dtype == "fp8_e4m3":
        check_fp8_prefill()
    check_decode(kv_dtype)


def check_decode(kv_dtype: str) -> None:
    """Graphs against eager steps, over borders of pages and every kind of step."""
    ids = torch.randint(0, VOCAB, (LENGTH,), generator=torch.Generator().manual_seed(2))
    for dtype in (torch.float32, torch.bfloat16):
        runner = Runner(tiny_llama().to("cuda", dtype), kv_dtype)
        for name, method in (("dense", DenseMethod()), ("hip", HipMethod(SMALL))):
            rows = []
            for graphs in (True, False):
                _, store = read(runner, method, ids, 512, spare=100)
                decoder = DeviceDecoder(runner, store, AnswerPass(method), graphs=graphs)
                rows.append([])
                for token in ids[:90]:
                    decoder.feed(token)
                    decoder.step()
                    rows[-1].append(decoder.logits.clone())
            error = relative(torch.stack(rows[0]), torch.stack(rows[1]))
            require(f"{name}, {dtype}, graph against eager", error, 1e-6)
