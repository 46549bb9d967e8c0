"""ViT and CLIP: examples/fine_tune_images reads folders that transformers saved, and its outputs, the losses of its
steps and the folder that it writes are compared with transformers and torch."""
import os
import re
import subprocess

import numpy
import pytest
import torch
import transformers
from conftest import PROGRAM
from models import edit_config, scatter

EXAMPLE = os.environ.get("TESSERA_FINE_TUNE_IMAGES",
                         os.path.join(os.path.dirname(PROGRAM), "examples", "fine_tune_images"))
SAMPLES, SIDE, STEPS, CLASSES, LENGTH, VOCABULARY = 12, 16, 5, 5, 9, 101


def vit(seed=1, **changes):
    config = transformers.ViTConfig(**{"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
                                       "intermediate_size": 96, "image_size": SIDE, "patch_size": 4,
                                       "num_labels": CLASSES, **changes})
    return scatter(transformers.ViTForImageClassification(config), seed)


def clip(seed=2, text=(), vision=(), **changes):
    both = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    texts = {"hidden_size": 48, "vocab_size": VOCABULARY, "max_position_embeddings": 12, "bos_token_id": 0,
             "pad_token_id": VOCABULARY - 1, "eos_token_id": VOCABULARY - 1, **both, **dict(text)}
    images = {"hidden_size": 32, "image_size": SIDE, "patch_size": 4, **both, **dict(vision)}
    config = transformers.CLIPConfig(text_config=texts, vision_config=images, projection_dim=24, **changes)
    model = scatter(transformers.CLIPModel(config), seed)
    with torch.no_grad():
        model.logit_scale.fill_(1.7)
    return model


def images(channels=3, seed=3):
    return torch.randn(SAMPLES, channels, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))


def texts(end=VOCABULARY - 1, seed=4):
    """An end in each text, other tokens before it and behind it, and a second end."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCABULARY - 1, (SAMPLES, LENGTH), generator=generator)
    for row in range(SAMPLES):
        ids[row, 2 + row % (LENGTH - 3)] = end
        ids[row, LENGTH - 1] = end
    return ids


class OfVit:
    kind, answers = "vit", "labels"

    def __init__(self, channels=3, labels="numbers"):
        self.images = images(channels)
        self.values = torch.arange(SAMPLES) % CLASSES
        if labels == "several":  # of each image
            self.values = ((torch.arange(SAMPLES)[:, None] + torch.arange(CLASSES)) % 3 == 0).float()
        elif labels == "targets":
            self.values = torch.sin(torch.arange(SAMPLES).float())

    def outputs(self, model):
        return model(self.images).logits

    def loss(self, model):
        return model(self.images, labels=self.values).loss


class OfClip:
    kind, answers = "clip", "ids"

    def __init__(self, end=VOCABULARY - 1):
        self.images, self.values = images(), texts(end)

    def outputs(self, model):
        return model(input_ids=self.values, pixel_values=self.images).logits_per_image

    def loss(self, model):
        return model(input_ids=self.values, pixel_values=self.images, return_loss=True).loss


def run(data, model, folder, steps, ranks):
    """Tessera's outputs before its steps, and the losses of these."""
    inputs = folder / "data"
    inputs.mkdir(exist_ok=True)
    numpy.save(inputs / "images.npy", data.images.numpy())
    answers = data.values if data.values.is_floating_point() else data.values.int()
    numpy.save(inputs / f"{data.answers}.npy", answers.numpy())
    command = [EXAMPLE, data.kind, model, inputs, folder / "out", steps]
    if ranks > 1:
        command = [PROGRAM, "launch", "--nproc-per-node", ranks, "--", *command]
    ended = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120,
                           check=False)
    assert ended.returncode == 0, ended.stderr
    losses = [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)$", ended.stdout, re.MULTILINE)]
    assert len(losses) == steps
    return torch.from_numpy(numpy.load(folder / "out/outputs.npy")), losses


def assert_close_relatively(ours, theirs, tolerance=1e-5):
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    assert theirs.std() > 0.02, "outputs without any spread would agree by themselves"
    worst = (ours - theirs).abs().max().item()
    assert worst <= tolerance * theirs.abs().max().item(), f"outputs differ by {worst:.3g}"


