// Kinds of causal attention: what a kernel of contents and a prior of positions make of tokens.

const { tokens } = content, count = tokens.length, lengths = range(12).map(i => 2 ** (i + 6));
const KINDS = {
  softmax: "softmax of a dot product", linear: "linear attention", window: "local window",
  ALiBi: "ALiBi: linear decay", T5: "T5: a table of distances",
};
const STYLES = { softmax: "ink", linear: "green dotted", window: "orange", ALiBi: "purple dashdot", T5: "blue dashed" };
const plots = {};

const dot = (a, b) => total(a.map((value, i) => value * b[i]));
const feature = a => a.map(value => value > 0 ? value + 1 : Math.exp(value));

/** log π of a kind of attention against the distance back, and log K of two tokens. */
function logPrior({ attention, window, slope }, back) {
  if (attention === "window") return back <= window ? 0 : -Infinity;
  if (attention === "ALiBi") return -slope * back;
  return attention === "T5" ? content.t5[back] : 0;
}

function logKernel({ attention }, q, k) {
  return attention === "linear" ? Math.log(dot(feature(q), feature(k))) : dot(q, k) / Math.sqrt(q.length);
}

const rowOf = (state, t) => normalise(range(t + 1).map(i =>
  logKernel(state, tokens[t], tokens[i]) + logPrior(state, t - i))).weights;

/** Multiplications of one head over N tokens: two products of d for each pair, or for each feature. */
const cost = {
  softmax: (n, d) => n * (n + 1) / 2 * 2 * d,
  window: (n, d, w) => n * Math.min(n, w + 1) * 2 * d,
  linear: (n, d) => n * 2 * d * d,
};

const page = {
  controls: [
    { id: "attention", label: "attention", kind: "select", options: Object.entries(KINDS) },
    { id: "window", label: "window, tokens back", low: 0, high: count - 1, step: 1 },
    { id: "slope", label: "slope of ALiBi", log: true, low: 0.01, high: 3 },
    { id: "token", label: "token that asks", low: 1, high: count, step: 1 },
  ],

  build() {
    plots.rows = new Plot("rows", { title: "Weights of all tokens", kind: "narrow", height: 380 });
    plots.row = new Plot("row", { title: "Weights of the token that asks", kind: "wide", height: 380 });
    plots.prior = new Plot("prior", { title: "Prior of the position", height: 240 });
    plots.cost = new Plot("cost", { title: "Cost as the sequence grows", height: 240 });
  },

  numbers: state => ({ row: rowOf(state, state.token - 1) }),

  table: ({ row }, { attention, token }) => ({
    "attention": KINDS[attention],
    "token that asks": token,
    "tokens that share the weight": Math.exp(entropy(row)),
    "largest weight of a token": Math.max(...row),
  }),

  sentence({ row }, { attention, token }) {
    const first = row.indexOf(Math.max(...row)) + 1;
    return `${KINDS[attention]}: token ${token} looks most at token ${first}, with ${shown(Math.max(...row), 2)}.`;
  },

  draw(state, { row }) {
    const { window, slope, token } = state;
    const rows = range(count).map(t => range(count).map(i => i <= t ? rowOf(state, t)[i] : null));
    const places = [1, 6, 12, 18, 24].filter(i => i <= count);
    const axis = { domain: [0.5, count + 0.5], ticks: places };
    plots.rows.draw({
      x: { ...axis, label: "key" }, y: { domain: [count + 0.5, 0.5], ticks: places, label: "query" },
      marks: [
        { type: "cells", rows, most: 0.5, of: "blue" },
        { type: "level", y: token, of: "orange" },
      ],
      legend: [["weight: 0 empty, 0.5 and more full", "blue", true], ["token that asks", "orange"]],
      describe: `Weights of ${count} queries for ${count} keys, causal, by ${KINDS[state.attention]}.`,
    });
    plots.row.draw({
      x: { ...axis, label: "key" }, y: { domain: [0, Math.max(0.1, 1.1 * Math.max(...row))], label: "weight" },
      marks: [{ type: "bars", x: range(row.length).map(i => i + 1), y: row, of: "blue", width: 0.7 }],
      describe: `Weights of token ${token} for the tokens up to it.`,
    });
    const back = range(count), edges = back.flatMap(b => [b - 0.5, b + 0.5]);
    const shapes = Object.keys(KINDS).filter(kind => kind !== "linear").map(kind => [kind, back.flatMap(b => {
      const value = Math.exp(logPrior({ attention: kind, window, slope }, b));
      return [value, value];
    })]);
    plots.prior.draw({
      x: { domain: [-0.5, count - 0.5], label: "distance back, tokens" },
      y: { domain: [0, 1.05 * Math.max(1, ...shapes.flatMap(([, s]) => s))], label: "π" },
      marks: shapes.map(([kind, s]) => ({ type: "line", x: edges, y: s, of: STYLES[kind] })),
      legend: shapes.map(([kind]) => [{ softmax: "none", window: "window", ALiBi: "ALiBi", T5: "T5" }[kind], STYLES[kind]]),
      describe: "What each prior gives a position against its distance.",
    });
    const d = content.dim, costs = Object.entries(cost).map(([kind, f]) => [kind, lengths.map(n => f(n, d, window))]);
    plots.cost.draw({
      x: { domain: [lengths[0], lengths.at(-1)], log: true, label: "tokens N" },
      y: { domain: [costs[0][1][0] / 50, 2 * costs[0][1].at(-1)], log: true, label: "multiplications" },
      marks: costs.map(([kind, s]) => ({ type: "line", x: lengths, y: s, of: STYLES[kind] })),
      legend: costs.map(([kind]) => [`${kind}, d = ${d}`, STYLES[kind]]),
      describe: "Multiplications of one head: with the square of N by softmax, with N by a window and by linear attention.",
    });
  },
};
