// Bars: the length of a bar is proportional to its number, from zero. A failed row has a reason in
// place of a bar.

function nameButton(row) {
  return element("button", {
    type: "button", class: "name", "data-choose": row.index,
    "aria-pressed": String(chosen.includes(row)), "aria-describedby": "tip",
  }, dotOf(row), element("span", {}, row.name));
}

function barRow(row, ...content) {
  const kind = ["bar-row", row.peer ? "peer" : "", chosen.includes(row) ? "chosen" : ""].join(" ");
  return element("li", { class: kind, "data-row": row.index, "--c": row.colour }, nameButton(row), content);
}

function fault(row) {
  return element("div", { class: "fault" }, tagOf(row), row.reason || "no reason was given");
}

// A bar of `value` relative to `longest`, in parts if these are known.
function bar(kind, value, longest, parts) {
  const stacked = parts && parts.length > 0;
  const node = element("div", {
    class: `bar ${kind}${stacked ? " stacked" : ""}`, "width%": (100 * value) / longest, "data-value": value,
  });
  if (!stacked) return node;
  const sum = parts.reduce((total, part) => total + part[1], 0);
  const whole = Math.max(value, sum);
  for (const [name, size, tint] of [...parts, ["rest", value - sum, "8%"]]) {
    if (size <= 0) continue;
    const share = (100 * size) / whole;
    node.append(element("span", { class: "part", "data-part": name, "width%": share, "--tint": tint }));
  }
  return node;
}

function spreadLine(spread, longest) {
  if (spread.high <= spread.low) return null;
  return element("div", { class: "spread", "left%": (100 * spread.low) / longest,
    "width%": (100 * (spread.high - spread.low)) / longest });
}

// The rows in their groups: a heading for each world if there are several.
function grouped(rows, list) {
  const worlds = [...new Set(rows.map((row) => row.world))];
  if (worlds.length < 2) return [list(rows)];
  return worlds.sort((a, b) => a - b).flatMap((world) => [
    element("h3", {}, world === null ? "World unknown" : ranksText(world)),
    list(rows.filter((row) => row.world === world)),
  ]);
}

const measures = {
  tokens: { title: "Tokens per second", how: "tokens", more: true },
  samples: { title: "Samples per second", how: "samples", more: true },
  step: { title: "Time of a step", how: "seconds", more: false },
};

function throughputBars(rows, measure, byValue) {
  const { how, more } = measures[measure];
  const value = (row) => (row[measure] ? row[measure].median : null);
  const longest = Math.max(...rows.map((row) => (row[measure] ? row[measure].high : 0)));
  const better = (a, b) => (value(a) === null) - (value(b) === null) || (value(b) - value(a)) * (more ? 1 : -1);
  const order = byValue ? [...rows].sort(better) : rows;
  return grouped(order, (some) => element("ul", { class: "bars", "data-bars": measure }, some.map((row) => {
    if (!row.good) return barRow(row, fault(row));
    const spread = row[measure];
    if (!spread) return barRow(row, element("div", { class: "fault" }, row.reason || "not known"));
    const beside = row.ours.speed !== null ? `Tessera ${write.times(row.ours.speed)}`
      : row.speedup === null || row.world === 1 ? null
      : `${write.times(row.speedup)}${row.efficiency === null ? "" : `, ${write.share(row.efficiency)} of ideal`}`;
    return barRow(row,
      element("div", { class: "tracks" }, element("div", { class: "track" },
        bar("", spread.median, longest), spreadLine(spread, longest))),
      element("div", { class: "figure" }, write[how](spread.median), beside ? small(beside) : null));
  })));
}

// Planned and measured memory side by side, by kind if the kinds are known.
function memoryBars(rows, limit) {
  const some = rows.filter(hasMemory);
  const longest = Math.max(limit ?? 0, ...some.flatMap(memoryTotals));
  return grouped(some, (list) => element("ul", { class: "bars", "data-bars": "memory" }, list.map((row) => {
    const { planned, measured, resident, kinds, kindsOf } = row.memory;
    const track = (of, value, size) => (value === null ? null
      : element("div", { class: `track ${size}`, "data-memory": of },
        bar(of, value, longest, kindsOf === of ? partsOf(kinds, kindOrder) : null),
        limit ? element("div", { class: "limit", "left%": (100 * limit) / longest }) : null));
    const both = planned !== null && measured !== null;
    const off = both ? (measured - planned) / planned : 0;
    const only = measured !== null ? "measured" : planned !== null ? "planned" : "whole process";
    const beside = !both ? (row.planned ? null : only)
      : `planned ${write.bytes(planned)}, ${Math.abs(off) < 0.0005 ? "equal" : write.change(off)}`;
    return barRow(row,
      element("div", { class: "tracks" }, track("measured", measured, both ? "thin" : ""),
        track("planned", planned, both ? "thin" : ""), track("resident", resident, "slim")),
      element("div", { class: "figure" }, write.bytes(measured ?? planned ?? resident), beside ? small(beside) : null,
        row.ours.memory === null ? null : small(`Tessera ${write.times(row.ours.memory)}`),
        row.good ? null : small(tagOf(row))));
  })));
}

// The waiting time of a step, by phase.
function exposedBars(rows) {
  const some = rows.filter((row) => row.good && Object.keys(row.exposed).length > 0);
  const longest = Math.max(...some.map((row) => sumOf(row.exposed)));
  return grouped(some, (list) => element("ul", { class: "bars", "data-bars": "exposed" }, list.map((row) => {
    const total = sumOf(row.exposed);
    const share = row.step ? `${write.share(total / row.step.median)} of the step` : null;
    return barRow(row,
      element("div", { class: "tracks" }, element("div", { class: "track" },
        longest > 0 ? bar("", total, longest, partsOf(row.exposed, phaseOrder)) : null)),
      element("div", { class: "figure" }, write.seconds(total), share ? small(share) : null));
  })));
}

function legendOf(names, order, ...more) {
  const all = partsOf(Object.fromEntries(names.map((name) => [name, 1])), order);
  const keys = all.map(([name, , tint]) => keyOf("", tint, plain(name)));
  return keys.length + more.flat().filter(Boolean).length === 0 ? null
    : element("ul", { class: "legend", "--c": "var(--ink)" }, keys, more);
}
