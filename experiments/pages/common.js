"use strict";
// A page is a state, numbers computed from it, and plots drawn from both.

const content = JSON.parse(document.getElementById("content").textContent);

// ---- numbers

const total = values => values.reduce((sum, value) => sum + value, 0);
const range = count => Array.from({ length: count }, (_, i) => i);
const spaced = (low, high, count) => range(count).map(i => low + (high - low) * i / (count - 1));
const geometric = (low, high, count) =>
  spaced(Math.log(low), Math.log(high), count).map(Math.exp);

/** Weights from log-weights, and the log of their mass; `sink`: mass of a key of value 0. */
function normalise(logs, sink = 0) {
  const most = Math.max(...logs, sink > 0 ? Math.log(sink) : -Infinity);
  if (most === -Infinity) return { weights: logs.map(() => NaN), logMass: -Infinity };
  const masses = logs.map(s => Math.exp(s - most));
  const mass = total(masses) + (sink > 0 ? sink * Math.exp(-most) : 0);
  return { weights: masses.map(m => m / mass), logMass: most + Math.log(mass) };
}

/** How many points share the weight, exp(entropy); none, where no point is in reach. */
const share = weights => weights.some(w => w > 0) ? Math.exp(entropy(weights)) : 0;
const mean = (weights, values) => total(weights.map((w, i) => w === 0 ? 0 : w * values[i]));
const entropy = weights => -total(weights.map(w => w > 0 ? w * Math.log(w) : 0));

/** log K against r, the distance in lengthscales, of every kernel of the library. */
const KERNELS = {
  gaussian: r => -r * r / 2,
  laplace: r => -r,
  matern32: r => Math.log1p(Math.sqrt(3) * r) - Math.sqrt(3) * r,
  matern52: r => Math.log1p(Math.sqrt(5) * r + 5 / 3 * r * r) - Math.sqrt(5) * r,
  rational_quadratic: (r, a = content.alpha ?? 1) => -a * Math.log1p(r * r / (2 * a)),
  cauchy: r => -Math.log1p(r * r),
  boxcar: r => r < 1 ? 0 : -Infinity,
  triangular: r => r < 1 ? Math.log1p(-r) : -Infinity,
  epanechnikov: r => r < 1 ? Math.log1p(-r * r) : -Infinity,
  biweight: r => r < 1 ? 2 * Math.log1p(-r * r) : -Infinity,
  triweight: r => r < 1 ? 3 * Math.log1p(-r * r) : -Infinity,
  tricube: r => r < 1 ? 3 * Math.log1p(-r * r * r) : -Infinity,
  cosine: r => r < 1 ? Math.log(Math.sin(Math.PI * (1 - r) / 2)) : -Infinity,
};

/** The estimate at one query: weights of the points, and their mean label. */
function regress(kernel, lengthscale, query, x, y, sink = 0, without = -1) {
  const logs = x.map((at, i) =>
    i === without ? -Infinity : KERNELS[kernel](Math.abs(query - at) / lengthscale));
  const { weights } = normalise(logs, sink);
  return { weights, prediction: mean(weights, y) };
}

/** Mean squared error of each label from the estimate of all others. */
function leaveOneOut(kernel, lengthscale, x, y, sink = 0) {
  return total(x.map((at, i) =>
    (y[i] - regress(kernel, lengthscale, at, x, y, sink, i).prediction) ** 2)) / x.length;
}

// ---- text

/** Digits that tell apart numbers up to `most` that are a step apart. */
const digits = (most, step) => Math.max(4, Math.ceil(Math.log10(most / step)) + 1);

/** Four digits, a minus as it is printed, and powers of ten. */
function shown(value, count = 4) {
  if (Array.isArray(value)) return value.map(v => shown(v, count)).join(", ");
  if (typeof value !== "number") return String(value);
  if (Number.isNaN(value)) return "none";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (size === 0 || (size >= 1e-3 && size < 1e5)) {
    return String(Number(value.toPrecision(count))).replace("-", "−");
  }
  const [digit, power] = value.toExponential(count - 1).split("e").map(Number);
  const raised = String(power).replace(/./g, c => c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]);
  return `${digit === 1 ? "" : `${String(digit).replace("-", "−")}·`}10${raised}`;
}

