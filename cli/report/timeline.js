// A step's time line: a lane for each stream of each rank, read by pointer or with the arrow keys.

const mostRanksDrawn = 8;
const laneHeight = 20;
const phaseTints = {
  forward: "58%", recompute: "44%", backward: "100%", optimizer: "30%", schedule: "76%", communication: "76%",
  exchange: "22%", data: "14%", other: "14%", wait: "0%",
};

// Phases that the table above does not name get the remaining tints, in the order of their first
// span.
function tintsOf(lanes) {
  const phases = [...new Set(lanes.flatMap((lane) => lane.spans.map((span) => span.phase)))];
  const rest = phases.filter((phase) => !Object.hasOwn(phaseTints, phase));
  const left = (phase) => ["68%", "38%", "20%"][rest.indexOf(phase) % 3];
  return Object.fromEntries(phases.map((phase) => [phase, rest.includes(phase) ? left(phase) : phaseTints[phase]]));
}

function lanesOf(timeline) {
  return timeline.ranks.slice(0, mostRanksDrawn).flatMap((rank) => rank.lanes.map((lane, index) => ({
    ...lane, rank: rank.rank, first: index === 0, spans: [...lane.spans].sort((a, b) => a.start - b.start),
  })));
}

function extentOf(timeline) {
  const spans = timeline.ranks.flatMap((rank) => rank.lanes.flatMap((lane) => lane.spans));
  const start = spans.reduce((least, span) => Math.min(least, span.start), Infinity);
  return { start, length: spans.reduce((most, span) => Math.max(most, span.end), -Infinity) - start };
}

function spanText(lane, span, start) {
  const rank = lane.rank === null ? "" : `rank ${lane.rank}, `;
  const what = [span.name, span.phase].filter(Boolean).join(", ") || "span";
  const [length, begin] = [write.seconds(span.end - span.start), write.seconds(span.start - start)];
  return `${rank}${lane.name}: ${what}, ${length}, begins at ${begin}`;
}

