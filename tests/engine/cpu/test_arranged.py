"""The pass of a CPU gives what the model's own modules give, whatever the model and the pass."""

import copy

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, GemmaConfig, Olmo2Config, SeedOssConfig

from hipcli.engine.cpu.forward import arrange
from hipcli.engine.cpu.layers import KNOWN, FusedMlp, GatedMlp, is_known
from hipcli.engine.cpu.linear import PackedLinear, PartOfLinear, best_form
from hipcli.engine.forward.runner import Runner
from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.configs import HipConfig
from hipcli.engine.methods.dense import DenseMethod
from hipcli.engine.methods.hip import HipMethod
from hipcli.engine.passes import AnswerPass, PrefillPass
from hipcli.engine.store.pages import KVStore
from tests.engine.tiny import CONFIGS, SHAPE, random_ids, stock_logits, tiny_model

MORE = {
    "gemma": GemmaConfig(**SHAPE, head_dim=16),
    "seed_oss": SeedOssConfig(**SHAPE, head_dim=16, attention_bias=True),
}
PAGES = torch.tensor([2, 3, 5])


def sparse() -> HipMethod:
    """A method whose window moves and whose selections change within these tests."""
    return HipMethod(
        HipConfig(
            sink_tokens=64,
            window_tokens=128,
            dense_tokens=0,
            prefill_budget_tokens=128,
            budget_tokens=128,
            candidate_tokens=192,
            block_refresh_steps=4,
            candidate_refresh_steps=8,
        )
    )


def model_of(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    if name in CONFIGS:
        return tiny_model(name, dtype)
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(MORE[name], attn_implementation="eager")
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    return model.to(dtype).eval()


def pair(name: str, dtype: torch.dtype = torch.float32) -> tuple[Runner, Runner]:
    """The pass of a CPU, and the model's modules with the reference kernels."""
    model = model_of(name, dtype)
    modules = Runner(copy.deepcopy(model), backend="reference")
    modules._arranged = None
    return Runner(model), modules


def read(runner: Runner, method: HipMethod, ids: torch.Tensor, room: int) -> KVStore:
    store = runner.new_store(len(ids) + room)
    for start in range(0, len(ids), 128):
        step = StepInput(store, runner.tables, PrefillPass(method), start)
        runner.forward(ids[start : start + 128], step)
    return store


def follow(
    runner: Runner, store: KVStore, attention: AnswerPass, ids: torch.Tensor, lengths: list[int]
) -> torch.Tensor:
    """Logits of all tokens, run in passes of these lengths."""
    rows = []
    for part in ids.split(lengths):
        step = StepInput(store, runner.tables, attention, store.length)
        rows.append(runner.logits(part, step, keep=len(part)))
    return torch.cat(rows)


@pytest.mark.parametrize("name", sorted(CONFIGS | MORE))
def test_known_models_are_taken_apart(name: str) -> None:
    model = model_of(name)
    assert model.config.model_type in KNOWN and is_known(model)
    ids = random_ids(70)
    expected = stock_logits(model, ids)
    runner = Runner(model)
    assert runner._arranged is not None
    store = runner.new_store(70)
    step = StepInput(store, runner.tables, PrefillPass(DenseMethod()), 0)
    torch.testing.assert_close(runner.logits(ids, step, keep=70), expected, rtol=1e-4, atol=1e-4)


# Past several page borders; the window moves with each, and the long passes have no mask.
LENGTHS = [1, 1, 3, 16, 50, 1, 2, 7, 20, 1, 1, 1, 4]


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "phi3", "granite", "gemma"])
def test_passes_with_given_pages(name: str) -> None:
    ids, more = random_ids(500), random_ids(sum(LENGTHS), seed=3)
    results = []
    for runner in pair(name):
        method = sparse()
        store = read(runner, method, ids, 128)
        results.append(follow(runner, store, AnswerPass(method, PAGES), more, LENGTHS))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3"])
def test_steps_that_select(name: str) -> None:
    ids, more = random_ids(500), random_ids(90, seed=4)
    results = []
    for runner in pair(name):
        method = sparse()
        store = read(runner, method, ids, 90)
        results.append(follow(runner, store, AnswerPass(method), more, [1] * 90))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tokens", range(1, 17))
def test_a_dense_pass_of_some_tokens(tokens: int) -> None:
    runner = Runner(model_of("llama"))
    ids = random_ids(120 + 4 * tokens)
    store = read(runner, DenseMethod(), ids[:120], 4 * tokens)
    ours = follow(runner, store, AnswerPass(DenseMethod()), ids[120:], [tokens] * 4)
    expected = stock_logits(model_of("llama"), ids)[120:]
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