const escaped = text => String(text).replace(/[&<>"]/g, c => `&#${c.charCodeAt(0)};`);

// ---- plots

function ticks([low, high], log, room) {
  if (log) {
    const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
    const decades = range(Math.max(0, last - first + 1)).map(i => first + i);
    if (decades.length > 1) {
      const skip = Math.ceil(decades.length / room);
      return decades.filter(d => d % skip === 0).map(d => 10 ** d);
    }
    return range(3).flatMap(i => [1, 2, 5].map(m => m * 10 ** (first - 1 + i)))
      .filter(t => t >= low && t <= high);
  }
  const rough = (high - low) / room, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find(m => m * power >= rough);
  const first = Math.ceil(low / step - 1e-9);
  return range(Math.floor(high / step + 1e-9) - first + 1).map(i => (first + i) * step);
}

/** The ticks of an axis with their names, which differ wherever the ticks do. */
function named(axis, room) {
  const at = axis.ticks ?? ticks(axis.domain, axis.log, room);
  const step = axis.log ? Infinity : at[1] - at[0];
  const count = at.length > 1 ? digits(Math.max(...at.map(Math.abs)), step) : 4;
  return at.map(t => [t, axis.names?.[t] ?? shown(t, count)]);
}

/** Limits that hold all finite values, with a little room. */
function limits(...values) {
  const finite = values.flat(Infinity).filter(Number.isFinite);
  const low = Math.min(...finite), high = Math.max(...finite);
  const room = 0.06 * (high - low || Math.abs(high) || 1);
  return [low - room, high + room];
}

class Plot {
  constructor(id, { title, kind = "half", height = 240, onDrag, parent = document.querySelector(".figures") }) {
    this.figure = document.createElement("figure");
    this.figure.className = kind;
    this.figure.innerHTML = `<figcaption>${escaped(title)}<div class="legend"></div></figcaption>
      <svg id="${id}" role="img"></svg>`;
    parent.append(this.figure);
    this.svg = this.figure.querySelector("figcaption ~ svg");
    this.heights = [height].flat();  // of a narrow page, of a wide one
    if (onDrag) {
      this.svg.classList.add("draggable");
      const move = event => {
        const at = event.clientX - this.svg.getBoundingClientRect().left;
        onDrag(this.valueAt(at));
      };
      this.svg.addEventListener("pointerdown", event => {
        this.svg.setPointerCapture(event.pointerId);
        move(event);
      });
      this.svg.addEventListener("pointermove", event => {
        if (this.svg.hasPointerCapture(event.pointerId)) move(event);
      });
    }
  }

  /** Axes and marks; `describe` is what a screen reader says instead of the picture. */
  draw({ x, y, marks, legend = [], describe }) {
    const width = Math.max(this.svg.clientWidth, 240), left = 56, right = width - 8;
    const tight = x.names && (right - left) / x.ticks.length < 48;  // names are turned, then
    const height = matchMedia("(min-width: 52rem)").matches ? this.heights.at(-1) : this.heights[0];
    const top = 8, bottom = height - (tight ? 66 : 42);
    this.svg.setAttribute("height", height);
    const scale = (axis, from, to) => {
      const f = axis.log ? Math.log : v => v;
      const [low, high] = axis.domain.map(f);
      return v => from + (to - from) * (f(v) - low) / (high - low);
    };
    const sx = scale(x, left, right), sy = scale(y, bottom, top);
    Object.assign(this, { sx, sy });
    const [low, high] = x.log ? x.domain.map(Math.log) : x.domain;
    this.valueAt = at => {
      const share = Math.min(1, Math.max(0, (at - left) / (right - left)));
      const value = low + share * (high - low);
      return x.log ? Math.exp(value) : value;
    };
    const parts = [];
    const text = (at, up, words, more) =>
      parts.push(`<text x="${at.toFixed(1)}" y="${up.toFixed(1)}" ${more}>${escaped(words)}</text>`);
    for (const [t, name] of named(y, Math.max(2, height / 60))) {
      parts.push(`<path class="grid" d="M${left} ${sy(t).toFixed(1)}H${right}"/>`);
      text(left - 6, sy(t) + 4, name, 'text-anchor="end"');
    }
    for (const [t, name] of named(x, Math.max(2, width / 90))) {
      parts.push(`<path class="axis" d="M${sx(t).toFixed(1)} ${bottom}v4"/>`);
      const turned = `text-anchor="end" transform="rotate(-40 ${sx(t).toFixed(1)} ${bottom + 12})"`;
      text(sx(t), bottom + (tight ? 12 : 17), name, tight ? turned : 'text-anchor="middle"');
    }
    parts.push(`<path class="axis" d="M${left} ${top}V${bottom}H${right}"/>`);
    text((left + right) / 2, height - 6, x.label, 'text-anchor="middle"');
    text(0, 0, y.label, `text-anchor="middle" transform="translate(12 ${(top + bottom) / 2}) rotate(-90)"`);
    // what leaves the axes is cut there
    const id = `${this.svg.id}-inside`;
    parts.push(`<clipPath id="${id}"><rect x="${left}" y="${top}" width="${right - left}"
      height="${bottom - top}"/></clipPath><g clip-path="url(#${id})">`);
    for (const mark of marks) parts.push(MARKS[mark.type](mark, sx, sy, { left, right, top, bottom }));
    parts.push("</g>");
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("aria-label", describe);
    this.svg.innerHTML = parts.join("");
    this.figure.querySelector(".legend").innerHTML = legend.map(([name, of, dot]) =>
      `<span><svg viewBox="0 0 29 13" aria-hidden="true">${dot
        ? `<circle class="fill ${of}" cx="14" cy="6.5" r="4"/>`
        : `<path class="stroke ${of}" d="M1 6.5H28"/>`}</svg>${escaped(name)}</span>`).join("");
  }
}

/** A path through points; it breaks where a value is missing. */
function path(xs, ys, sx, sy) {
  let d = "", pen = "M";
  xs.forEach((x, i) => {
    if (!Number.isFinite(ys[i])) { pen = "M"; return; }
    d += `${pen}${sx(x).toFixed(2)} ${sy(ys[i]).toFixed(2)}`;
    pen = "L";
  });
  return d;
}

const MARKS = {
  line: ({ x, y, of }, sx, sy) => `<path class="stroke ${of}" d="${path(x, y, sx, sy)}"/>`,
  area: ({ x, y, base, of }, sx, sy) => `<path class="area ${of}" d="${path(x, y, sx, sy)}L${
    sx(x.at(-1)).toFixed(2)} ${sy(base).toFixed(2)}L${sx(x[0]).toFixed(2)} ${sy(base).toFixed(2)}Z"/>`,
  dots: ({ x, y, of, size, strength }, sx, sy) => x.map((at, i) =>
    `<circle class="fill ${of}" cx="${sx(at).toFixed(2)}" cy="${sy(y[i]).toFixed(2)}" r="${
      (size?.[i] ?? size ?? 4).toFixed?.(2) ?? 4}" fill-opacity="${(strength?.[i] ?? 1).toFixed(3)}"/>`)
    .join(""),
  stems: ({ x, y, of }, sx, sy) => `<path class="stroke thin ${of}" d="${x.map((at, i) =>
    `M${sx(at).toFixed(2)} ${sy(0).toFixed(2)}V${sy(y[i]).toFixed(2)}`).join("")}"/>`,
  bars: ({ x, y, of, width, hollow }, sx, sy) => x.map((at, i) => {
    const [a, b] = [sy(0), sy(y[i])], w = sx(at + width / 2) - sx(at - width / 2);
    return `<rect class="${hollow ? "stroke" : "fill"} ${of}" x="${sx(at - width / 2).toFixed(2)}" y="${
      Math.min(a, b).toFixed(2)}" width="${w.toFixed(2)}" height="${Math.abs(a - b).toFixed(2)}"/>`;
  }).join(""),
  upright: ({ x, of }, sx, sy, { top, bottom }) =>
    `<path class="stroke thin ${of}" d="M${sx(x).toFixed(2)} ${top}V${bottom}"/>`,
  level: ({ y, of }, sx, sy, { left, right }) =>
    `<path class="stroke thin ${of}" d="M${left} ${sy(y).toFixed(2)}H${right}"/>`,
  cells: ({ rows, most, of, least = 0 }, sx, sy) => rows.flatMap((row, r) => row.map((value, c) => {
    const x = sx(c + 0.5), y = sy(r + 0.5), w = sx(c + 1.5) - x, h = sy(r + 1.5) - y;
    const box = `x="${x.toFixed(2)}" y="${y.toFixed(2)}" width="${w.toFixed(2)}" height="${h.toFixed(2)}"`;
    if (value === null) return "";
    if (value === "gone") return `<path class="stroke thin quiet" d="M${x} ${y}l${w} ${h}M${x + w} ${y}l${-w} ${h}"/>`;
    return `<rect class="stroke quiet" style="stroke-width:.4" ${box}/><rect class="fill ${of}" ${box} fill-opacity="${
      Math.min(1, least + (1 - least) * value / most).toFixed(3)}"/>`;
  })).join(""),
  words: ({ x, y, texts, of = "ink", nudge = -8, apart }, sx, sy) =>
    apart && Math.abs(sx(apart) - sx(0)) < 28 ? "" : x.map((at, i) =>
    `<text class="fill ${of}" x="${sx(at).toFixed(1)}" y="${(sy(y[i]) + nudge).toFixed(1)}"
      text-anchor="middle">${escaped(texts[i])}</text>`).join(""),
};

// ---- controls

const state = {}, said = {};  // said: how the value of each control is written
let current, timer;

/** A control of the number `name` of the state; `id`: its own, where several set the same number. */
function addControl({ id, name = id, form = document.querySelector(".controls"), label, unit = "",
  kind = "range", low, high, log, step, options, show }) {
  const box = document.createElement("div");
  const steps = log ? Math.expm1(Math.log(high / low) / 1000) : (high - low) / 1000;
  const count = digits(log ? 1 : Math.max(Math.abs(low), Math.abs(high)), step ?? steps);
  said[name] = value => (show ?? shown)(value, count);
  if (kind === "select") {
    box.innerHTML = `<label for="${id}">${escaped(label)}</label><select id="${id}">${
      options.map(([value, name]) => `<option value="${value}">${escaped(name)}</option>`).join("")
    }</select>`;
  } else {
    const [first, last, by] = log ? [0, 1000, 1] : [low, high, step ?? (high - low) / 1000];
    box.innerHTML = `<label for="${id}"><span>${escaped(label)}</span><output for="${id}"
      aria-hidden="true" aria-live="off"></output>
      </label><input type="range" id="${id}" min="${first}" max="${last}" step="${by}">`;
  }
  form.append(box);
  const input = box.querySelector("input, select");
  input.addEventListener("input", () => set({
    [name]: kind === "select" ? input.value
      : log ? low * (high / low) ** (input.value / 1000) : Number(input.value),
  }));
  return () => {  // the control follows the state
    if (kind === "select") { input.value = state[name]; return; }
    input.value = log ? 1000 * Math.log(state[name] / low) / Math.log(high / low) : state[name];
    const words = `${said[name](state[name])}${unit && ` ${unit}`}`;
    box.querySelector("output").textContent = words;
    input.setAttribute("aria-valuetext", words);
  };
}

function addButtons(buttons, form = document.querySelector(".controls")) {
  const box = document.createElement("div");
  box.className = "buttons";
  for (const [id, label, press] of buttons) {
    const button = document.createElement("button");
    Object.assign(button, { type: "button", id, textContent: label });
    button.addEventListener("click", press);
    box.append(button);
  }
  form.append(box);
}

function set(changes) {
  Object.assign(state, changes);
  current.follow.forEach(follow => follow());
  (current.render ?? render)(changes);
}

function render() {
  const numbers = current.numbers(state), list = document.querySelector(".numbers");
  list.innerHTML = Object.entries(current.table(numbers, state)).map(([name, value]) =>
    `<div><dt>${escaped(name)}</dt><dd>${escaped(shown(value))}</dd></div>`).join("");
  current.draw(state, numbers);
  const words = current.sentence(numbers, state);
  document.querySelector(".sentence").textContent = words;
  speak(words);
}

/** A screen reader hears of the place where a control came to rest. */
function speak(words) {
  clearTimeout(timer);
  timer = setTimeout(() => { document.querySelector(".spoken").textContent = words; }, 300);
}

// ---- the library's own numbers

/** Largest deviation, relative to 1 + |number|, of the page from the library at the marks. */
function check(page) {
  let worst = 0, count = 0;
  const compare = (ours, theirs) => {
    if (Array.isArray(theirs)) { theirs.forEach((value, i) => compare(ours[i], value)); return; }
    count += 1;
    const [a, b] = [ours, theirs].map(v => v === null || Number.isNaN(v) ? "none" : v);
    const gap = a === b ? 0 : Math.abs(a - b) / (1 + Math.abs(b));
    worst = Number.isNaN(gap) ? Infinity : Math.max(worst, gap);
  };
  for (const { at, numbers } of content.marks) {
    const ours = page.numbers({ ...content.begin, ...at });
    for (const name in numbers) compare(ours[name], numbers[name]);
  }
  return { worst, count, places: content.marks.length };
}

function theme(name) {
  document.documentElement.classList.toggle("dark", name === "dark");
}

function begin(page) {
  current = page;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  theme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => theme(dark.matches ? "dark" : "light"));
  addEventListener("beforeprint", () => theme("light"));
  addEventListener("afterprint", () => theme(dark.matches ? "dark" : "light"));
  page.build();
  page.follow = page.controls.map(addControl);
  addButtons([...(page.buttons ?? []), ["theme", "Light or dark", () =>
    theme(document.documentElement.classList.contains("dark") ? "light" : "dark")]]);
  const { worst, count, places } = check(page), line = document.querySelector(".check");
  page.deviation = worst;
  line.textContent = worst <= 1e-6
    ? `${count} numbers at ${places} places agree with the library's to ${worst.toExponential(0)}.`
    : `The numbers of this page deviate from the library's by ${worst.toExponential(0)}.`;
  line.classList.toggle("bad", !(worst <= 1e-6));
  if (!(worst <= 1e-6)) console.error(line.textContent);
  set(content.begin);
  addEventListener("resize", () => page.draw(state, page.numbers(state)));
}
