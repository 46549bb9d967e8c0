// The differences between two rows: the user clicks on names, chooses in the two lists, or points
// at a row.

let chosen = []; // at most two rows
let showComparison = () => {};

const quantities = [
  ["tokens per second", (row) => row.tokens && row.tokens.median, "number"],
  ["samples per second", (row) => row.samples && row.samples.median, "number"],
  ["time of a step", (row) => row.step && row.step.median, "seconds"],
  ["speed-up", (row) => row.speedup, "times"],
  ["efficiency", (row) => row.efficiency, "share"],
  ["memory measured", (row) => row.memory.measured, "bytes"],
  ["memory planned", (row) => row.memory.planned, "bytes"],
  ["memory of the process", (row) => row.memory.resident, "bytes"],
  ["engine's time a unit", (row) => row.engine, "seconds"],
  ["share of matrix products", (row) => row.products, "share"],
  ["MFU", (row) => row.mfu, "share"],
];

// Keys come from the report: they must not collide with properties that objects have anyway.
const bare = (entries) => Object.assign(Object.create(null), entries);

function settingsOf(row) {
  const settings = bare({
    strategy: row.strategy, ranks: textOf(row.world), precision: row.precision, launcher: row.launcher,
    "group size": textOf(row.group), "batch of a rank": textOf(row.batch),
  });
  for (const [key, value] of Object.entries(row.axes)) settings[key] = textOf(value);
  if (row.peer) for (const [key, value] of Object.entries(row.peer)) settings[`peer's ${plain(key)}`] = textOf(value);
  settings.status = statusOf(row);
  settings.reason = row.reason;
  return settings;
}

// {phase collective: bytes}
function movedOf(row) {
  const moved = bare({});
  for (const call of row.moved.filter(isObject)) {
    const name = `${plain(textOf(call.collective ?? call.op))}, ${plain(textOf(call.phase))}`;
    if (numberOf(call.bytes) !== null) moved[name] = (moved[name] || 0) + call.bytes;
  }
  return moved;
}

// {label: [number, how]} of all known numbers of a row.
function numbersOfRow(row) {
  const all = bare({});
  for (const [label, value, how] of quantities) if (numberOf(value(row)) !== null) all[label] = [value(row), how];
  if (Object.keys(row.exposed).length > 0) all["exposed communication"] = [sumOf(row.exposed), "seconds"];
  for (const [phase, value] of Object.entries(row.exposed)) all[`exposed: ${plain(phase)}`] = [value, "seconds"];
  const kinds = Object.entries(row.memory.kinds || {});
  for (const [kind, value] of kinds) all[`memory: ${plain(kind)}`] = [value, "bytes"];
  for (const [name, value] of Object.entries(movedOf(row))) all[`bytes moved: ${name}`] = [value, "bytes"];
  return all;
}

// [{label, a, b, ratio}] of the differences, settings first; and the names of equal settings.
function differences(a, b) {
  const differing = [];
  const same = [];
  const [first, second] = [settingsOf(a), settingsOf(b)];
  for (const key of new Set([...Object.keys(first), ...Object.keys(second)])) {
    const [one, other] = [first[key] || "", second[key] || ""];
    if (one !== other) differing.push({ label: key, a: one || unknown, b: other || unknown, ratio: null });
    else if (one) same.push(`${key} ${one}`);
  }
  const [left, right] = [numbersOfRow(a), numbersOfRow(b)];
  for (const label of new Set([...Object.keys(left), ...Object.keys(right)])) {
    const [one, other] = [left[label], right[label]];
    if (one && other && one[0] === other[0]) continue;
    differing.push({ label, a: one ? write[one[1]](one[0]) : unknown, b: other ? write[other[1]](other[0]) : unknown,
      ratio: one && other && one[0] !== 0 ? other[0] / one[0] : null });
  }
  return { differing, same };
}

function comparisonTable(a, b) {
  const { differing, same } = differences(a, b);
  const column = (...text) => element("th", { scope: "col", class: "text" }, ...text);
  const head = element("tr", {}, column(""), column(dotOf(a), ` ${a.name}`), column(dotOf(b), ` ${b.name}`),
    element("th", { scope: "col" }, "second / first"));
  const lines = differing.map((line) => element("tr", {}, element("th", { scope: "row" }, line.label),
    element("td", { class: "text" }, line.a), element("td", { class: "text" }, line.b),
    element("td", {}, line.ratio === null ? "" : write.times(line.ratio))));
  return [
    scrolling("Differences between the two rows",
      element("table", { class: "compare" }, element("thead", {}, head), element("tbody", {}, lines))),
    same.length > 0 ? note(`The same in both: ${same.join(", ")}.`) : "",
  ];
}

