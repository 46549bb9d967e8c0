"""Writes fixtures/: small Arrow IPC files of each kind by pyarrow, and beside each the rows that pyarrow reads in it as
JSON lines. Run it in an environment that has pyarrow (tests/judges/requirements.txt)."""
import decimal
import json
import pathlib
import struct

import pyarrow as pa

FIXTURES = pathlib.Path(__file__).parent / "fixtures"


def types(first, rows):
    """A batch with a column of each type that is read, with nulls, and some that are passed over."""
    numbers = list(range(first, first + rows))
    words = [None if n % 5 == 3 else f"row {n} " + "é" * (n % 4) for n in numbers]
    floats = [None if n % 4 == 1 else n / 4 for n in numbers]
    lists = [None if n % 6 == 2 else list(range(n % 4)) for n in numbers]
    structs = [None if n % 3 == 1 else {"text": words[i], "n": n, "deep": {"flag": n % 2 == 0}}
               for i, n in enumerate(numbers)]
    amounts = pa.array([decimal.Decimal(n) / 4 for n in numbers], pa.decimal128(9, 2))
    return pa.RecordBatch.from_arrays([
        pa.array([None] * rows, pa.null()),
        amounts,
        pa.array(numbers, pa.int64()),
        pa.array([n % 100 for n in numbers], pa.uint8()),
        pa.array([-n % 100 for n in numbers], pa.int16()),
        pa.array(floats, pa.float64()),
        pa.array(floats, pa.float32()),
        pa.array(floats, pa.float16()),
        pa.array([n % 3 == 0 if n % 7 else None for n in numbers], pa.bool_()),
        pa.array(words, pa.string()),
        pa.array(words, pa.large_string()),
        pa.array([[("k", n)] for n in numbers], pa.map_(pa.string(), pa.int64())),
        pa.array(lists, pa.list_(pa.int32())),
        pa.array(lists, pa.large_list(pa.int64())),
        pa.array([[n, n + 1] if n % 4 else None for n in numbers], pa.list_(pa.int32(), 2)),
        pa.array([[w, "x"] for w in words], pa.list_(pa.string())),
        pa.array(structs, pa.struct([("text", pa.string()), ("n", pa.int64()),
                                     ("deep", pa.struct([("flag", pa.bool_())]))])),
        pa.array([[[n], []] for n in numbers], pa.list_(pa.list_(pa.int8()))),
        pa.array(words, pa.string_view()),
    ], names=["none", "amount", "id", "u8", "i16", "f64", "f32", "f16", "flag", "word", "large", "map", "ids", "large_ids",
              "pair", "names", "meta", "nested", "view"])


READ = ["id", "u8", "i16", "f64", "f32", "f16", "flag", "word", "large", "ids", "large_ids", "pair", "names", "meta.text",
        "meta.n", "meta.deep.flag", "nested", "view"]


VIEWS = ["view", "word", "views", "words", "meta.view", "meta.text", "", "kind"]


def value(batch, row, path):
    """The value of a column by the path of its name."""
    names = path.split(".")
    found = batch.column(names[0])[row].as_py()
    for name in names[1:]:
        found = None if found is None else found[name]
    return found


