"""Batches of a text's bytes, as a run with `tokenizer: bytes` and `shuffle: false` reads them."""
import torch


def batches(text, steps, batch, tokens):
    """The inputs and targets of each step: the file's windows in order, epoch by epoch."""
    ids = torch.frombuffer(bytearray(text.read_bytes()), dtype=torch.uint8).long()
    windows = (len(ids) - 1) // tokens
    for step in range(steps):
        starts = [(step * batch + row) % windows * tokens for row in range(batch)]
        yield (torch.stack([ids[start:start + tokens] for start in starts]),
               torch.stack([ids[start + 1:start + tokens + 1] for start in starts]))
