// Curves over the number of ranks: speed-up against the ideal, and a plan's sweep on logarithmic scales.

// Rows that differ only in the number of ranks.
function seriesOf(rows, value) {
  const series = new Map();
  for (const row of rows) {
    if (!row.good || row.world === null || value(row) === null) continue;
    // For a peer only the chosen settings: its rows also have figures there.
    const { name, mode, backend, compile } = row.peer || {};
    const key = JSON.stringify([row.strategy, row.precision, row.axes, name, mode, backend, compile,
      row.planned ? null : row.group]);
    if (!series.has(key)) series.set(key, { rows: [], colour: row.colour, peer: row.peer, first: row });
    series.get(key).rows.push(row);
  }
  for (const one of series.values()) one.rows.sort((a, b) => a.world - b.world);
  return nameSeries([...series.values()]);
}

// A series is named by its strategy, and by the difference from other series with the same
// strategy.
function nameSeries(all) {
  const parts = (one) => {
    const row = one.first;
    const axes = Object.entries(row.axes).map(([key, value]) => `${key.split(".").pop()} ${textOf(value)}`);
    const who = row.peer ? [row.peer.name, row.peer.mode].filter(Boolean).join(" ") : row.strategy;
    return [who, row.precision, ...axes].filter(Boolean);
  };
  const same = (part) => all.every((one) => parts(one).includes(part));
  for (const one of all) one.name = parts(one).filter((part, index) => index === 0 || !same(part)).join(", ");
  return all;
}

// Moves labels apart that would overlap, and keeps their order.
function apart(labels, least, top, bottom) {
  labels.sort((a, b) => a.y - b.y);
  for (let i = 1; i < labels.length; ++i) labels[i].y = Math.max(labels[i].y, labels[i - 1].y + least);
  let limit = bottom;
  for (let i = labels.length - 1; i >= 0; --i) {
    labels[i].y = Math.max(top, Math.min(labels[i].y, limit));
    limit = labels[i].y - least;
  }
  return labels;
}

// A scale from a number to pixels, with its ticks.
function linearScale(most, from, to, count) {
  return { place: (value) => from + (value / most) * (to - from), ticks: ticksTo(most, count) };
}
function logScale(least, most, from, to, base, count) {
  const log = (value) => Math.log(value) / Math.log(base);
  const low = log(least);
  const high = Math.max(log(most), low + (base === 2 ? 1 : 0.3));
  const ticks = [];
  const first = Math.ceil(low - 1e-9);
  const every = Math.max(1, Math.ceil((high - first + 1) / count));
  // A range below two decades gets 1, 2 and 5 in each.
  const within = base === 10 && high - low < 2 ? [1, 2, 5] : [1];
  for (let power = base === 2 ? first : first - 1; power <= high + 1e-9; power += every) {
    ticks.push(...within.map((times) => times * base ** power));
  }
  const inside = ticks.filter((tick) => log(tick) >= low - 1e-9 && log(tick) <= high + 1e-9);
  return { place: (value) => from + ((log(value) - low) / (high - low)) * (to - from), ticks: inside };
}

function axes(svg, x, y, box, how) {
  for (const tick of y.ticks) {
    const at = y.place(tick);
    const text = how(tick).replace(/\.0+(?= )/, "");
    svg.append(drawn("line", { x1: box.left, x2: box.right, y1: at, y2: at, class: "grid" }),
      drawn("text", { x: box.left - 6, y: at + 4, "text-anchor": "end", class: "soft" }, text));
  }
  for (const tick of x.ticks) {
    const text = tick.toLocaleString("en-US");
    svg.append(drawn("text", { x: x.place(tick), y: box.bottom + 17, "text-anchor": "middle", class: "soft" }, text));
  }
  const middle = (box.left + box.right) / 2;
  svg.append(drawn("line", { x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom, class: "axis" }),
    drawn("text", { x: middle, y: box.bottom + 34, "text-anchor": "middle", class: "soft" }, "ranks"));
}

const pathOf = (points) => points.map((point, index) => `${index ? "L" : "M"}${point.join(" ")}`).join("");

// `start` is a row of another series where the curve begins, or null.
function curve(svg, one, x, y, value, how, start) {
  const at = (row) => [x.place(row.world), y.place(value(row))];
  const kind = one.peer ? " peer" : "";
  const group = drawn("g", { "--c": one.colour, "data-series": one.name });
  const along = start ? [start, ...one.rows] : one.rows;
  if (along.length > 1) {
    group.append(drawn("path", { class: `curve${kind}`, d: pathOf(along.map(at)) }));
  }
  for (const row of one.rows) {
    const [cx, cy] = at(row);
    const text = `${row.name}: ${how(value(row))}`;
    group.append(drawn("circle", {
      cx, cy, r: 4, class: `point${kind}`, tabindex: "0", role: "img", "aria-label": text,
      "data-row": row.index, "data-value": value(row),
    }));
  }
  svg.append(group);
}

