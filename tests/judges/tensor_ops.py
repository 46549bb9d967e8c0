"""What torch's ops give for random shapes, values and gradients: the reference of the ops of engine/tensor_ops.h.

    python tensor_ops.py > ../engine/fixtures/tensor_ops.json

tests/engine/ops/torch_reference_test.cpp compares the ops with the file; test_tensor_ops.py compares the file with the
torch of today.
"""
import json
import math
import random
import sys

import torch
from torch.nn import functional

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


def values_of(entry, dtype):
    """Numbers in [low, high] that any language can compute, rounded to the dtype."""
    count = math.prod(entry["shape"])
    numbers = [math.sin(12.9898 * (i + 1) + 78.233 * entry["seed"]) for i in range(count)]
    low, high = entry["low"], entry["high"]
    return torch.tensor([low + (high - low) * (n + 1) / 2 for n in numbers], dtype=torch.float64).reshape(entry["shape"]).to(dtype)


def ids_of(entry):
    """Ids below `end` by a linear rule."""
    count = math.prod(entry["shape"])
    return torch.tensor([(7 * i + i // 3) % entry["end"] for i in range(count)]).reshape(entry["shape"])


def broadcast_partner(rng, shape):
    partner = [1 if rng.random() < 0.4 else size for size in shape]
    return partner[rng.randrange(len(partner)):] if partner and rng.random() < 0.3 else partner


def dims(rng, shape):
    return sorted(rng.sample(range(len(shape)), rng.randint(1, len(shape))))


# op: (number of inputs, low, high, arguments(rng, shapes), torch's function(inputs, ids, arguments))
BINARY = {
    "add": (-1, 1, lambda x, y: x + y), "subtract": (-1, 1, lambda x, y: x - y), "multiply": (-1, 1, lambda x, y: x * y),
    "divide": (0.5, 2, lambda x, y: x / y), "minimum": (-1, 1, torch.minimum), "maximum": (-1, 1, torch.maximum),
    "pow": (0.3, 2, torch.pow),
}
UNARY = {
    "abs": (-2, 2, torch.abs), "reciprocal": (0.5, 2, torch.reciprocal), "rsqrt": (0.3, 3, torch.rsqrt),
    "sin": (-9, 9, torch.sin), "cos": (-9, 9, torch.cos), "softplus": (-9, 30, functional.softplus),
    "clamp": (-2, 2, lambda x: torch.clamp(x, -0.7, 0.9)), "pow_number": (0.3, 2, lambda x: torch.pow(x, 2.5)),
    "sign": (-1, 1, torch.sign),
}
OVER = {
    "sum": lambda x, d: x.sum(d), "mean": lambda x, d: x.mean(d), "max": lambda x, d: x.amax(d), "min": lambda x, d: x.amin(d),
    "logsumexp": lambda x, d: torch.logsumexp(x, d), "norm": lambda x, d: torch.linalg.vector_norm(x, 2, d),
    "variance": lambda x, d: torch.var(x, d, correction=0),
}
ALONG = {
    "cumulative_sum": torch.cumsum, "softmax": torch.softmax, "log_softmax": torch.log_softmax,
    "argmax": lambda x, d: torch.argmax(x, d), "argmin": lambda x, d: torch.argmin(x, d),
    "sort": lambda x, d: torch.sort(x, dim=d, stable=True)[0], "argsort": lambda x, d: torch.argsort(x, dim=d, stable=True),
    "argsort_descending": lambda x, d: torch.argsort(x, dim=d, descending=True, stable=True),
    "slice": lambda x, d: x[(slice(None),) * d + (slice(1, None, 2),)], "flip_transpose": lambda x, d: x.transpose(d, -1),
    "topk": lambda x, d: torch.topk(x, 1, d)[0],
}
LOSSES = {
    "mse_loss": functional.mse_loss, "l1_loss": functional.l1_loss,
    "huber_loss": lambda x, y: functional.huber_loss(x, y, delta=0.4),
    "bce_with_logits": functional.binary_cross_entropy_with_logits,
}


def scores_of(x, heads):
    """q, k and v [batch, length, heads * size] as heads, and the scaled scores under a causal mask."""
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in x[:3])
    scores = (q.float() if q.dtype == torch.bfloat16 else q) @ (k.float() if k.dtype == torch.bfloat16 else k).mT
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return (scores / math.sqrt(q.shape[-1])).masked_fill(hidden, -math.inf), v


def attention_with_sinks(x, heads):
    """gpt-oss: a further key with the score of the head's sink and a value of 0."""
    scores, v = scores_of(x, heads)
    sinks = x[3].to(scores.dtype).reshape(1, heads, 1, 1).expand(*scores.shape[:-1], 1)
    shares = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
    return (shares @ v.to(shares.dtype)).transpose(1, 2).flatten(2).to(x[0].dtype)


def general_attention(x, heads, key_heads, causal):
    """Query heads that share keys, values of another width, and a bias if there is a fourth input."""
    dtype = torch.float32 if x[0].dtype == torch.bfloat16 else x[0].dtype
    q, k, v = (t.to(dtype).unflatten(-1, (count, -1)).transpose(1, 2)
               for t, count in zip(x, (heads, key_heads, key_heads)))
    k, v = (t.repeat_interleave(heads // key_heads, 1) for t in (k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if len(x) > 3:
        scores = scores + x[3].to(dtype)
    if causal:
        offset = k.shape[2] - q.shape[2]
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 + offset), -math.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2).to(x[0].dtype)


def attention_cases(add, rng):
    for number in range(4):
        key_heads, heads_of_a_key = rng.randint(1, 2), rng.randint(1, 2)
        heads = key_heads * heads_of_a_key
        # The root of a power of four is exact: the scale is a number in fp32, also for fp64.
        dim, value_dim = rng.choice([1, 4]), rng.choice([2, 3, 5])
        batch, queries = 2, rng.randint(2, 4)
        keys, causal = queries + rng.randint(0, 2), number // 2
        rows = [[batch, queries, heads * dim], [batch, keys, key_heads * dim], [batch, keys, key_heads * value_dim]]
        arguments = [heads, key_heads, causal]
        add("attention_widths", rows, lambda x, ids, a=arguments: general_attention(x, *a), arguments)
        bias = ([queries, keys], [heads, queries, keys], [batch, 1, queries, keys], [batch, heads, queries, keys])[number]
        add("attention_bias", rows + [bias], lambda x, ids, a=arguments: general_attention(x, *a), arguments)


def convolution_cases(add, rng):
    for _ in range(3):
        groups = rng.choice([1, 2, 3])
        channels, outputs = groups * rng.randint(1, 3), groups * rng.randint(1, 3)
        stride, padding, dilation, kernel = ([rng.randint(low, high) for _ in range(2)]
                                             for low, high in ((1, 3), (0, 2), (1, 2), (1, 3)))
        size = [rng.randint(6, 9) for _ in range(2)]
        add("conv2d", [[2, channels] + size, [outputs, channels // groups] + kernel, [outputs]],
            lambda x, ids, s=stride, p=padding, d=dilation, g=groups: functional.conv2d(*x, s, p, d, g),
            [*stride, *padding, *dilation, groups])
        add("conv1d", [[3, channels, size[0]], [outputs, channels // groups, kernel[0]], [outputs]],
            lambda x, ids, s=stride, p=padding, d=dilation, g=groups: functional.conv1d(*x, s[0], p[0], d[0], g),
            [stride[0], padding[0], dilation[0], groups])
        add("group_norm", [[2, 2 * groups] + size, [2 * groups], [2 * groups]],
            lambda x, ids, g=groups: functional.group_norm(x[0], g, x[1], x[2]), [groups])


def cases():
    """Lists (case, function of (inputs, ids))."""
    rng = random.Random(32)
    listed = []

    def add(op, shapes, function, arguments=(), low=-1.0, high=1.0, ids=None):
        for dtype in DTYPES:
            inputs = [{"shape": shape, "seed": seed + 1, "low": low, "high": high} for seed, shape in enumerate(shapes)]
            listed.append(({"op": op, "dtype": dtype, "inputs": inputs, "arguments": list(arguments), "ids": ids}, function))

    for _ in range(3):
        shape = [rng.randint(1, 5) for _ in range(rng.randint(1, 4))]
        for op, (low, high, function) in BINARY.items():
            add(op, [shape, broadcast_partner(rng, shape)], lambda x, ids, f=function: f(*x), low=low, high=high)
        for op, (low, high, function) in UNARY.items():
            add(op, [shape], lambda x, ids, f=function: f(*x), low=low, high=high)
        for op, function in OVER.items():
            chosen = dims(rng, shape)
            add(op, [shape], lambda x, ids, f=function, d=chosen: f(x[0], d), chosen)
        for op, function in ALONG.items():
            d = rng.randrange(len(shape))
            add(op, [shape], lambda x, ids, f=function, d=d: f(x[0], d), [d])
        for op, function in LOSSES.items():
            add(op, [shape, shape], lambda x, ids, f=function: f(*x), low=0.02, high=0.98)
        order = rng.sample(range(len(shape)), len(shape))
        add("permute", [shape], lambda x, ids, o=order: x[0].permute(o), order)
        add("pad", [shape], lambda x, ids: functional.pad(x[0], (2, 1), value=0.5), [2, 1])
        add("expand", [shape], lambda x, ids: x[0].expand([2] + list(x[0].shape)), [2])
        add("where", [shape, shape], lambda x, ids: torch.where(x[0] > 0.1, x[0], x[1]))
        add("masked_fill", [shape], lambda x, ids: x[0].masked_fill(x[0] > 0.1, -2))
        d = rng.randrange(len(shape))
        add("concatenate", [shape, shape], lambda x, ids, d=d: torch.cat(x, d), [d])
        add("stack", [shape, shape], lambda x, ids, d=d: torch.stack(x, d), [d])
        wide = shape[:d] + [4] + shape[d + 1:]
        ids = {"shape": wide, "end": shape[d]}
        add("gather", [shape], lambda x, ids, d=d: torch.gather(x[0], d, ids), [d], ids=ids)
        add("scatter_add", [shape, wide], lambda x, ids, d=d: torch.scatter_add(x[0], d, ids, x[1]), [d], ids=ids)
        add("index_select", [shape], lambda x, ids, d=d: torch.index_select(x[0], d, ids), [d],
            ids={"shape": [6], "end": shape[d]})
        batch, m, n, k = ([rng.randint(1, 3)] for _ in range(4))
        add("matmul", [batch + m + k, k + n], lambda x, ids: torch.matmul(*x))
        add("matmul", [m + k, batch + k + n], lambda x, ids: torch.matmul(*x))
        add("matmul_transposed", [batch + k + m, batch + n + k], lambda x, ids: torch.matmul(x[0].mT, x[1].mT))
        add("einsum", [batch + m + k, k + batch + n], lambda x, ids: torch.einsum("bik,kbj->jbi", *x))
        add("cross_entropy", [[3, 5]],
            lambda x, ids: functional.cross_entropy(x[0].float() if x[0].dtype == torch.bfloat16 else x[0], ids,
                                                    label_smoothing=0.1),
            ids={"shape": [3], "end": 5})
    convolution_cases(add, rng)
    rows = [2, 5, 12]
    add("attention_sinks", [rows, rows, rows, [3]], lambda x, ids: attention_with_sinks(x, 3), [3])
    add("attention_log_sum_exp", [rows, rows, rows], lambda x, ids: scores_of(x, 3)[0].logsumexp(-1) + 0 * x[2].sum(), [3])
    attention_cases(add, rng)
    return listed


def run(case, function):
    """The case with torch's result and gradients. Losses of 16-bit types are computed in fp32, as Tessera's."""
    dtype = DTYPES[case["dtype"]]
    inputs = [values_of(entry, dtype).requires_grad_() for entry in case["inputs"]]
    ids = ids_of(case["ids"]) if case["ids"] else None
    wide = case["op"] in LOSSES and dtype == torch.bfloat16
    out = function([x.float() for x in inputs] if wide else inputs, ids)
    result = dict(case, shape=list(out.shape), output=out.detach().double().flatten().tolist(), gradients=[])
    if out.dtype.is_floating_point and out.requires_grad and case["op"] != "sign":
        weights = values_of({"shape": list(out.shape), "seed": 99, "low": -1.0, "high": 1.0}, out.dtype)
        out.backward(weights)
        result["gradients"] = [x.grad.double().flatten().tolist() for x in inputs]
    return result


def reference():
    return [run(case, function) for case, function in cases()]


if __name__ == "__main__":
    sys.stdout.write("[\n" + ",\n".join(json.dumps(case) for case in reference()) + "\n]\n")
