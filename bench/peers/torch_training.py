"""Trains a model with PyTorch as it recommends for each mode, for all peers on PyTorch: wrapping, AdamW, clipping, a step.

PyTorch's recommended settings: one unit per layer (transformer_auto_wrap_policy, fully_shard of each
layer, then of the root); use_orig_params; the default prefetch; fused AdamW; zero_grad to None,
unless a step may leave parameters out. bf16 is
torch.autocast over fp32 parameters for none, dp and ddp, and the sharded modes' own mixed precision over fp32 shards,
with gradients reduced in sharding.reduce_dtype (default: bf16, as Tessera's is). ddp gives its gradients as views of
its buckets.
"""
import contextlib

from common import Refused

MODES = ("none", "dp", "ddp", "fsdp1", "fsdp1-grad-op", "fsdp2", "fsdp2-keep")


def check_modes(job):
    """Refuses modes that no machine, or this machine, cannot run."""
    if job.mode != "dp":
        return
    import torch

    gpus = torch.cuda.device_count() if job.device != "cpu" else 0
    if gpus == 0:
        raise Refused("nn.DataParallel splits a batch over GPUs, and here it would run on the CPU; ddp does on CPUs")
    if gpus < job.world_size:
        raise Refused(f"nn.DataParallel over {job.world_size} GPUs: this machine has {gpus}")
    if job.mode == "dp" and job.compile:
        raise Refused("nn.DataParallel does not take a compiled model: it copies the module for each GPU")


def low_precision(job):
    import torch

    return torch.bfloat16 if job.precision == "bf16" else None


def reduce_precision(job):
    import torch

    return torch.float32 if job.sharding.get("reduce_dtype") == "fp32" else torch.bfloat16


def compile_layers(layers):
    """In place, so that names and wrappers stay, as FSDP2's documentation recommends."""
    for layer in layers:
        layer.compile()


def checkpoint_layers(model, layer_class):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        apply_activation_checkpointing,
        checkpoint_wrapper,
    )

    apply_activation_checkpointing(model, checkpoint_wrapper_fn=checkpoint_wrapper,
                                   check_fn=lambda module: isinstance(module, layer_class))


def wrap(model, layer_class, job, device, unused=False):
    """The model as job.mode trains it. Layers are the modules of layer_class; `unused`: a step may leave parameters out."""
    import torch

    if job.checkpointing:
        checkpoint_layers(model, layer_class)
    layers = [module for module in model.modules() if isinstance(module, layer_class)]
    if job.compile:
        compile_layers(layers)
    model.to(device)
    if job.mode == "none":
        return model
    if job.mode == "dp":
        return torch.nn.DataParallel(model, device_ids=list(range(job.world_size)))
    if job.mode == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True,
                                                          find_unused_parameters=unused)
    if job.mode.startswith("fsdp1"):
        return wrap_fsdp1(model, layer_class, job, device)
    return wrap_fsdp2(model, layers, job, device)


def wrap_fsdp1(model, layer_class, job, device):
    import functools

    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

    strategy = ShardingStrategy.FULL_SHARD if job.mode == "fsdp1" else ShardingStrategy.SHARD_GRAD_OP
    low = low_precision(job)
    return FullyShardedDataParallel(
        model, sharding_strategy=strategy, use_orig_params=True, device_id=device,
        mixed_precision=MixedPrecision(param_dtype=low, reduce_dtype=reduce_precision(job)) if low else None,
        auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={layer_class}))


def wrap_fsdp2(model, layers, job, device):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(device.type, (job.world_size,))
    low = low_precision(job)
    policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=reduce_precision(job)) if low else MixedPrecisionPolicy()
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=job.mode != "fsdp2-keep")
    return fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=job.mode != "fsdp2-keep")


def make_optimizer(named, matrices, job):
    """As in Tessera: matrices decay, biases and norms do not. By name, because sharded parameters have lost their shapes."""
    import torch

    train = job.train
    decay, groups = train.get("weight_decay", 0.01), ([], [])
    for name, parameter in named:
        if parameter.requires_grad:
            groups[plain_name(name) not in matrices].append(parameter)
    groups = [{"params": group, "weight_decay": rate} for group, rate in zip(groups, (decay, 0.0), strict=True) if group]
    kind = train.get("optimizer", "adamw")
    if kind not in ("adamw", "sgd"):
        raise Refused(f"this peer trains with adamw or sgd, and not with {kind}")
    if (train.get("adamw") or {}).get("state_dtype") not in (None, "fp32"):
        raise Refused("torch's AdamW has no bf16 moments beside fp32 parameters")
    if kind == "sgd":
        return torch.optim.SGD(groups, lr=job.learning_rate(0), momentum=train.get("momentum", 0.0))
    return torch.optim.AdamW(groups, lr=job.learning_rate(0), betas=tuple(train.get("betas") or (0.9, 0.999)),
                             eps=train.get("eps", 1e-8), fused=True)


def plain_name(name):
    """The name without the parts that wrappers add."""
    for part in ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod."):
        name = name.replace(part, "")
    return name.removeprefix("module.")


class Training:
    """A wrapped model with its optimizer. `data` has batches(step), samples(batches), tokens(batches), loss(model, batch)."""

    def __init__(self, model, layer_class, job, device, data, unused=False):
        self.job, self.device, self.data = job, device, data
        matrices = {name for name, one in model.named_parameters() if one.dim() >= 2}
        self.parameters = sum(one.numel() for one in model.parameters())
        model.train()
        self.model = wrap(model, layer_class, job, device, unused)
        self.optimizer = make_optimizer(self.model.named_parameters(), matrices, job)
        self.unused = unused
        if unused:
            self.begin_with_zero_gradients()
        self.batches, self.samples, self.tokens = data.batches, data.samples, data.tokens

    def begin_with_zero_gradients(self):
        """A parameter that a step leaves out gets a gradient of zero, as in Tessera; without one AdamW would skip it."""
        import torch

        for parameter in self.model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)

    def precision(self):
        import torch

        if self.job.precision == "bf16" and self.job.mode in ("none", "dp", "ddp"):
            return torch.autocast(self.device.type, torch.bfloat16)
        return contextlib.nullcontext()

    def without_reduction(self):
        """The context for all micro-batches but the last, under sync_each_batch: false."""
        if self.job.mode == "ddp" or self.job.mode.startswith("fsdp1"):
            return self.model.no_sync()
        return contextlib.nullcontext()

    def clip(self):
        import torch

        norm = self.job.train.get("max_grad_norm", 1.0)
        if not norm:
            return
        if self.job.mode.startswith("fsdp1"):
            self.model.clip_grad_norm_(norm)
        else:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), norm)

    def step(self, batches, rate):
        """The mean loss of the micro-batches."""
        total = None
        for number, batch in enumerate(batches):
            alone = number + 1 < len(batches) and not self.job.train.get("sync_each_batch", True)
            if self.job.mode.startswith("fsdp") and not self.job.mode.startswith("fsdp1"):
                self.model.set_requires_gradient_sync(not alone)
            with self.without_reduction() if alone else contextlib.nullcontext():
                with self.precision():
                    loss = self.data.loss(self.model, batch) / len(batches)
                loss.backward()
            total = loss.detach() if total is None else total + loss.detach()
        self.clip()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=not self.unused)
        return total