// `plot` is {title, value(row), how(number), scale: "linear" | "log", ideal}.
function curvePlot(rows, plot) {
  const series = seriesOf(rows, plot.value);
  const node = element("div", { class: "plot", "data-plot": plot.title });
  drawnToWidth(node, (width) => {
    const worlds = [...new Set(series.flatMap((one) => one.rows.map((row) => row.world)))].sort((a, b) => a - b);
    const values = series.flatMap((one) => one.rows.map(plot.value));
    const names = Math.max(...series.map((one) => textWidth(one.name))) + 12;
    const beside = width >= 420 && names < width * 0.45; // names at the ends of the curves, else in a legend
    const bottom = Math.min(300, Math.max(210, width * 0.5));
    const box = { left: 62, right: width - (beside ? names : 14), top: 12, bottom };
    const most = worlds[worlds.length - 1];
    const log = plot.scale === "log" || most / worlds[0] > 8;
    const place = log ? logScale(worlds[0], Math.max(most, worlds[0] * 2), box.left + 12, box.right - 12, 2, 1).place
      : linearScale(most, box.left, box.right - 12, 1).place;
    const every = Math.ceil(worlds.length / Math.max(2, Math.floor((box.right - box.left) / 56)));
    const x = { place, ticks: worlds.filter((_, index) => (worlds.length - 1 - index) % every === 0) };
    const top = Math.max(...values, plot.ideal ? most : 0) * 1.04;
    const [least, largest] = [Math.min(...values) / 1.15, Math.max(...values) * 1.15];
    const y = plot.scale === "log" ? logScale(least, largest, box.bottom, box.top, plot.base || 10, 6)
      : linearScale(top, box.bottom, box.top, 5);
    const height = bottom + 42;
    const label = `${plot.title}: ${series.map((one) => one.name).join(", ")}`;
    const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": label });
    axes(svg, x, y, box, plot.how);
    const ends = [];
    if (plot.ideal) {
      const points = [];
      for (let i = 0; i <= 48; ++i) {
        const world = log ? worlds[0] * (most / worlds[0]) ** (i / 48) : (most * i) / 48;
        points.push([x.place(world), y.place(world)]);
      }
      svg.append(drawn("path", { class: "ideal", d: pathOf(points) }));
      ends.push({ y: y.place(most), text: "ideal", soft: true });
    }
    for (const one of series) {
      curve(svg, one, x, y, plot.value, plot.how, plot.start ? plot.start(one) : null);
      const last = one.rows[one.rows.length - 1];
      const end = { y: y.place(plot.value(last)), text: one.name, colour: one.colour };
      // A series that ends before the others is named at its end.
      if (last.world === most || !beside) ends.push(end);
      else svg.append(drawn("text", { x: x.place(last.world) + 9, y: end.y + 14 }, end.text));
    }
    node.replaceChildren(svg);
    if (beside) {
      for (const end of apart(ends, 14, box.top, box.bottom)) {
        const dot = { cx: box.right + 2, cy: end.y, r: end.soft ? 0 : 3, class: "point", "--c": end.colour || "none" };
        svg.append(drawn("circle", dot),
          drawn("text", { x: box.right + 9, y: end.y + 4, class: end.soft ? "soft" : null }, end.text));
      }
    } else {
      const keys = series.map((one) => element("li", {}, dotOf(one.first), one.name));
      node.append(element("ul", { class: "legend" }, keys, plot.ideal ? element("li", {}, "dashed: ideal") : null));
    }
  });
  return node;
}

function scalingSection(report) {
  const value = (row) => row.speedup;
  const worlds = new Set(report.rows.filter((row) => row.good && row.speedup !== null).map((row) => row.world));
  if (report.planned || worlds.size < 2) return null;
  // One rank has no strategy: the curves of several ranks begin at its point.
  const single = report.rows.filter((row) => row.good && row.world === 1 && row.speedup !== null);
  const start = (one) => (one.rows[0].world === 1 ? null
    : single.find((row) => row.precision === one.first.precision && !row.peer === !one.peer) || null);
  const how = (number) => `${digits(number)}×`;
  const plot = { title: "Speed-up", value, how, scale: "linear", ideal: true, start };
  return section("scaling", "Scaling", [],
    note("Speed-up over one rank; the dashed line is the ideal, N times with N ranks."), curvePlot(report.rows, plot));
}

function sweepSection(report) {
  const worlds = new Set(report.rows.filter((row) => row.good).map((row) => row.world));
  if (!report.planned || worlds.size < 2) return null;
  const positive = (value) => (value !== null && value > 0 ? value : null);
  const plots = [
    { title: "Time of a step", value: (row) => row.step && positive(row.step.median), how: write.seconds },
    { title: "Tokens per second", value: (row) => row.tokens && positive(row.tokens.median), how: write.number },
    { title: "Memory of a rank", value: (row) => positive(row.memory.planned), how: write.bytes, base: 2 },
    { title: "Exposed communication", value: (row) => positive(sumOf(row.exposed)), how: write.seconds },
  ].filter((plot) => report.rows.some((row) => row.good && plot.value(row) !== null));
  const drawnPlots = plots.map((plot) =>
    element("div", {}, element("h3", {}, plot.title), curvePlot(report.rows, { ...plot, scale: "log" })));
  return section("sweep", "Over the number of ranks", [], note("Both scales are logarithmic."),
    element("div", { class: "small-plots" }, drawnPlots));
}
