"""Conversations for the judges of chat templates: seeded, of every form that templates distinguish."""
import random

WORDS = ("plain words", "  spaces around  ", "quotes \" and ' and `", "back\\slash \\n", "two\n\nlines\n", "tab\there",
         "Grüße, 東京, שלום, 🙂🏽", "<|im_start|>user", "{{ braces }} {% tag %} {# note #}", "a <b> & c", "", " ",
         "[INST] x [/INST]", "<think>\nhidden\n</think>\n\nshown", "e\u0301 and \u00a0", "\u2028line", "1e-5 %s {}",
         "word " * 40, "ΑΣ ΟΔΟΣ ß İ", "```py\nprint('x')\n```")

TOOLS = [{"type": "function", "function": {
    "name": "weather", "description": "The weather of a \"city\".\nIn °C.",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "A city's name"},
        "days": {"type": "integer", "enum": [1, 2, 3]},
        "options": {"type": "object", "properties": {"wind": {"type": "boolean", "default": True},
                                                     "limit": {"type": ["number", "null"], "minimum": 0.5}}}},
        "required": ["city"]}}},
    {"type": "function", "function": {"name": "now", "description": "", "parameters": {
        "type": "object", "properties": {}}}}]


def text(rng):
    return "".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 4)))


def content(rng, parts):
    if parts and rng.random() < 0.5:
        return [{"type": "text", "text": text(rng)} for _ in range(rng.randrange(1, 3))]
    return text(rng)


def tool_turns(rng, turn):
    arguments = rng.choice([{"city": text(rng), "days": 2}, {}, {"city": "Ulm", "options": {"wind": False, "limit": 0.5}}])
    call = {"id": f"call0{turn:04d}", "type": "function",
            "function": {"name": rng.choice(["weather", "now"]), "arguments": arguments}}
    call_message = {"role": "assistant", "content": rng.choice(["", text(rng), None]), "tool_calls": [call]}
    answer = {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"],
              "content": rng.choice([text(rng), '{"degrees": 21.5}'])}
    return [call_message, answer]


def conversation(seed):
    """One conversation as a line for `tessera render`: messages, perhaps tools and variables of the template."""
    rng = random.Random(seed)
    parts = seed % 5 == 4
    tools = seed % 4 == 3
    messages = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": content(rng, parts)})
    for turn in range(rng.choice([1, 1, 2, 3, 8])):
        messages.append({"role": "user", "content": content(rng, parts)})
        if tools and rng.random() < 0.7:
            messages += tool_turns(rng, turn)
        answer = {"role": "assistant", "content": content(rng, parts)}
        if rng.random() < 0.2:
            answer["reasoning_content"] = text(rng)
        messages.append(answer)
    if rng.random() < 0.3:
        messages.append({"role": "user", "content": content(rng, parts)})
    row = {"messages": messages}
    if tools:
        row["tools"] = TOOLS[:rng.randrange(1, 3)]
    if rng.random() < 0.2:
        row["chat_template_kwargs"] = {"enable_thinking": rng.random() < 0.5}
    return row


def conversations(count):
    return [conversation(seed) for seed in range(count)]
