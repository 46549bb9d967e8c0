// Bars: a length is its number's share of the longest, from zero. What failed has a reason in the place of a bar.

function nameButton(row) {
  return element("button", {
    type: "button", class: "name", "aria-pressed": String(chosen.includes(row)), "data-choose": row.index, "aria-describedby": "tip",
  }, element("span", { class: "dot", "aria-hidden": "true" }), element("span", {}, row.name));
}

function barRow(row, ...content) {
  const item = element("li", { class: "bar-row" + (row.peer ? " peer" : "") + (chosen.includes(row) ? " chosen" : ""),
    "data-row": row.index, "--c": row.colour }, nameButton(row), content);
  return item;
}

function fault(row) {
  return element("div", { class: "fault" }, element("span", { class: "tag" }, statusOf(row)), row.reason || "no reason was given");
}

// A bar of `value` of `longest`, in parts where these are known.
function bar(kind, value, longest, parts) {
  const stacked = parts && parts.length > 0;
  const node = element("div", { class: `bar ${kind}${stacked ? " stacked" : ""}`, "width%": (100 * value) / longest,
    "data-value": value });
  if (!stacked) return node;
  const sum = parts.reduce((total, part) => total + part[1], 0);
  const whole = Math.max(value, sum);
  for (const [name, size, tint] of parts) {
    if (size > 0) node.append(element("span", { class: "part", "data-part": name, "width%": (100 * size) / whole, "--tint": tint }));
  }
  if (sum < value) node.append(element("span", { class: "part", "data-part": "rest", "width%": (100 * (value - sum)) / whole, "--tint": "8%" }));
  return node;
}

function spreadLine(spread, longest) {
  if (spread.high <= spread.low) return null;
  return element("div", { class: "spread", "left%": (100 * spread.low) / longest,
    "width%": (100 * (spread.high - spread.low)) / longest });
}

// The rows in their groups: a heading for each world where there are several.
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
  const order = byValue
    ? [...rows].sort((a, b) => (value(a) === null) - (value(b) === null) || (more ? value(b) - value(a) : value(a) - value(b)))
    : rows;
  return grouped(order, (some) => element("ul", { class: "bars", "data-bars": measure }, some.map((row) => {
    if (!row.good) return barRow(row, fault(row));
    const spread = row[measure];
    if (!spread) return barRow(row, element("div", { class: "fault" }, "not known"));
    const beside = row.ours.speed !== null ? `Tessera ${write.times(row.ours.speed)}`
      : row.speedup === null || row.world === 1 ? null
      : `${write.times(row.speedup)}${row.efficiency === null ? "" : `, ${write.share(row.efficiency)} of ideal`}`;
    return barRow(row,
      element("div", { class: "tracks" }, element("div", { class: "track" },
        bar("", spread.median, longest), spreadLine(spread, longest))),
      element("div", { class: "figure" }, write[how](spread.median), beside ? element("small", {}, beside) : null));
  })));
}

// Planned beside measured, by kind where the kinds are known.
function memoryBars(rows, limit) {
  const some = rows.filter(hasMemory);
  const longest = Math.max(limit ?? 0, ...some.flatMap((row) =>
    [row.memory.planned ?? 0, row.memory.measured ?? 0, row.memory.resident ?? 0]));
  return grouped(some, (list) => element("ul", { class: "bars", "data-bars": "memory" }, list.map((row) => {
    const { planned, measured, resident, kinds, kindsOf } = row.memory;
    const track = (of, value, thin) => (value === null ? null : element("div", { class: thin ? "track thin" : "track", "data-memory": of },
      bar(of, value, longest, kindsOf === of ? partsOf(kinds, kindOrder) : null),
      limit ? element("div", { class: "limit", "left%": (100 * limit) / longest }) : null));
    const both = planned !== null && measured !== null;
    const off = both ? (measured - planned) / planned : 0;
    const only = measured !== null ? "measured" : planned !== null ? "planned" : "whole process";
    const beside = !both ? (row.planned ? null : only)
      : `planned ${write.bytes(planned)}${Math.abs(off) < 0.0005 ? ", equal" : `, ${off > 0 ? "+" : "−"}${digits(Math.abs(off) * 100)} %`}`;
    return barRow(row,
      element("div", { class: "tracks" }, track("measured", measured, both), track("planned", planned, both),
        resident === null ? null : element("div", { class: "track slim", "data-memory": "resident" }, bar("resident", resident, longest, null))),
      element("div", { class: "figure" }, write.bytes(measured ?? planned ?? resident), beside ? element("small", {}, beside) : null,
        row.ours.memory === null ? null : element("small", {}, `Tessera ${write.times(row.ours.memory)}`),
        row.good ? null : element("small", {}, element("span", { class: "tag" }, statusOf(row)))));
  })));
}

// What a step waits for, by phase.
function exposedBars(rows) {
  const some = rows.filter((row) => row.good && Object.keys(row.exposed).length > 0);
  const longest = Math.max(...some.map((row) => sumOf(row.exposed)));
  return grouped(some, (list) => element("ul", { class: "bars", "data-bars": "exposed" }, list.map((row) => {
    const total = sumOf(row.exposed);
    const share = row.step ? `${write.share(total / row.step.median)} of the step` : null;
    return barRow(row,
      element("div", { class: "tracks" }, element("div", { class: "track" },
        longest > 0 ? bar("", total, longest, partsOf(row.exposed, phaseOrder)) : null)),
      element("div", { class: "figure" }, write.seconds(total), share ? element("small", {}, share) : null));
  })));
}

function legendOf(names, order, ...more) {
  const all = partsOf(Object.fromEntries(names.map((name) => [name, 1])), order);
  return element("ul", { class: "legend", "--c": "var(--ink)" }, all.map(([name, , tint]) =>
    element("li", {}, element("span", { class: "swatch", "aria-hidden": "true", "--tint": tint }), plain(name))), more);
}
