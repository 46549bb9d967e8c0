// The report in the form that the plots need: both formats in one form, missing values as null.

const strategyOrder = [
  "none", "dp", "NO_SHARD", "SHARD_OPTIMIZER", "SHARD_GRAD_OP", "FULL_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2",
];
const colours = 10;

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const numberOf = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);
function textOf(value) {
  if (value === null || value === undefined) return "";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
const objectOf = (value) => (isObject(value) ? value : {});
const listOf = (value) => (Array.isArray(value) ? value : []);

// {key: number} of an object's numbers.
function numbersOf(value) {
  return Object.fromEntries(Object.entries(objectOf(value)).filter(([, number]) => numberOf(number) !== null));
}
const sumOf = (numbers) => Object.values(numbers).reduce((sum, number) => sum + number, 0);

// A median with its spread, from an object or from a bare number.
function spreadOf(value) {
  const median = numberOf(isObject(value) ? value.median : value);
  if (median === null) return null;
  const low = numberOf(objectOf(value).low);
  const high = numberOf(objectOf(value).high);
  return { median, low: low === null ? median : low, high: high === null ? median : high };
}

function memoryOf(value) {
  const { planned, measured, resident, total, kinds, ...rest } = isObject(value) ? value : { planned: value };
  const parts = numbersOf(kinds === undefined && planned === undefined ? rest : kinds);
  delete parts.total;
  const sum = sumOf(parts);
  const memory = {
    planned: numberOf(planned) ?? numberOf(total) ?? (measured === undefined && sum > 0 ? sum : null),
    measured: numberOf(measured),
    resident: numberOf(resident), // of the process, including memory outside of the engine
    kinds: sum > 0 ? parts : null,
    kindsOf: null,
  };
  // The kinds belong to the total that they add up to.
  const distance = (of) => (memory[of] === null ? Infinity : Math.abs(sum - memory[of]) / memory[of]);
  const nearest = distance("planned") < distance("measured") ? "planned" : "measured";
  if (memory.kinds && distance(nearest) < 0.05) memory.kindsOf = nearest;
  return memory;
}

function timelineOf(value) {
  const ranks = listOf(objectOf(value).ranks).map((rank) => ({
    rank: numberOf(rank.rank),
    lanes: listOf(rank.lanes).map((lane) => ({
      name: textOf(lane.name),
      spans: listOf(lane.spans)
        .map((span) => ({
          name: textOf(span.name), phase: textOf(span.phase), start: numberOf(span.start_s), end: numberOf(span.end_s),
        }))
        .filter((span) => span.start !== null && span.end !== null && span.end >= span.start),
    })),
  }));
  const some = ranks.some((rank) => rank.lanes.some((lane) => lane.spans.length > 0));
  return some ? { step: numberOf(value.step), ranks } : null;
}

// The settings of a row's measurement or plan: a bench's object, or a plan's list of "key=value".
function axesOf(source) {
  if (isObject(source.axes)) return source.axes;
  const settings = listOf(source.settings).map(textOf);
  return Object.fromEntries(settings.map((text) => [text.split("=")[0], text.slice(text.indexOf("=") + 1)]));
}

// [status, reason] of a planned row.
function planStatusOf(source) {
  if (source.refused) return ["refused", textOf(source.refused)];
  if (source.fits === false) return ["does_not_fit", "needs more memory than a device has"];
  return ["predicted", textOf(source.untimed)];
}

function rowOf(source, index, planned) {
  const predicted = objectOf(source.predicted);
  const value = (key) => source[key] ?? predicted[key];
  const [status, reason] = planned ? planStatusOf(source) : ["measured", ""];
  const exposed = value("exposed_s");
  const row = {
    index, planned, source,
    name: textOf(source.name), strategy: textOf(source.strategy) || "none", world: numberOf(source.world_size),
    precision: textOf(source.precision), launcher: textOf(source.launcher),
    peer: isObject(source.peer) ? source.peer : null, axes: axesOf(source),
    group: numberOf(source.group_size), batch: numberOf(source.batch_size),
    status: textOf(source.status) || status, reason: textOf(source.reason) || reason,
    tokens: spreadOf(value("tokens_per_s")), samples: spreadOf(value("samples_per_s")),
    step: spreadOf(value("step_s")),
    speedup: numberOf(value("speedup")), efficiency: numberOf(value("efficiency")),
    memory: memoryOf(source.memory ?? source.bytes),
    exposed: isObject(exposed) ? numbersOf(exposed) : numberOf(exposed) === null ? {} : { "all phases": exposed },
    engine: numberOf(value("engine_s_per_unit")), products: numberOf(value("products_share")),
    mfu: numberOf(value("mfu")), mfuFormula: textOf(source.mfu_formula),
    moved: listOf(source.bytes_moved ?? source.collectives), timeline: timelineOf(source.timeline),
  };
  delete row.exposed.total;
  const ratio = objectOf(source.tessera); // a peer's row: our row's part of it, with the same settings
  row.ours = { speed: numberOf(ratio.tokens_per_s), memory: numberOf(ratio.memory) };
  row.good = ["measured", "predicted"].includes(row.status);
  if (!row.good) row.tokens = row.samples = row.step = null; // a row that did not end well has no figures
  if (!row.name) {
    const settings = Object.entries(row.axes).map(([key, text]) => `${key.split(".").pop()} ${textOf(text)}`);
    const groups = row.group ? `groups of ${row.group}` : "";
    const ranks = row.world === null ? "" : ranksText(row.world);
    row.name = [row.strategy, groups, ranks, row.precision, ...settings].filter(Boolean).join(", ");
  }
  return row;
}

function ranksText(world) {
  return world === 1 ? "1 rank" : `${world.toLocaleString("en-US")} ranks`;
}

function readReport() {
  const source = JSON.parse(document.getElementById("report").textContent);
  const planned = source.format === "tessera-plan";
  const rows = listOf(source.rows ?? source.plans).filter(isObject).map((row, index) =>
    rowOf({ world_size: source.world_size, ...row }, index, planned));
  const others = [...new Set(rows.map((row) => row.strategy))].filter((name) => !strategyOrder.includes(name));
  for (const row of rows) {
    const place = strategyOrder.indexOf(row.strategy);
    const spare = strategyOrder.length + (others.indexOf(row.strategy) % (colours - strategyOrder.length));
    const number = place >= 0 ? place : spare;
    row.colour = `var(--s${number})`;
  }
  const worlds = [...new Set(rows.map((row) => row.world).filter((world) => world !== null))].sort((a, b) => a - b);
  return { source, planned, rows, worlds };
}

const statusText = {
  failed: "failed", timed_out: "timed out", does_not_fit: "does not fit", refused: "refused", not_run: "not run",
  measured: "measured", predicted: "predicted",
};
const tagOf = (row) => element("span", { class: "tag" }, statusOf(row));
const statusOf = (row) => (Object.hasOwn(statusText, row.status) ? statusText[row.status] : plain(row.status));

// Phases and kinds in the order of a step; the usually largest ones are darkest.
const kindOrder = ["parameters", "gradients", "optimizer", "communication", "activations", "other"];
const memoryTotals = ({ memory: { planned, measured, resident } }) =>
  [planned, measured, resident].filter((bytes) => bytes !== null);
const hasMemory = (row) => memoryTotals(row).length > 0;
const phaseOrder = ["gather_forward", "gather_backward", "reduce", "all_reduce", "transfer", "other"];
const tints = [100, 76, 58, 42, 29, 18];

// [name, number, tint] of the existing parts, first in that order, then in the order of the report.
function partsOf(numbers, order) {
  const others = Object.keys(numbers).filter((name) => !order.includes(name));
  const names = [...order.filter((name) => Object.hasOwn(numbers, name)), ...others];
  return names.map((name) => {
    const place = order.includes(name) ? order.indexOf(name) : names.length - others.length + others.indexOf(name);
    return [name, numbers[name], `${tints[Math.min(place, tints.length - 1)]}%`];
  });
}
const plain = (name) => name.replaceAll("_", " ");
