"""A small GPT over bytes, for runs of the program `tessera`."""
import glob
import json
import os

TEXT_BYTES = 40000


def write(folder, steps, emulated=False):
    """Makes a folder with a text and a recipe; returns the recipe's path. On the emulator the model is tiny."""
    os.makedirs(folder, exist_ok=True)
    text = b""
    for path in sorted(glob.glob(os.path.join(os.path.dirname(__file__), "*.py"))):
        with open(path, "rb") as file:
            text += file.read()
    with open(os.path.join(folder, "text"), "wb") as file:
        file.write(text[:TEXT_BYTES])
    layers, width, tokens, batch = (1, 32, 16, 2) if emulated else (4, 128, 128, 8)
    recipe = {
        "model": {"architecture": "gpt2", "n_layer": layers, "n_head": 4, "n_embd": width, "seq_len": tokens,
                  "n_positions": tokens},
        "data": {"train": os.path.join(folder, "text"), "batch_size": batch},
        "train": {"steps": steps, "lr": 1e-3, "seed": 1},
        "log": {"jsonl": metrics_path(folder), "every": 50},
    }
    path = os.path.join(folder, "recipe.yaml")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(recipe, file)  # JSON is valid YAML
    return path


def metrics_path(folder):
    return os.path.join(folder, "metrics.jsonl")


def losses(folder):
    with open(metrics_path(folder), encoding="utf-8") as file:
        return [json.loads(line)["loss"] for line in file]