def write(name, batches, columns, options=None, stream=False):
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(str(FIXTURES / name), batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    opened = pa.ipc.open_stream(str(FIXTURES / name)) if stream else pa.ipc.open_file(str(FIXTURES / name))
    table = opened.read_all()
    lines = [json.dumps([value(table, row, path) for path in columns], ensure_ascii=False) for row in range(table.num_rows)]
    head = json.dumps(columns)
    (FIXTURES / (name + ".rows")).write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")


def dictionaries():
    """Batches of a stream whose dictionary grows by a delta, and then is another one."""
    def batch(values, indices, index_type):
        words = pa.DictionaryArray.from_arrays(pa.array(indices, index_type), pa.array(values, pa.string()))
        return pa.RecordBatch.from_arrays([words, pa.array(range(len(indices)), pa.int32())], names=["word", "n"])

    kind = pa.int8()
    return [batch(["a", "b"], [0, 1, None, 0], kind), batch(["a", "b", "c"], [2, 1, 0], kind), batch(["z"], [0, 0], kind)]


def views():
    """Batches whose columns follow views with other numbers of buffers, and a column without a name."""
    def batch(first, rows):
        words = [None if n % 5 == 3 else f"row {n} " + "a long text " * (n % 4) for n in range(first, first + rows)]
        lists = [[word, "x"] for word in words]
        structs = [None if i % 3 == 1 else {"view": word, "text": word} for i, word in enumerate(words)]
        return pa.RecordBatch.from_arrays([
            pa.array(words, pa.string_view()), pa.array(words, pa.string()), pa.array(words, pa.binary_view()),
            pa.array(lists, pa.list_(pa.string_view())), pa.array(lists, pa.list_(pa.string())),
            pa.array(structs, pa.struct([("view", pa.string_view()), ("text", pa.string())])),
            pa.array(range(first, first + rows)),
            pa.DictionaryArray.from_arrays(pa.array([n % 2 for n in range(rows)], pa.int8()), ["even", "odd"]),
        ], names=["view", "word", "binary", "views", "words", "meta", "", "kind"])

    # Without a long text a view has no buffer.
    return [batch(0, 9), batch(4, 1), batch(7, 5)]


def list_views():
    """Lists of views in another order than their values, that overlap, are empty, or of nulls, and columns behind them."""
    def batch(wide):
        kind, index = (pa.LargeListViewArray, pa.int64()) if wide else (pa.ListViewArray, pa.int32())
        offsets, lengths = pa.array([6, 0, 0, 9, 2, 3], index), pa.array([3, 2, 0, 0, 5, 1], index)
        null = pa.array([False, False, False, False, True, False])
        words = pa.array([f"word {n} " * (n % 4) for n in range(9)], pa.string_view())
        return [kind.from_arrays(offsets, lengths, pa.array(range(9), pa.int32()), mask=null),
                kind.from_arrays(offsets, lengths, words, mask=null)]

    columns = batch(False) + batch(True) + [pa.array(["a", "b", None, "d", "e", "f"])]
    rows = pa.RecordBatch.from_arrays(columns, names=["ids", "views", "wide", "wide_views", "word"])
    return [rows, rows.slice(2, 3), rows.slice(1, 1)]


def shared_views():
    """A row whose texts are views of the same MiB, and together too long."""
    count, text = 1100, b"x" * (1 << 20)
    view = struct.pack("<i4sii", len(text), text[:4], 0, 0)
    texts = pa.Array.from_buffers(pa.string_view(), count, [None, pa.py_buffer(view * count), pa.py_buffer(text)])
    row = pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), texts)
    with pa.ipc.new_file(FIXTURES / "shared-views.arrow", pa.schema([("texts", row.type)]),
                         options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([row], names=["texts"]))


def java_empty():
    """An empty buffer as Arrow Java compresses it: the size 0, and nothing behind it."""
    batch = pa.RecordBatch.from_arrays([pa.array([7] * 99), pa.array([""] * 99)], names=["n", "text"])
    path = FIXTURES / "java.arrows"
    write(path.name, [batch], ["text"], pa.ipc.IpcWriteOptions(compression="lz4"), stream=True)
    changed = bytearray(path.read_bytes())
    message = pa.ipc.MessageReader.open_stream(bytes(changed))
    message.read_next_message()
    body = message.read_next_message().body
    # The texts' buffer is the last one, and empty. It becomes the first 8 bytes of the body, which are the numbers'.
    last = struct.pack("<qq", body.size, 0)
    assert changed.count(last) == 1 and changed.count(body.to_pybytes()) == 1
    at = changed.index(last)
    changed[at:at + 16] = struct.pack("<qq", 0, 8)
    at = changed.index(body.to_pybytes())
    changed[at:at + 8] = bytes(8)
    path.write_bytes(changed)


def large_dictionary():
    """Rows whose dictionary is small, and whose texts are large."""
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 99, pa.int8()), pa.array(["x" * (1 << 20)]))
    with pa.ipc.new_file(FIXTURES / "large-dictionary.arrow", pa.schema([("text", words.type)]),
                         options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([words], names=["text"]))