// Waiting is drawn as stripes.
function stripes() {
  const placed = { patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" };
  return drawn("defs", {}, drawn("pattern", { id: "wait", width: 5, height: 5, ...placed },
    drawn("rect", { width: 5, height: 5, class: "wait-paper" }),
    drawn("rect", { width: 1.5, height: 5, class: "wait-line" })));
}

// One time line as SVG; `longest` seconds fill the width. show(text) displays the description of a
// span.
function timelineDrawing(row, width, longest, show) {
  const lanes = lanesOf(row.timeline);
  const tints = tintsOf(lanes);
  const { start } = extentOf(row.timeline);
  const narrow = width < 520;
  const left = narrow ? 0 : 118;
  const right = 6;
  const scale = (width - left - right) / longest;
  const svg = drawn("svg", { width, role: "group", "--c": row.colour, "data-timeline": row.index }, stripes());
  const marks = [];
  let y = 4;
  lanes.forEach((lane, number) => {
    if (lane.first && number > 0) y += 8;
    const label = lane.first && lane.rank !== null ? `rank ${lane.rank} ` : "";
    if (narrow) {
      svg.append(drawn("text", { x: 0, y: y + 11, class: "soft" }, cutEnd(`${label}${lane.name}`, 40)));
      y += 15;
    } else {
      svg.append(drawn("text", { x: 0, y: y + 14 }, label),
        drawn("text", { x: left - 8, y: y + 14, "text-anchor": "end", class: "soft" }, cutEnd(lane.name, 9)));
    }
    const group = drawn("g", { "data-lane": lane.name });
    lane.spans.forEach((span) => {
      const x = left + (span.start - start) * scale;
      const length = (span.end - span.start) * scale;
      const mark = drawn("rect", {
        x, y, width: Math.max(length, 0.5), height: laneHeight, "--tint": tints[span.phase],
        class: span.phase === "wait" ? "span wait" : "span", "data-seconds": span.end - span.start,
      });
      marks.push({ mark, lane: number, span, text: spanText(lane, span, start) });
      group.append(mark);
      const room = Math.floor((length - 8) / 6);
      if (room >= 4 && span.name && span.phase !== "wait") {
        const kind = parseInt(tints[span.phase], 10) > 60 ? "inside on-colour" : "inside";
        group.append(drawn("text", { x: x + 4, y: y + 14, class: kind }, cutStart(span.name, room)));
      }
    });
    svg.append(group);
    y += laneHeight + 3;
  });
  const bottom = y + 2;
  for (const tick of ticksTo(longest, narrow ? 3 : 6)) {
    const x = left + tick * scale;
    svg.prepend(drawn("line", { x1: x, x2: x, y1: 0, y2: bottom, class: "grid" }));
    const anchor = tick === 0 ? "start" : x > width - 30 ? "end" : "middle";
    svg.append(drawn("text", { x, y: bottom + 14, class: "soft", "text-anchor": anchor }, write.seconds(tick)));
  }
  svg.setAttribute("height", bottom + 20);
  svg.setAttribute("viewBox", `0 0 ${width} ${bottom + 20}`);
  readable(svg, marks, show);
  return svg;
}

// Pointer and arrow keys: left and right along a lane, up and down to the span at that time in the next.
function readable(svg, marks, show) {
  let here = null;
  const go = (next) => {
    if (!next) return;
    if (here) here.mark.classList.remove("here");
    here = next;
    here.mark.classList.add("here");
    show(here.text);
  };
  for (const one of marks) one.mark.addEventListener("pointerenter", () => go(one));
  const nearest = (lane, time) => marks.filter((one) => one.lane === lane).reduce((best, one) =>
    (!best || Math.abs(one.span.start - time) < Math.abs(best.span.start - time) ? one : best), null);
  svg.setAttribute("tabindex", "0");
  svg.classList.add("timeline");
  svg.addEventListener("focus", () => go(here || marks[0]));
  svg.addEventListener("keydown", (event) => {
    if (!here) return;
    const along = marks.filter((one) => one.lane === here.lane);
    const lanes = [...new Set(marks.map((one) => one.lane))];
    const lane = lanes.indexOf(here.lane);
    const moves = {
      ArrowRight: () => along[along.indexOf(here) + 1],
      ArrowLeft: () => along[along.indexOf(here) - 1],
      ArrowDown: () => nearest(lanes[lane + 1], here.span.start),
      ArrowUp: () => nearest(lanes[lane - 1], here.span.start),
      Home: () => along[0], End: () => along[along.length - 1],
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    go(moves[event.key]());
  });
}

// A row, and a second one below it on the same scale.
function timelineSection(rows) {
  const some = rows.filter((row) => row.timeline);
  if (some.length === 0) return null;
  const first = rowList("timeline-row", some);
  const second = rowList("timeline-beside", some, element("option", { value: "" }, "none"));
  const plots = element("div", { class: "plot" });
  const reading = element("p", { class: "reading", role: "status", "aria-live": "polite" });
  const legend = element("div", {});
  const redraw = drawnToWidth(plots, (width) => {
    const values = [...new Set([first.value, second.value])].filter((value) => value !== "");
    const wanted = values.map((value) => some.find((row) => row.index === Number(value)));
    const longest = Math.max(...wanted.map((row) => extentOf(row.timeline).length), 1e-9);
    const hint = "Point at a span, or move with the arrow keys, to read it.";
    reading.textContent = hint;
    plots.replaceChildren(...wanted.flatMap((row) => {
      const svg = timelineDrawing(row, width, longest, (text) => { reading.textContent = text; });
      const more = row.timeline.ranks.length - mostRanksDrawn;
      const length = write.seconds(extentOf(row.timeline).length);
      svg.setAttribute("aria-label", `Time line of a step of ${row.name}, ${length} long. ${hint}`);
      return [element("h3", {}, `${row.name}${row.timeline.step === null ? "" : `, step ${row.timeline.step}`}`,
        more > 0 ? ` (the first ${mostRanksDrawn} of ${row.timeline.ranks.length} ranks)` : ""), svg];
    }));
    const phases = tintsOf(wanted.flatMap((row) => lanesOf(row.timeline)));
    const keys = Object.entries(phases).map(([phase, tint]) =>
      keyOf(phase === "wait" ? "wait" : "", tint, plain(phase) || "other"));
    legend.replaceChildren(element("ul", { class: "legend", "--c": "var(--ink)" }, keys));
  });
  first.addEventListener("change", redraw);
  second.addEventListener("change", redraw);
  return section("timeline", "A step's time line", [
    some.length > 1 ? element("label", {}, "row", first) : null,
    some.length > 1 ? element("label", {}, "beneath it", second) : null,
  ], plots, reading, legend);
}
