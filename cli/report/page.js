// The page from top to bottom.

function section(id, title, controls, ...content) {
  const some = controls.filter(Boolean);
  return element("section", { id, "aria-labelledby": `${id}-title` },
    element("div", { class: "section-head" }, element("h2", { id: `${id}-title` }, title),
      some.length > 0 ? element("div", { class: "controls" }, some) : null), content);
}

function rowList(id, rows, ...before) {
  return element("select", { id }, before, rows.map((row) => element("option", { value: row.index }, row.name)));
}

function selectOf(id, label, options, change) {
  const select = element("select", { id, onchange: () => change(select.value) },
    options.map(([value, text]) => element("option", { value }, text)));
  return element("label", {}, label, select);
}

// [{world, text}] of a plan's advice.
function recommendationsOf(report) {
  return listOf(report.source.recommendations).filter(isObject).map((one) => {
    const what = [textOf(one.strategy), ...listOf(one.settings).map(textOf)].join(" ");
    return { world: numberOf(one.world_size), text: [what, textOf(one.reason)].filter(Boolean).join(": ") };
  });
}

function recommendationSection(report) {
  const all = recommendationsOf(report);
  if (all.length < 2) return null;
  return section("recommended", "Recommended", [],
    facts(all.map(({ world, text }) => [world === null ? "ranks unknown" : ranksText(world), text])));
}

// A summary of the numbers in one or two sentences.
function summaryOf(report) {
  // The worlds of a plan are alternatives: the summary is about the largest one.
  const world = report.planned ? report.worlds[report.worlds.length - 1] : null;
  const asked = report.rows.filter((row) => !report.planned || row.world === world);
  const good = asked.filter((row) => row.good && speedOf(row) > 0);
  const bad = report.rows.length - report.rows.filter((row) => row.good).length;
  const lines = [];
  const recommended = recommendationsOf(report);
  if (recommended.length === 1) lines.push(`Recommended: ${recommended[0].text}.`);
  if (good.length > 0) {
    const fastest = good.reduce((best, row) => (speedOf(row) > speedOf(best) ? row : best));
    const { tokens, samples, step } = fastest;
    const figure = tokens ? write.tokens(tokens.median) : samples ? write.samples(samples.median)
      : `${write.seconds(step.median)} a step`;
    const over = fastest.speedup === null || fastest.world === 1 ? "" : `, ${write.times(fastest.speedup)} one rank`;
    const is = report.planned ? "is predicted to be" : "is";
    lines.push(`${fastest.name} ${is} the fastest of ${good.length}: ${figure}${over}.`);
  }
  const memory = (row) => row.memory.measured ?? row.memory.planned;
  const sized = good.filter((row) => memory(row) !== null);
  if (sized.length > 1) {
    const least = sized.reduce((best, row) => (memory(row) < memory(best) ? row : best));
    lines.push(`${least.name} takes the least memory of a rank: ${write.bytes(memory(least))}.`);
  }
  const has = bad === 1 ? "has" : "have";
  if (bad > 0) lines.push(`${bad} of ${report.rows.length} rows ${has} no result; each row gives the reason.`);
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
  return element("div", { class: "headline" }, element("h1", {}, title),
    element("p", { class: "lead" }, summaryOf(report)), where ? note(where) : null);
}

function throughputSection(report, rows) {
  const there = Object.keys(measures).filter((measure) => rows.some((row) => row[measure]));
  if (report.planned && there.length === 0) return null;
  const plot = element("div", {});
  let measure = there[0] || "tokens";
  let byValue = false;
  const heading = report.planned ? "Predicted speed" : "Throughput";
  const draw = () => {
    const { title, more } = measures[measure];
    const which = note(`${title}, ${more ? "more" : "less"} is better.`);
    plot.replaceChildren(which, ...throughputBars(rows, measure, byValue));
  };
  draw();
  const titles = there.map((name) => [name, measures[name].title]);
  const orders = [["", "as in the report"], ["value", "best first"]];
  return section("throughput", heading, [
    there.length > 1 ? selectOf("measure", "show", titles, (name) => { measure = name; draw(); }) : null,
    there.length > 0 ? selectOf("order", "order", orders, (order) => { byValue = order === "value"; draw(); }) : null,
  ], plot);
}

function memorySection(report, rows) {
  const sized = rows.filter(hasMemory);
  if (sized.length === 0) return null;
  const kinds = new Set(sized.filter((row) => row.memory.kindsOf).flatMap((row) => Object.keys(row.memory.kinds)));
  const limit = numberOf(report.source.device_memory) ?? numberOf(objectOf(report.source.cluster).device_memory_bytes);
  const drawnLimit = limit !== null && limit <= 1.5 * Math.max(...sized.flatMap(memoryTotals));
  const both = sized.some((row) => row.memory.planned !== null && row.memory.measured !== null);
  const resident = sized.some((row) => row.memory.resident !== null);
  const keys = [
    both ? keyOf("planned", null, "planned, beneath measured") : null,
    resident ? keyOf("resident", null, "the whole process, program and libraries included") : null,
  ];
  const device = limit === null ? "" : ` A device has ${write.bytes(limit)}${drawnLimit ? ": the dashed line" : ""}.`;
  return section("memory", "Memory of a rank", [],
    note(`The peak${both ? ", measured and planned" : ""}, less is better.${device}`),
    ...memoryBars(rows, drawnLimit ? limit : null), legendOf([...kinds], kindOrder, keys));
}

function exposedSection(rows) {
  const some = rows.filter((row) => row.good && Object.keys(row.exposed).length > 0);
  if (some.length === 0) return null;
  const phases = new Set(some.flatMap((row) => Object.keys(row.exposed)));
  return section("exposed", "Exposed communication", [],
    note("Time of a step in which computation waits for a collective, less is better."),
    ...exposedBars(rows), legendOf([...phases], phaseOrder));
}

// Bars of many worlds are too many, and those of a plan's smallest world are not useful: then the
// page shows one world at a time.
const mostBars = 24;
const mostWorlds = 3;

function barSections(report) {
  const node = element("div", {});
  const draw = (world) => {
    const rows = report.rows.filter((row) => world === "" || String(row.world) === world);
    const sections = [throughputSection(report, rows), memorySection(report, rows), exposedSection(rows)];
    node.replaceChildren(...sections.filter(Boolean));
  };
  if (report.worlds.length < 2 || (report.rows.length <= mostBars && report.worlds.length <= mostWorlds)) {
    draw("");
    return [node];
  }
  const worlds = [...report.worlds].reverse();
  draw(String(worlds[0]));
  const options = [...worlds.map((world) => [String(world), ranksText(world)]), ["", "all"]];
  const controls = element("div", { class: "controls" }, selectOf("world", "bars for", options, draw));
  return [element("section", { "aria-label": "Ranks" }, controls), node];
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
  main.append(...[
    headline(report), recommendationSection(report), ...barSections(report),
    scalingSection(report), sweepSection(report), timelineSection(report.rows), compareSection(report.rows),
    report.rows.length > 0 ? tableSection(report) : null, methodSection(report),
  ].filter(Boolean));
  watchRows(report.rows);
}