def losses_of_torch(data, model):
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-3, weight_decay=1e-2)
    losses = []
    for _ in range(STEPS):
        loss = data.loss(model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


MODELS = {
    "vit": (vit, {}, OfVit, {}),
    "vit_without_biases": (vit, {"qkv_bias": False, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6}, OfVit, {}),
    "vit_of_one_channel": (vit, {"num_channels": 1, "patch_size": 8, "hidden_act": "quick_gelu"}, OfVit, {"channels": 1}),
    "vit_with_relu": (vit, {"hidden_act": "relu", "image_size": [SIDE, SIDE]}, OfVit, {}),
    "vit_with_several_labels": (vit, {}, OfVit, {"labels": "several"}),
    "vit_with_targets": (vit, {"num_labels": 1}, OfVit, {"labels": "targets"}),
    "vit_with_silu": (vit, {"hidden_act": "silu"}, OfVit, {}),
    "clip": (clip, {}, OfClip, {}),
    # The end of a text is the highest number there, wherever the configuration says 2.
    "clip_of_early_files": (clip, {"text": {"eos_token_id": 2}}, OfClip, {}),
    "clip_with_an_end_within": (clip, {"text": {"eos_token_id": 7, "hidden_act": "gelu"}}, OfClip, {"end": 7}),
}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_outputs_losses_and_folders(tmp_path, name, ranks):
    make, changes, kind, of_data = MODELS[name]
    data, model = kind(**of_data), make(**changes)
    model.save_pretrained(tmp_path / "model")
    outputs, losses = run(data, tmp_path / "model", tmp_path, STEPS, ranks)
    with torch.no_grad():
        assert_close_relatively(outputs, data.outputs(model))
    assert losses == pytest.approx(losses_of_torch(data, model), rel=1e-4)
    assert losses[-1] < losses[0]

    # What Tessera wrote, in transformers and in Tessera.
    written, notes = type(model).from_pretrained(tmp_path / "out/model", output_loading_info=True)
    assert not any(notes[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), notes
    again, _ = run(data, tmp_path / "out/model", tmp_path, 0, 1)
    with torch.no_grad():
        theirs = data.outputs(written.eval())
        assert_close_relatively(again, theirs)
        assert_close_relatively(theirs, data.outputs(model.eval()), 1e-2)  # torch's own five steps
    read = type(model).from_pretrained(tmp_path / "model").config.to_dict()
    for key, value in read.items():
        if key not in ("_name_or_path", "image_size"):
            assert written.config.to_dict()[key] == value, key


@pytest.mark.parametrize("name", ["vit", "clip"])
def test_folders_are_the_same_bits_when_nothing_is_trained(tmp_path, name):
    make, changes, kind, of_data = MODELS[name]
    data, model = kind(**of_data), make(**changes)
    model.save_pretrained(tmp_path / "model")
    run(data, tmp_path / "model", tmp_path, 0, 2)
    written = type(model).from_pretrained(tmp_path / "out/model")
    for parameter, tensor in model.state_dict().items():
        assert torch.equal(written.state_dict()[parameter], tensor), parameter


def test_class_names_stay(tmp_path):
    names = {0: "cat", 1: "dog", 2: "newt"}
    model = vit(id2label=names, label2id={name: number for number, name in names.items()}, num_labels=3)
    model.save_pretrained(tmp_path / "model")
    data = OfVit()
    data.values = data.values % 3
    run(data, tmp_path / "model", tmp_path, 1, 1)
    assert transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "out/model").config.id2label == names


@pytest.mark.parametrize("kind, key, value", [
    ("vit", "image_size", [16, 8]), ("vit", "hidden_act", "selu"), ("vit", "head_dim", 3),
    ("clip", "text_config.eos_token_id", [1, 2]), ("clip", "vision_config.patch_size", 5)])
def test_other_configurations_are_refused(tmp_path, kind, key, value):
    make, _, data, _ = MODELS[kind]
    make().save_pretrained(tmp_path / "model")

    def edit(config):
        *parts, last = key.split(".")
        for part in parts:
            config = config[part]
        config[last] = value

    edit_config(tmp_path / "model", edit)
    with pytest.raises(AssertionError, match=key.rsplit(".", maxsplit=1)[-1]):
        run(data(), tmp_path / "model", tmp_path, 1, 1)
    assert not (tmp_path / "out").exists()
