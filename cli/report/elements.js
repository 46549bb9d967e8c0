// Elements and units. All text of a report becomes text nodes here and nowhere else; none of it
// becomes markup.

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("--")) node.style.setProperty(name, value);
    else if (name === "width%" || name === "left%") node.style.setProperty(name.slice(0, -1), `${value}%`);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

function element(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

const note = (...text) => element("p", { class: "note" }, ...text);
const small = (...text) => element("small", {}, ...text);
const hidden = { "aria-hidden": "true" };

// The sign of a row's strategy: a disc, a ring for a peer's.
const dotOf = (row) => element("span", { class: row.peer ? "dot peer" : "dot", "--c": row.colour, ...hidden });
const keyOf = (kind, tint, name) =>
  element("li", {}, element("span", { class: `swatch ${kind}`, "--tint": tint, ...hidden }), name);

// A table with its own scroll bar if it is wider than the page.
const scrolling = (label, ...content) =>
  element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, ...content);

function drawn(tag, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

// Three significant digits, or more if they are before the decimal point: 2,724; 36.7; 0.0123; 162
// M.
function digits(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e15 || size < 1e-4) return value.toExponential(2);
  if (size >= 9.995e11) return `${digits(value / 1e12)} T`;
  if (size >= 9.995e8) return `${digits(value / 1e9)} G`;
  if (size >= 9.995e6) return `${digits(value / 1e6)} M`;
  if (size >= 100) return Math.round(value).toLocaleString("en-US");
  return Number(value.toPrecision(3)).toLocaleString("en-US", { maximumSignificantDigits: 3 });
}

// As the program writes them: 1.20 GiB, 31.0 GiB, 640 MiB.
function bytesText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  if (Math.abs(bytes) < 1024) return `${bytes} B`;
  let unit = 0;
  let size = bytes;
  for (; Math.abs(size) >= 999.5 && unit + 1 < units.length; ++unit) size /= 1024;
  return `${size.toFixed(Math.abs(size) < 9.995 ? 2 : Math.abs(size) < 99.95 ? 1 : 0)} ${units[unit]}`;
}

// The width that a text takes in a plot.
const ruler = document.createElement("canvas").getContext("2d");
function textWidth(text) {
  ruler.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  return ruler.measureText(text).width;
}

// Cut to `room` characters; if names have a common beginning, the end is more useful.
const cutEnd = (text, room) => (text.length > room ? `${text.slice(0, room - 1)}…` : text);
const cutStart = (text, room) => (text.length > room ? `…${text.slice(1 - room)}` : text);

const write = {
  bytes: bytesText,
  seconds: (value) => {
    const size = Math.abs(value);
    if (size >= 1 || size === 0) return `${digits(value)} s`;
    return size >= 0.9995e-3 ? `${digits(value * 1e3)} ms` : `${digits(value * 1e6)} µs`;
  },
  tokens: (value) => `${digits(value)} tokens/s`,
  samples: (value) => `${digits(value)} samples/s`,
  times: (value) => `${value >= 100 ? digits(value) : value.toFixed(2)}×`,
  share: (value) => (value > 0 && value < 0.0005 ? "under 0.1 %" : `${(value * 100).toFixed(1)} %`),
  change: (value) => `${value < 0 ? "−" : "+"}${digits(Math.abs(value) * 100)} %`,
  number: (value) => digits(value),
  text: (value) => String(value),
};

// Shown in place of an unknown number.
const unknown = "–";
function known(value, how) {
  return value === null || value === undefined ? unknown : write[how](value);
}

// Round numbers from 0 to `most`, about `count` of them.
function ticksTo(most, count) {
  const rough = most / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((times) => times * power).find((size) => size >= rough * 0.999);
  const ticks = [];
  for (let i = 0; i * step <= most * 1.0001; ++i) ticks.push(i * step);
  return ticks;
}

// Calls draw(width) now and whenever the element's width changes.
function drawnToWidth(node, draw) {
  let last = 0;
  const update = () => {
    const width = Math.floor(node.clientWidth);
    if (width > 0 && width !== last) {
      last = width;
      draw(width);
    }
  };
  // In its own frame: a drawing that changes the height would call the observer recursively.
  new ResizeObserver(() => requestAnimationFrame(update)).observe(node);
  return () => {
    last = 0;
    update();
  };
}
