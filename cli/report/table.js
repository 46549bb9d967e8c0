// All rows with their status, and the settings of the measurement.

const columns = [
  ["Launcher", (row) => row.launcher && element("code", {}, row.launcher), "text"],
  ["Ranks", (row) => row.world, "number"],
  ["Samples/s", (row) => row.samples && row.samples.median, "number"],
  ["Tokens/s", (row) => row.tokens && row.tokens.median, "number"],
  ["Speed-up", (row) => row.speedup, "times"],
  ["Effi\u00adciency", (row) => row.efficiency, "share"],
  ["Step", (row) => row.step && row.step.median, "seconds"],
  ["Memory measured", (row) => row.memory.measured, "bytes"],
  ["Memory planned", (row) => row.memory.planned, "bytes"],
  ["Process", (row) => row.memory.resident, "bytes"],
  ["Exposed", (row) => (Object.keys(row.exposed).length > 0 ? sumOf(row.exposed) : null), "seconds"],
  ["Engine a unit", (row) => row.engine, "seconds"],
  ["Matrix products", (row) => row.products, "share"],
  ["MFU", (row) => row.mfu, "share"],
  ["Bytes moved", (row) => (row.moved.length > 0 ? sumOf(movedOf(row)) : null), "bytes"],
];

function cellOf(value, how) {
  if (how === "text") return element("td", { class: "text" }, value || unknown);
  return element("td", {}, known(numberOf(value), how));
}

function tableSection(report) {
  const some = columns.filter(([, value]) => report.rows.some((row) => ![null, undefined, ""].includes(value(row))));
  const head = element("tr", {}, element("th", { scope: "col", class: "text" }, "Row"),
    element("th", { scope: "col", class: "text" }, "Status"),
    some.map(([title, , how]) => element("th", { scope: "col", class: how === "text" ? "text" : null }, title)));
  const line = (row) => element("tr", { class: row.good ? null : "failed", "data-status": row.status },
    element("th", { scope: "row" }, dotOf(row), ` ${row.name}`),
    element("td", { class: row.reason ? "text reason" : "text" },
      row.good ? `${statusOf(row)}${row.reason ? ": " : ""}` : tagOf(row), row.reason),
    some.map(([, value, how]) => cellOf(value(row), how)));
  return section("rows", "All rows", [], scrolling("All rows", element("table", { class: "all-rows" },
    element("thead", {}, head), element("tbody", {}, report.rows.map(line)))));
}

// Labels of the known facts.
function facts(pairs) {
  return element("dl", { class: "facts" }, pairs.filter(([, text]) => text)
    .map(([label, text]) => [element("dt", {}, label), element("dd", {}, text)]));
}

function methodSection(report) {
  const { source } = report;
  const [machine, model, settings] = [objectOf(source.machine), objectOf(source.model), objectOf(source.settings)];
  const bytes = (value) => (numberOf(value) === null ? "" : write.bytes(value));
  const count = (value, of) => (numberOf(value) ? `${value.toLocaleString("en-US")} ${of}` : "");
  const limit = (seconds) => (numberOf(seconds) === null ? "" : write.seconds(seconds));
  const list = (...texts) => texts.filter(Boolean).join(", ");
  const steps = [count(settings.steps, "steps"), count(settings.warmup, "of warm-up")];
  const cluster = source.cluster;
  const formula = textOf(source.mfu_formula) || report.rows.map((row) => row.mfuFormula).find(Boolean);
  return section("method", report.planned ? "How this was calculated" : "How this was measured", [], facts([
    ["Command", source.command ? element("code", {}, textOf(source.command)) : ""],
    ["Recipe", textOf(source.recipe)],
    ["Model", list(textOf(model.architecture), count(model.parameters, "parameters"),
      count(model.tokens_per_sample, "tokens a sample"))],
    ["Machine", list(textOf(machine.processor), count(machine.cores, "cores"), bytes(machine.memory_bytes),
      machine.device !== "cpu" && textOf(machine.device), textOf(machine.system))],
    ["Matrix products", textOf(machine.matrix_products)],
    ["Cluster", isObject(cluster) ? textOf(cluster.name) || textOf(cluster.file) : textOf(cluster)],
    ["Tessera", textOf(machine.tessera ?? source.tessera)],
    ["Measured", list(steps.filter(Boolean).join(" after "), count(settings.rounds, "rounds in turns"))],
    ["Bars", report.planned ? "" : "medians; the lines on them go from the lowest to the highest"],
    ["Time limit", limit(settings.time_limit_s)],
    ["Time limit of a row", limit(settings.row_time_limit_s)],
    ["MFU", formula || ""],
  ]));
}