def conversations():
    """Rows of messages in each form, with nulls inside and around them."""
    call = {"name": "f", "arguments": {"x": 1, "words": ["a", None]}}
    messages = [[{"role": "user", "content": f"question {n} é", "never": None, "empty": []},
                 {"role": "assistant", "content": None if n % 3 == 2 else "yes",
                  "calls": [call] if n % 3 == 2 else None}] for n in range(7)]
    message = pa.struct([("role", pa.string()), ("content", pa.large_string()), ("calls", pa.list_(pa.struct([
        ("name", pa.string()), ("arguments", pa.struct([("x", pa.int64()), ("words", pa.list_(pa.string()))]))]))),
        ("never", pa.null()), ("empty", pa.list_(pa.null()))])
    speakers = [[{"from": "human", "value": str(n)}, {"from": "gpt", "value": "no"}] for n in range(7)]
    speaker = pa.struct([("from", pa.string()), ("value", pa.string_view())])
    return pa.RecordBatch.from_arrays([
        pa.array(range(7)), pa.array(messages, pa.list_(message)), pa.array(speakers, pa.large_list(speaker)),
        pa.array([one[:1] for one in messages], pa.list_(message)),
        pa.array([one[1:] for one in messages], pa.list_(message)),
        pa.array([f"q{n}" for n in range(7)]), pa.array([f"a{n}" for n in range(7)]),
        pa.array(["[{\"b\": 1, \"a\": 2}]" if n % 2 else None for n in range(7)]),
        pa.array([None if n == 1 else {"role": None, "content": "x", "calls": []} for n in range(7)], message)],
        names=["n", "messages", "speakers", "question", "answer", "first", "second", "tools", "one"])


def main():
    FIXTURES.mkdir(exist_ok=True)
    chats = conversations()
    write("messages.arrow", [chats.slice(0, 4), chats.slice(4)], ["messages", "speakers", "one", "n"])
    two = [types(0, 13), types(13, 1), types(14, 0), types(14, 9)]
    write("types.arrow", two, READ)
    write("types.arrows", two, READ, stream=True)
    # Batches that begin within a larger array: offsets that do not begin at 0.
    write("slices.arrow", [types(0, 30).slice(5, 9), types(0, 30).slice(17, 11)], READ)
    write("lz4.arrow", two, READ, pa.ipc.IpcWriteOptions(compression="lz4"))
    write("zstd.arrow", two, READ, pa.ipc.IpcWriteOptions(compression="zstd"))
    write("deltas.arrows", dictionaries(), ["word", "n"], pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True), stream=True)
    write("dictionary.arrow", [dictionaries()[1], dictionaries()[1].slice(1)], ["n", "word"])
    write("views.arrow", views(), VIEWS)
    write("listviews.arrow", list_views(), ["ids", "views", "wide", "wide_views", "word"])
    shared_views()
    java_empty()
    large_dictionary()
    # Rows without nulls, for tasks.
    rows = pa.RecordBatch.from_arrays([
        pa.array(["a cat", "a dog", "rain", "é"]), pa.array(["a kitten", "a puppy", "sun", "\\n"]),
        pa.array([4.5, 4, 0.25, 0]), pa.array(["yes", "yes", "no", "no"]).dictionary_encode(),
        pa.array([[1, 2], [], [40000, 3], [5]], pa.list_(pa.int32())),
        pa.array([[1], [2], [-1], [3]], pa.large_list(pa.int64()))],
        names=["first", "second", "score", "kind", "ids", "wrong"])
    write("rows.arrow", [rows.slice(0, 3), rows.slice(3)], ["first", "second", "score", "kind", "ids", "wrong"])
    # Its lower 32 bits are an id.
    large = pa.RecordBatch.from_arrays([pa.array([[1], [2**32 + 5]], pa.list_(pa.int64()))], names=["ids"])
    write("ids64.arrow", [large], ["ids"])
    # What a helper sends for a Parquet file: the columns, then the rows.
    words = pa.RecordBatch.from_arrays([pa.array(["one", "two", "three"]), pa.array([1, 2, 3])], names=["text", "n"])
    pa.ipc.new_stream(str(FIXTURES / "helper-columns.arrows"), words.schema).close()
    write("helper-rows.arrows", [words.select(["text"])], ["text"], stream=True)


main()
