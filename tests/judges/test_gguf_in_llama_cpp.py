"""llama.cpp itself runs the GGUF files that `tessera convert` wrote: the same greedy tokens as transformers, and a
perplexity of quantised weights that is that of its own quantiser."""
import json
import math
import pathlib

import gguf
import llama_server
import pytest
import torch
from models import assert_close, gpt2, llama, logits_of, mistral, olmo2, phi3, qwen2, qwen3, smollm3
from safetensors.torch import load_file
from test_gguf import K_QUANTS, TYPES, llama_cpp_quantise  # noqa: F401
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

NEW_TOKENS = 24


def byte_pairs():
    """Tokens of printable characters only: llama.cpp joins the ids of tokens that are parts of a character."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(["the thin thread that thaws the other"] * 9, trainers.BpeTrainer(
        vocab_size=120, special_tokens=["<|endoftext|>"], initial_alphabet=[chr(code) for code in range(33, 127)]))
    return tokenizer


def positions_matter(model):
    """Otherwise a tied random model repeats its last token."""
    with torch.no_grad():
        model.transformer.wpe.weight.mul_(8)
    return model


def greedy_tokens_of_llama_cpp(path, ids):
    answer = llama_server.start(path, exact=True).handle_completions(
        {"prompt": ids, "n_predict": NEW_TOKENS, "temperature": 0, "top_k": 1, "n_probs": 1, "ignore_eos": True,
         "cache_prompt": False})
    return [token["id"] for token in answer["choices"][0]["logprobs"]["content"]]


MAKERS = {"gpt2": lambda size: positions_matter(gpt2(size)), "llama": llama, "mistral": mistral, "qwen2": qwen2,
          "qwen3": qwen3, "olmo2": olmo2, "phi3": phi3,
          "smollm3": lambda size: smollm3(size, num_hidden_layers=5, no_rope_layers=[1, 1, 1, 0, 1])}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_llama_cpp_writes_the_same_greedy_tokens(tessera, make):
    tokenizer = byte_pairs()
    model = make(tokenizer.get_vocab_size())
    folder = tessera.folder / "hf"
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}), encoding="utf-8")
    tessera.run("convert", "hf", "m.gguf", "--to", "gguf")
    ids = [10, 20, 30, 40, 50]
    with torch.no_grad():
        expected = model.generate(torch.tensor([ids]), max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS,
                                  do_sample=False, suppress_tokens=[0], pad_token_id=0)[0, len(ids):].tolist()
    assert len(set(expected)) > 2
    assert greedy_tokens_of_llama_cpp(tessera.folder / "m.gguf", ids) == expected
    tessera.run("convert", "m.gguf", "back", "--to", "hf")
    assert_close(tessera.logits(tessera.folder / "back", ids), logits_of(model, ids))


def text_bytes():
    """Text that changes with the version of PyTorch only, so that a change of the project does not change the model."""
    sources = sorted((pathlib.Path(torch.__file__).parent / "nn/modules").glob("*.py"))
    text = b"".join(path.read_bytes() for path in sources)
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def loss_of(model, ids):
    with torch.no_grad():
        losses = [model(batch, labels=batch).loss.item() for batch in ids.split(16)]
    return sum(losses) / len(losses)


def log_probabilities_of(model, ids):
    with torch.no_grad():
        return torch.cat([model(batch).logits.double().log_softmax(-1) for batch in ids.split(16)])


def divergence(exact, rounded):
    """The mean Kullback-Leibler divergence of a position. Unlike a loss, which rounding can also lower by chance, it
    grows with the square of the rounding errors."""
    return (exact.exp() * (exact - rounded)).sum(-1).mean().item()


@pytest.fixture(scope="module")
def trained():
    """A model that has learnt some bytes of a text, and other bytes of it."""
    torch.manual_seed(3)
    generator = torch.Generator().manual_seed(4)
    model = llama(256, hidden_size=256, intermediate_size=512, tie_word_embeddings=True)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.02)
        else:
            torch.nn.init.ones_(parameter)
    data = text_bytes()
    split = len(data) * 9 // 10
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(80):
        starts = torch.randint(0, split - 64, (16,), generator=generator)
        batch = torch.stack([data[start:start + 64] for start in starts])
        model(batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    held_out = data[split:split + 64 * 64].reshape(64, 64)
    return model.eval(), held_out, loss_of(model, held_out)


@pytest.mark.parametrize("type_name", ["q8_0", "q4_0", *K_QUANTS])
def test_the_perplexity_is_that_of_the_reference_quantiser(tessera, trained, llama_cpp_quantise, type_name):  # noqa: F811
    model, held_out, exact = trained
    assert exact < 3.2  # of ln 256 = 5.5
    kind = gguf.GGMLQuantizationType({**TYPES, **K_QUANTS}[type_name])
    model.save_pretrained(tessera.folder / "hf")
    tessera.run("convert", "hf", "m.gguf", "--to", "gguf", "--type", type_name)
    tessera.run("convert", "m.gguf", "back", "--to", "hf")
    original = {name: values.clone() for name, values in model.state_dict().items()}
    expected = log_probabilities_of(model, held_out)
    try:
        model.load_state_dict(load_file(tessera.folder / "back/model.safetensors"), strict=False)
        ours = loss_of(model, held_out)
        our_divergence = divergence(expected, log_probabilities_of(model, held_out))
        theirs_state = {}
        for name, values in original.items():
            if values.dim() == 2:
                values = torch.from_numpy(
                    gguf.quants.dequantize(llama_cpp_quantise(values.numpy(), kind), kind).reshape(values.shape))
            theirs_state[name] = values
        model.load_state_dict(theirs_state)
        theirs = loss_of(model, held_out)
        their_divergence = divergence(expected, log_probabilities_of(model, held_out))
    finally:
        model.load_state_dict(original)
    print(f"{type_name}: perplexity {math.exp(exact):.4f} exact, {math.exp(ours):.4f} here, "
          f"{math.exp(theirs):.4f} by llama.cpp; divergence {our_divergence:.2e} and {their_divergence:.2e}")
    if type_name in TYPES:
        assert ours == pytest.approx(theirs, rel=1e-6)
    # Eight other seeds: 0.94 to 1.23 times the reference's with q4_k, 0.55 to 0.96 times with q6_k; q4_0 is at twice
    # the divergence of q4_k on average. Our squared error is not above the reference's: see test_gguf.py. A search that
    # weighs errors by the root mean square of a group plus the element's magnitude, as the reference does, had 1.01
    # (q4_k) and 1.07 times (q6_k) the divergence of the unweighed one over seven seeds, so errors count equally.
    assert 0 < our_divergence <= 1.35 * their_divergence
    # The loss may differ by chance between two quantisers of equal error, in both directions.
    assert abs(ours - exact) <= 1.1 * abs(theirs - exact) + 0.01