function compareSection(rows) {
  if (rows.length < 2) return null;
  const [first, second] = [rowList("compare-first", rows), rowList("compare-second", rows)];
  const result = element("div", { id: "difference", "aria-live": "polite" });
  const draw = () =>
    result.replaceChildren(...comparisonTable(rows[first.selectedIndex], rows[second.selectedIndex]));
  const fastest = rows.reduce((best, row) => (speedOf(row) > speedOf(best) ? row : best), rows[0]);
  second.selectedIndex = rows.indexOf(fastest) || 1;
  showComparison = () => {
    if (chosen.length > 0) first.selectedIndex = rows.indexOf(chosen[0]);
    if (chosen.length > 1) second.selectedIndex = rows.indexOf(chosen[1]);
    draw();
  };
  for (const select of [first, second]) select.addEventListener("change", draw);
  draw();
  const controls = [element("label", {}, "first", first), element("label", {}, "second", second)];
  return section("compare", "Differences between two rows", controls, result);
}

function speedOf(row) {
  if (row.tokens) return row.tokens.median;
  if (row.samples) return row.samples.median;
  return row.step && row.step.median > 0 ? 1 / row.step.median : -1;
}

function choose(row) {
  chosen = chosen.includes(row) ? chosen.filter((one) => one !== row) : [...chosen, row].slice(-2);
  for (const button of document.querySelectorAll("[data-choose]")) {
    const pressed = chosen.some((one) => String(one.index) === button.dataset.choose);
    button.setAttribute("aria-pressed", String(pressed));
    button.closest(".bar-row").classList.toggle("chosen", pressed);
  }
  showComparison();
  const tray = document.getElementById("tray");
  tray.hidden = chosen.length === 0;
  const clear = () => { while (chosen.length > 0) choose(chosen[0]); };
  const button = element("button", { type: "button", class: "quiet", onclick: clear }, "Clear");
  const names = chosen.map((one) => one.name).join(" and ");
  const hint = "point at another row, or choose it, to see the differences.";
  if (chosen.length === 1) tray.replaceChildren(`${names}: ${hint}`, button);
  if (chosen.length === 2) tray.replaceChildren(names, element("a", { href: "#compare" }, "Differences"), button);
}

// The tip of a row: compared with the chosen row if there is one, else its main figures.
function tipOf(row) {
  const against = chosen.find((one) => one !== row);
  const lines = against ? differences(against, row).differing.slice(0, 9).map(differenceLine) : mainFigures(row);
  return [
    element("strong", {}, row.name), against ? element("div", { class: "soft" }, `against ${against.name}`) : "",
    element("dl", {}, lines.map(([label, text]) => [element("dt", {}, label), element("dd", {}, text)])),
  ];
}

function differenceLine({ label, a, b, ratio }) {
  return [label, ratio === null ? `${b}, not ${a}` : `${b} (${write.times(ratio)})`];
}

function mainFigures(row) {
  const spread = (one) => one && `${digits(one.median)} (${digits(one.low)} to ${digits(one.high)})`;
  const some = (value, how) => value !== null && write[how](value);
  return [
    ["status", row.good && !row.reason ? "" : [statusOf(row), row.reason].filter(Boolean).join(": ")],
    ["tokens/s", spread(row.tokens)], ["samples/s", spread(row.samples)],
    ["step", row.step && write.seconds(row.step.median)],
    ["memory", some(row.memory.measured, "bytes")], ["planned", some(row.memory.planned, "bytes")],
    ["MFU", some(row.mfu, "share")], ["launcher", row.launcher],
    ...Object.entries(row.axes).map(([key, value]) => [key, textOf(value)]),
  ].filter(([, text]) => text);
}

// One tip for all rows; Escape hides it.
function watchRows(rows) {
  const tip = document.getElementById("tip");
  // The text is removed as well: rows refer to it as their description.
  const hide = () => {
    tip.hidden = true;
    tip.replaceChildren();
  };
  const show = (item, x, y) => {
    tip.replaceChildren(...tipOf(rows[Number(item.dataset.row)]));
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - box.width - 8))}px`;
    tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(8, y - box.height - 12) : y + 18}px`;
  };
  const target = (event) => (event.target instanceof Element ? event.target.closest("[data-row]") : null);
  document.addEventListener("pointermove", (event) => {
    const item = event.pointerType === "mouse" ? target(event) : null;
    if (item) show(item, event.clientX, event.clientY);
    else hide();
  });
  document.addEventListener("focusin", (event) => {
    const item = event.target.matches(":focus-visible") ? target(event) : null;
    if (!item) return hide();
    const box = event.target.getBoundingClientRect();
    return show(item, box.left, box.bottom - 12);
  });
  document.addEventListener("scroll", hide, { passive: true });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  document.addEventListener("click", (event) => {
    const button = event.target instanceof Element ? event.target.closest("[data-choose]") : null;
    if (button) choose(rows[Number(button.dataset.choose)]);
  });
}
