// The page from top to bottom.

function section(id, title, controls, ...content) {
  const some = controls.filter(Boolean);
  return element("section", { id, "aria-labelledby": `${id}-title` },
    element("div", { class: "section-head" }, element("h2", { id: `${id}-title` }, title),
      some.length > 0 ? element("div", { class: "controls" }, some) : null), content);
}

function selectOf(id, label, options, change) {
  const select = element("select", { id, onchange: () => change(select.value) },
    options.map(([value, text]) => element("option", { value }, text)));
  return element("label", {}, label, select);
}

// What the numbers say, in a sentence or two.
function summaryOf(report) {
  const good = report.rows.filter((row) => row.good && speedOf(row) > 0);
  const bad = report.rows.length - report.rows.filter((row) => row.good).length;
  const lines = [];
  const recommended = objectOf(report.source.recommendation);
  if (textOf(recommended.reason)) lines.push(`Recommended: ${[textOf(recommended.strategy), textOf(recommended.reason)].filter(Boolean).join(", because it ")}.`);
  if (good.length > 0) {
    const fastest = good.reduce((best, row) => (speedOf(row) > speedOf(best) ? row : best));
    const figure = fastest.tokens ? write.tokens(fastest.tokens.median) : fastest.samples ? write.samples(fastest.samples.median)
      : `${write.seconds(fastest.step.median)} a step`;
    lines.push(`${fastest.name} is ${report.planned ? "predicted to be " : ""}the fastest of ${good.length}: ${figure}` +
      `${fastest.speedup === null || fastest.world === 1 ? "" : `, ${write.times(fastest.speedup)} one rank`}.`);
  }
  const memory = (row) => row.memory.measured ?? row.memory.planned;
  const sized = good.filter((row) => memory(row) !== null);
  if (sized.length > 1) {
    const least = sized.reduce((best, row) => (memory(row) < memory(best) ? row : best));
    lines.push(`${least.name} takes the least memory of a rank: ${write.bytes(memory(least))}.`);
  }
  if (bad > 0) lines.push(`${bad} of ${report.rows.length} rows ${bad === 1 ? "has" : "have"} no result; each says why.`);
  if (report.rows.length === 0) lines.push("The report has no rows.");
  return lines.join(" ");
}

function headline(report) {
  const recipe = textOf(report.source.recipe).split("/").pop() || "no recipe named";
  const title = report.planned ? `Strategies planned: ${recipe}` : `Strategies compared: ${recipe}`;
  document.title = `${title} · Tessera`;
  const machine = objectOf(report.source.machine);
  const where = [textOf(machine.device) !== "cpu" && textOf(machine.device), textOf(machine.processor),
    numberOf(machine.cores) === null ? "" : `${machine.cores} cores`].filter(Boolean).join(", ");
  return element("div", { class: "headline" }, element("h1", {}, title), element("p", { class: "lead" }, summaryOf(report)),
    where ? element("p", { class: "note" }, where) : null);
}

function throughputSection(report, rows) {
  const there = Object.keys(measures).filter((measure) => rows.some((row) => row[measure]));
  if (report.planned && there.length === 0) return null;
  const plot = element("div", {});
  let measure = there[0] || "tokens";
  let byValue = false;
  const title = report.planned ? "Predicted speed" : "Throughput";
  const draw = () => {
    plot.replaceChildren(element("p", { class: "note" }, `${measures[measure].title}, ${measures[measure].more ? "more" : "less"} is better.`),
      ...throughputBars(rows, measure, byValue));
  };
  draw();
  return section("throughput", title, [
    there.length > 1 ? selectOf("measure", "show", there.map((name) => [name, measures[name].title]), (name) => { measure = name; draw(); }) : null,
    there.length > 0 ? selectOf("order", "order", [["", "as in the report"], ["value", "best first"]], (order) => { byValue = order === "value"; draw(); }) : null,
  ], plot);
}

function memorySection(report, rows) {
  const sized = rows.filter(hasMemory);
  if (sized.length === 0) return null;
  const kinds = new Set(sized.filter((row) => row.memory.kindsOf).flatMap((row) => Object.keys(row.memory.kinds)));
  const limit = numberOf(report.source.device_memory) ?? numberOf(objectOf(report.source.cluster).device_memory_bytes);
  const largest = Math.max(...sized.map((row) => Math.max(row.memory.planned ?? 0, row.memory.measured ?? 0, row.memory.resident ?? 0)));
  const both = sized.some((row) => row.memory.planned !== null && row.memory.measured !== null);
  const planned = both ? element("li", {}, element("span", { class: "swatch planned", "aria-hidden": "true" }), "planned, beneath measured") : null;
  const resident = sized.some((row) => row.memory.resident !== null)
    ? element("li", {}, element("span", { class: "swatch resident", "aria-hidden": "true" }), "the whole process, program and libraries included") : null;
  return section("memory", "Memory of a rank", [],
    element("p", { class: "note" }, `${both ? "The peak, measured and planned" : "The peak"}, less is better.` +
      `${limit === null ? "" : ` A device has ${write.bytes(limit)}${limit <= 1.5 * largest ? ": the dashed line" : ""}.`}`),
    ...memoryBars(rows, limit !== null && limit <= 1.5 * largest ? limit : null),
    kinds.size > 0 || both || resident ? legendOf([...kinds], kindOrder, [planned, resident]) : null);
}

function exposedSection(rows) {
  const some = rows.filter((row) => row.good && Object.keys(row.exposed).length > 0);
  if (some.length === 0) return null;
  const phases = new Set(some.flatMap((row) => Object.keys(row.exposed)));
  return section("exposed", "Exposed communication", [], element("p", { class: "note" }, "Time of a step in which computation waits for a collective, less is better."),
    ...exposedBars(rows), legendOf([...phases], phaseOrder));
}

// Bars of a plan over many worlds would be a wall: one world at a time then.
const mostBars = 24;

function barSections(report) {
  const node = element("div", {});
  const draw = (world) => {
    const rows = report.rows.filter((row) => world === "" || String(row.world) === world);
    node.replaceChildren(...[throughputSection(report, rows), memorySection(report, rows), exposedSection(rows)].filter(Boolean));
  };
  if (report.rows.length <= mostBars || report.worlds.length < 2) {
    draw("");
    return [node];
  }
  const worlds = [...report.worlds].reverse();
  draw(String(worlds[0]));
  return [element("section", { "aria-label": "Ranks" }, element("div", { class: "controls" }, selectOf("world", "bars for",
    [...worlds.map((world) => [String(world), ranksText(world)]), ["", "all"]], draw))), node];
}

function themeButton() {
  const button = document.getElementById("theme");
  const themes = ["system", "light", "dark"];
  let now = 0;
  const show = () => {
    button.textContent = `Colours: ${themes[now]}`;
    if (now === 0) delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = themes[now];
  };
  button.addEventListener("click", () => { now = (now + 1) % themes.length; show(); });
  show();
}

function drawPage() {
  themeButton();
  const report = readReport();
  const main = document.getElementById("results");
  main.append(headline(report), ...barSections(report));
  main.append(...[scalingSection(report), sweepSection(report), timelineSection(report.rows), compareSection(report.rows),
    report.rows.length > 0 ? tableSection(report) : null, methodSection(report)].filter(Boolean));
  watchRows(report.rows);
}