def test_going_back_to_a_token_of_the_answer() -> None:
    """Tokens that were tried and not taken leave nothing behind."""
    runner, method = Runner(model_of("llama")), sparse()
    ids, more, wrong = random_ids(500), random_ids(100, seed=5), random_ids(8, seed=6)
    plain = follow(
        runner, read(runner, method, ids, 100), AnswerPass(method, PAGES), more, [1] * 100
    )
    store, attention, rows = read(runner, method, ids, 108), AnswerPass(method, PAGES), []
    gathered = 0
    for position, token in enumerate(more):
        # A pass keeps to one window, as steps of one token would.
        room = min(1 + position % 8, 64 - store.length % 64)
        tried = torch.cat((token.unsqueeze(0), wrong[: room - 1]))
        view = attention._views.get(0)
        rows.append(follow(runner, store, attention, tried, [room])[0])
        gathered += attention._views[0] is not view
        store.truncate(len(ids) + position + 1)
    torch.testing.assert_close(torch.stack(rows), plain, rtol=1e-4, atol=1e-4)
    assert gathered < 6, "views are kept while the window stays"


def test_a_full_store_says_so() -> None:
    runner = Runner(model_of("llama"))
    store = read(runner, DenseMethod(), random_ids(60), 4)
    follow(runner, store, AnswerPass(DenseMethod()), random_ids(4), [1] * 4)
    with pytest.raises(ValueError, match="capacity 64"):
        follow(runner, store, AnswerPass(DenseMethod()), random_ids(1), [1])


needs_packing = pytest.mark.skipif(
    best_form(nn.Linear(1, 1, dtype=torch.bfloat16), "auto") is not PackedLinear,
    reason="no bf16 products on this CPU",
)


@needs_packing
@pytest.mark.parametrize("name", ["llama-bias", "qwen2", "qwen3", "phi3", "granite", "gemma"])
def test_bf16_weights_laid_out_are_as_exact_as_the_stock_model(name: str) -> None:
    ids, more = random_ids(200), random_ids(40, seed=3)
    exact = stock_logits(model_of(name), torch.cat((ids, more)))[200:]
    stock = stock_logits(model_of(name, torch.bfloat16), torch.cat((ids, more)))[200:]
    runner = Runner(model_of(name, torch.bfloat16))
    assert isinstance(runner._arranged.head, PackedLinear)
    store = read(runner, DenseMethod(), ids, 40)
    ours = follow(runner, store, AnswerPass(DenseMethod()), more, [1] * 20 + [4, 16])
    assert (ours - exact).norm() <= 1.5 * (stock - exact).norm()


@needs_packing
def test_the_modules_go_on_working_on_joined_weights() -> None:
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        model = model_of("qwen2", dtype)
        hidden = torch.randn(5, 96, dtype=dtype)
        attention = model.model.layers[0].self_attn
        names = ("q_proj", "k_proj", "v_proj", "o_proj")
        with torch.inference_mode():
            before = [getattr(attention, name)(hidden) for name in names]
            assert arrange(model) is not None
            after = [getattr(attention, name)(hidden) for name in names]
        for old, new in zip(before, after, strict=True):
            torch.testing.assert_close(new, old, rtol=tolerance, atol=tolerance)


@needs_packing
def test_a_model_of_another_kind_keeps_its_modules() -> None:
    torch.manual_seed(7)
    config = Olmo2Config(**SHAPE)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").bfloat16().eval()
    ids = random_ids(60)
    expected = stock_logits(model, ids)
    runner = Runner(model)
    assert runner._arranged is None
    assert isinstance(model.model.layers[0].mlp.up_proj, PartOfLinear)
    step = StepInput(runner.new_store(60), runner.tables, PrefillPass(DenseMethod()), 0)
    torch.testing.assert_close(runner.logits(ids, step, keep=60), expected, rtol=5e-2, atol=5e-2)


def test_a_part_that_is_not_known_is_noticed() -> None:
    model = model_of("llama")
    model.model.layers[1].self_attn.sink_norm = nn.LayerNorm(4)
    assert not is_known(model)
    assert arrange(model) is None


@needs_packing
def test_what_is_done_to_each_number_joins_the_products() -> None:
    """silu, gate * up and both residual sums, of fp32 sums: more exact than operations in bf16."""
    model = model_of("llama", torch.bfloat16)
    stock = copy.deepcopy(model.model.layers[0].mlp)
    hidden, before = (torch.randn(37, 96, dtype=torch.bfloat16) for _ in range(2))
    with torch.inference_mode():
        near = before + stock(hidden)
        exact = before.float() + copy.deepcopy(stock).float()(hidden.float())
        arranged = arrange(model)
        assert arranged is not None and isinstance(arranged.layers[0].mlp, FusedMlp)
        residual = before.clone()
        ours = arranged.layers[0].mlp.add_to(residual, hidden, 1.0)
        half = arranged.layers[0].mlp.add_to(residual, hidden, 0.5)
    assert torch.equal(residual, before), "what is added to stays as it is"
    assert (ours - exact).norm() <= (near - exact).norm()
    torch.testing.assert_close(half.float(), (before + exact) / 2, rtol=2e-2, atol=2e-2)


@needs_packing
@pytest.mark.parametrize("name", ["phi3", "gemma"])
def test_an_mlp_of_another_kind_is_not_fused(name: str) -> None:
    arranged = arrange(model_of(name, torch.bfloat16))
    assert arranged is not None and isinstance(arranged.layers[0].mlp, GatedMlp)
