"""`tessera convert --to hf` writes folders that can be published: transformers loads them, `huggingface_hub` reads the
model card and the index."""
import json

import pytest
from huggingface_hub import ModelCard
from models import assert_close, edit_config, llama, logits_of, prompt
from safetensors import safe_open
from test_convert import load_whole, train_sharded
from transformers import GenerationConfig


def card_of(folder):
    card = ModelCard.load(folder / "README.md")
    assert card.data.library_name == "transformers" and "tessera" in card.data.tags
    assert card.data.license
    return card


def names_of_paths(value):
    """The recipe as a card shows it: without the folders above an absolute path."""
    if isinstance(value, dict):
        return {key: names_of_paths(member) for key, member in value.items()}
    if isinstance(value, list):
        return [names_of_paths(member) for member in value]
    return value.rsplit("/", 1)[-1] if isinstance(value, str) and value.startswith("/") else value


@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_a_run_becomes_a_hub_folder(tessera, text, model):
    run = train_sharded(tessera, model, text)
    tessera.run("convert", run, "hf", "--to", "hf", "--max-shard-size", "100kB")
    folder = tessera.folder / "hf"
    card = card_of(folder)
    assert card.data.license == "unknown" and model in card.data.tags
    recipe = card.content.split("```json\n")[1].split("```")[0]
    assert json.loads(recipe) == names_of_paths(json.loads((folder / "recipe.json").read_text(encoding="utf-8")))
    assert str(tessera.folder) not in card.content
    GenerationConfig.from_pretrained(folder)
    index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
    total = 0
    for file in set(index["weight_map"].values()):
        with safe_open(folder / file, framework="pt") as opened:
            total += sum(opened.get_tensor(name).nbytes for name in opened.keys())
    assert index["metadata"]["total_size"] == total
    ids = prompt(50, 256)
    assert_close(tessera.logits(run, ids), logits_of(load_whole(folder), ids))


def test_gguf_becomes_a_hub_folder(tessera):
    model = llama()
    model.save_pretrained(tessera.folder / "theirs")
    edit_config(tessera.folder / "theirs", lambda config: config.update(eos_token_id=[2, 7], bos_token_id=1))
    tessera.run("convert", "theirs", "model.gguf", "--to", "gguf", "--type", "f32")
    tessera.run("convert", "model.gguf", "hf", "--to", "hf")
    assert card_of(tessera.folder / "hf").data.base_model
    ids = prompt(40, model.config.vocab_size)
    assert_close(logits_of(load_whole(tessera.folder / "hf"), ids), logits_of(model, ids))


def test_the_generation_settings_are_those_of_transformers(tessera):
    model = llama()
    model.save_pretrained(tessera.folder / "theirs")
    edit_config(tessera.folder / "theirs", lambda config: config.update(eos_token_id=[2, 7], bos_token_id=1))
    (tessera.folder / "theirs/generation_config.json").unlink()
    tessera.run("convert", "theirs", "hf", "--to", "hf", "--dtype", "bf16")
    ours = GenerationConfig.from_pretrained(tessera.folder / "hf")
    assert (ours.eos_token_id, ours.bos_token_id, ours.pad_token_id) == ([2, 7], 1, None)
    assert card_of(tessera.folder / "hf").data.base_model == "theirs"


def test_a_card_of_the_source_is_kept(tessera):
    llama().save_pretrained(tessera.folder / "theirs")
    theirs = "---\nlicense: apache-2.0\nlibrary_name: transformers\ntags:\n- tessera\n---\n\n# Theirs\n"
    (tessera.folder / "theirs/README.md").write_text(theirs, encoding="utf-8")
    tessera.run("convert", "theirs", "hf", "--to", "hf")
    assert card_of(tessera.folder / "hf").data.license == "apache-2.0"
    assert (tessera.folder / "hf/README.md").read_text(encoding="utf-8") == theirs
    tessera.run("convert", "theirs", "mean", "--to", "hf", "--average", "hf")
    assert card_of(tessera.folder / "mean").data.license == "apache-2.0"
