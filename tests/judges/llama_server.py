"""llama.cpp, if the package is there, on one thread without a GPU."""
import pytest


def start(path, exact=False):
    """A server of the GGUF file. `exact`: keys and values in fp32, and no fused attention."""
    xllamacpp = pytest.importorskip("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = 64
    params.n_gpu_layers = 0
    params.warmup = False
    params.cpuparams.n_threads = 1
    if exact:
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return xllamacpp.Server(params)
