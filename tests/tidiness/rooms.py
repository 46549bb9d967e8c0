"""The order of the source folders: floors from the ground up, and the rooms of each floor from the ground up.

A file includes files of its own room, of the rooms before it in its floor, and of the floors before its floor. "." is
the floor's own folder. A new folder is a name in one of these lists.
"""
import itertools
import re

ROOMS = {
    "base": (".", "text"),
    "kernels": ("keys", ".", "cpu/simd", "cpu/matmul", "cpu", "cpu/attention", "cpu/elementwise", "cpu/reductions",
                "cpu/indexing", "cpu/blocks", "cuda/device", "cuda", "cuda/matmul", "cuda/attention", "cuda/cudnn", "cuda/elementwise",
                "cuda/reductions", "cuda/indexing"),
    "engine": ("places", "device", "planned", "storage", ".", "cpu", "cuda", "backends", "ops", "ops/head", "ops/products", "nn",
               "optim/matrices", "optim/parts", "optim", "optim/state", "data/compression", "data", "interop"),
    "comm": (".", "mpi", "watch", "control", "shared", "shared/join", "nodes", "nodes/mpi", "nodes/tcp", "record",
             "connect", "nccl"),
    # Only for tests: the emulated GPU.
    "emulator": ("access", "scheduler", "runtime", "cuda", "cublas", "device", "nccl", "include/nvtx3"),
    "sharding": ("policy", "context", "memory", "profiler", "units", "runtime", ".", "plan"),
    "checkpoint": ("state", "io", ".", "safetensors", "steps", "load", "save", "formats/pickle", "formats",
                   "formats/torch", "formats/dcp", "formats/megatron", "formats/deepspeed", "formats/llmc",
                   "formats/gguf", "formats/step_folder", "narrow", "convert"),
    "tokenizers": ("text", "pipeline", "normalizers", "pre_tokenizers", "models", "files", "chat/values", "chat/jinja",
                   "chat", "."),
    "models": (".", "config", "gpt2", "llama", "bert", "mpnet", "roberta", "distilbert", "modernbert", "t5", "vit", "clip", "registry", "sentence_encoder", "load"),
    "tasks": ("losses", "columnar/arrow", "columnar/tar", "conversations", "columnar", ".", "batches", "instructions"),
    "trainer": ("pruning", "."),
    "tessera": (".", "models"),  # headers for users
    "launch": (".",),
    "training": ("recipe/yaml", "recipe", "recipe/accelerate", "."),
    "planner": (".",),
    "logs": (".",),
    "bench": ("harness", "harness/network", "kernels", "programs"),
    "cli": (".", "report", "commands", "commands/config", "commands/encoders", "commands/generate", "commands/test"),
}
# The namespace in tessera:: that the files of a floor open. launch() of sharding/context/context.h is tessera::launch.
NAMESPACES = {floor: floor for floor in ("tokenizers", "models", "tasks", "training", "planner", "logs", "bench", "cli")}
NAMESPACES["launch"] = "launcher"
FLOORS = {floor: level for level, floor in enumerate(ROOMS)}
MOST_SOURCES = 22  # of C++ and CUDA in one folder


def room_of(path):
    """("engine", "nn") of engine/nn/module.h."""
    folder, _, _ = path.rpartition("/")
    floor, _, room = folder.partition("/")
    return floor, room or "."


def include_runs_up(source, target):
    """Why the file `source` must not include the file `target`, or None. Both are paths from the root."""
    (source_floor, source_room), (target_floor, target_room) = room_of(source), room_of(target)
    if source_floor not in FLOORS or target_floor not in FLOORS:
        return None
    if FLOORS[target_floor] > FLOORS[source_floor]:
        return f"{source_floor} includes {target}, which is on a floor above ({' < '.join(FLOORS)})"
    rooms = ROOMS[source_floor]
    if source_floor != target_floor or not {source_room, target_room} <= set(rooms):
        return None
    if rooms.index(target_room) > rooms.index(source_room):
        return (f"{source_floor}/{source_room} includes {target}, which is in a room above "
                f"({' < '.join(rooms)}: tests/tidiness/rooms.py)")
    return None


def namespace_errors(path, lines):
    """Lists (line number, message) of the namespaces that a file opens and that are not its floor's. It may declare
    classes of other floors."""
    floor = path.partition("/")[0]
    if floor not in NAMESPACES:
        return []
    own = f"tessera::{NAMESPACES[floor]}"
    errors = []
    for number, line in enumerate(lines, start=1):
        opened = re.match(r"namespace (tessera\b[\w:]*) *\{", line)
        if not opened or f"{opened.group(1)}::".startswith(f"{own}::"):
            continue
        inside = itertools.takewhile(lambda line: not line.startswith("}"), lines[number:])
        if not all(re.fullmatch(r"(?:(?:class|struct) \w+;)?", line) for line in inside):
            errors.append((number, f"{opened.group(1)} in a file of {floor}, whose namespace is {own}"))
    return errors


def folder_errors(sources):
    """Lists (path, line, message): of C++ sources, given by their paths, the folders that are not in the list or hold too
    many."""
    folders = {}
    for path in sources:
        folders.setdefault(path.rpartition("/")[0], []).append(path)
    errors = []
    for folder, paths in sorted(folders.items()):
        floor, room = room_of(paths[0])
        if floor in ROOMS and room not in ROOMS[floor]:
            errors.append((min(paths), 1, f"the folder {folder} is not in the list of tests/tidiness/rooms.py"))
        if len(paths) > MOST_SOURCES:
            errors.append((min(paths), 1, f"the folder {folder} holds {len(paths)} sources, more than {MOST_SOURCES}: "
                           "divide it by subject"))
    return errors
