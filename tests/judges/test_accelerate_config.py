"""`tessera train` uses unchanged configuration files that Accelerate's own classes and questions write, and Accelerate reads
the files of `tessera config`."""
import json
import os

import pytest
from accelerate.commands.config import cluster, config_args
from accelerate.commands.config.config_args import ClusterConfig
from accelerate.commands.menu import selection_menu

LAYER = "GPT2Block"
FSDP_1 = {
    "fsdp_version": 1,
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_backward_prefetch": "BACKWARD_PRE",
    "fsdp_cpu_ram_efficient_loading": True,
    "fsdp_forward_prefetch": False,
    "fsdp_offload_params": True,
    "fsdp_sharding_strategy": "SHARD_GRAD_OP",
    "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    "fsdp_sync_module_states": True,
    "fsdp_transformer_layer_cls_to_wrap": LAYER,
    "fsdp_use_orig_params": False,
}
FSDP_2 = {
    "fsdp_version": 2,
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_activation_checkpointing": True,
    "fsdp_cpu_ram_efficient_loading": True,
    "fsdp_offload_params": False,
    "fsdp_reshard_after_forward": False,
    "fsdp_transformer_layer_cls_to_wrap": LAYER,
}


def config(fsdp, **more):
    return ClusterConfig(compute_environment="LOCAL_MACHINE", distributed_type="FSDP", mixed_precision="no", use_cpu=False,
                         debug=False, num_processes=2, machine_rank=0, num_machines=1, rdzv_backend="static",
                         same_network=True, fsdp_config=dict(fsdp), downcast_bf16="no", tpu_env=[], **more)


def train(tessera, text, path):
    """The sharding keys of a run, after two steps on the number of ranks in the file."""
    recipe = tessera.folder / "recipe.yaml"
    recipe.write_text(f"""
model: {{architecture: gpt2, n_layer: 2, n_head: 2, n_embd: 32, seq_len: 32}}
data: {{train: {json.dumps(str(text))}, batch_size: 2}}
train: {{steps: 2}}
checkpoint: {{dir: out}}
""", encoding="utf-8")
    program = os.path.abspath(os.environ.get("TESSERA_PROGRAM", "build/tessera"))
    tessera.run("launch", "--config-file", path, "--", program, "train", recipe)
    manifest = json.loads((tessera.folder / "out/step-2/manifest.json").read_text(encoding="utf-8"))
    read = json.loads(tessera.run("recipe", recipe, "--config-file", path))
    return read, manifest


@pytest.mark.parametrize("suffix", ["yaml", "json"])
@pytest.mark.parametrize("version", [1, 2])
def test_files_of_its_classes(tessera, text, version, suffix):
    path = tessera.folder / f"accelerate.{suffix}"
    written = config(FSDP_1 if version == 1 else FSDP_2)
    (written.to_yaml_file if suffix == "yaml" else written.to_json_file)(str(path))
    read, manifest = train(tessera, text, path)
    assert read["sharding"]["sharding_strategy"] == "SHARD_GRAD_OP"
    assert read["sharding"]["transformer_layer_cls_to_wrap"] == [LAYER]
    assert read["sharding"]["offload_params"] is (version == 1)
    assert read["sharding"]["activation_checkpointing"] == ("false" if version == 1 else "true")
    assert read["checkpoint"]["state_dict_type"] == "SHARDED_STATE_DICT"
    assert manifest["manifest"]["type"] == "sharded"


def answers_of(version):
    """The answers to the questions of `accelerate config`, by the beginning of the question."""
    return [
        ("Which type of machine", "2"),  # multi-GPU
        ("How many different machines", "1"),
        ("Should distributed operations be checked", "no"),
        ("Do you wish to optimize your script", "no"),
        ("Do you want to use DeepSpeed", "no"),
        ("Do you want to use FullyShardedDataParallel", "yes"),
        ("What should be your FSDP version", str(version - 1)),
        ("What should be your sharding strategy", "1"),  # SHARD_GRAD_OP
        ("Do you want to enable resharding", "no"),
        ("Do you want to offload parameters", "no"),
        ("What should be your auto wrap policy", "0"),
        ("Do you want to use the model's `_no_split_modules`", "no"),
        ("Specify the comma-separated list", LAYER),
        ("What should be your FSDP's backward prefetch", "1"),
        ("What should be your FSDP's state dict type", "0"),
        ("Do you want to enable FSDP's forward prefetch", "yes"),
        ("Do you want to enable FSDP's `use_orig_params`", "no"),
        ("Do you want to enable CPU RAM", "yes"),
        ("Do you want to enable FSDP activation", "no"),
        ("Do you want to use the parallelism config", "no"),
        ("How many GPU(s)", "2"),
        ("What GPU(s)", "all"),
        ("Would you like to enable numa", "no"),
        ("Do you wish to use mixed precision", "2"),  # bf16
    ]


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_of_its_questions(tessera, text, version, monkeypatch):
    given = answers_of(version)

    def answer(question):
        for beginning, word in given:
            if beginning in question:
                return word
        return ""  # the default

    def choose(menu, default_choice=0):
        word = answer(menu.prompt)
        return int(word) if word else default_choice

    monkeypatch.setattr("builtins.input", answer)
    monkeypatch.setattr(selection_menu.BulletMenu, "run", choose)
    written = cluster.get_cluster_input()
    path = tessera.folder / "default_config.yaml"
    written.to_yaml_file(str(path))
    read, _ = train(tessera, text, path)
    assert read["sharding"]["sharding_strategy"] == "SHARD_GRAD_OP"
    assert read["sharding"]["transformer_layer_cls_to_wrap"] == [LAYER]
    assert read["sharding"]["mixed_precision"] == "bf16"
    assert read["sharding"]["backward_prefetch"] == ("BACKWARD_POST" if version == 1 else "BACKWARD_PRE")
    assert read["checkpoint"]["state_dict_type"] == ("FULL_STATE_DICT" if version == 1 else "SHARDED_STATE_DICT")


def test_it_reads_ours(tessera):
    tessera.run("config", "default", "--config-file", "ours.yaml", "--mixed-precision", "bf16")
    ours = config_args.load_config_from_file(str(tessera.folder / "ours.yaml"))
    assert ours.distributed_type.value == "FSDP"
    assert ours.mixed_precision == "bf16"
    assert ours.num_processes >= 1
    assert ours.fsdp_config["fsdp_version"] == 2
    assert ours.fsdp_config["fsdp_reshard_after_forward"] is True
