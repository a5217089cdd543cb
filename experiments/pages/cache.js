// Decoding token by token: what the cache holds, the weights of the query, the output.

const { words, values, patterns, ring } = content;
const count = words.length, size = patterns.random.k[0].length;
const PATTERNS = {
  broadcast: "broadcast: all alike", subject: `subject pointer: "${words[content.subject]}"`,
  previous: "previous token", random: "random queries and keys",
};
const CACHES = { full: "full: all keys and values", ring: `ring: the last ${ring}`, sum: "one sum (linear attention)" };
const plots = {};
let playing;

const dot = (a, b) => total(a.map((value, i) => value * b[i]));
const feature = a => a.map(value => value > 0 ? value + 1 : Math.exp(value));

/** Tokens whose keys and values the cache holds when token t (from 0) asks. */
const held = (kind, t) => range(t + 1).filter(i => kind !== "ring" || i > t - ring);

/** One step: the weights that the query finds, and the output. */
function step({ pattern, cache }, t) {
  const { q, k } = patterns[pattern], weights = range(count).map(() => 0);
  if (cache === "sum") {  // never looks back: two sums, to which each token has added
    const sums = { mass: range(size).map(() => 0), moments: values[0].map(() => range(size).map(() => 0)) };
    for (const i of range(t + 1)) feature(k[i]).forEach((f, m) => {
      sums.mass[m] += f;
      values[i].forEach((v, c) => { sums.moments[c][m] += f * v; });
    });
    const asked = feature(q[t]), mass = dot(asked, sums.mass);
    range(t + 1).forEach(i => { weights[i] = dot(asked, feature(k[i])) / mass; });
    return { weights, output: sums.moments.map(row => dot(asked, row) / mass) };
  }
  const inside = held(cache, t), logs = inside.map(i => dot(q[t], k[i]) / Math.sqrt(size));
  normalise(logs).weights.forEach((w, place) => { weights[inside[place]] = w; });
  return { weights, output: values[0].map((_, c) => mean(weights, values.map(v => v[c]))) };
}

/** Numbers that the cache holds: keys and values, or the two sums. */
function room({ cache }, t) {
  const each = size + values[0].length;
  return cache === "sum" ? size * (values[0].length + 1) : each * held(cache, t).length;
}

function play() {
  if (playing) { clearInterval(playing); playing = undefined; }
  else {
    if (state.token === count) set({ token: 1 });
    playing = setInterval(() => state.token < count ? set({ token: state.token + 1 }) : play(), 900);
  }
  document.getElementById("play").textContent = playing ? "Pause" : "Play";
}

const page = {
  controls: [
    { id: "token", label: "token t", low: 1, high: count, step: 1, show: t => `${t}: ${words[t - 1]}` },
    { id: "pattern", label: "pattern", kind: "select", options: Object.entries(PATTERNS) },
    { id: "cache", label: "cache", kind: "select", options: Object.entries(CACHES) },
  ],
  buttons: [
    ["back", "Back", () => set({ token: Math.max(1, state.token - 1) })],
    ["next", "Next token", () => set({ token: Math.min(count, state.token + 1) })],
    ["play", "Play", play],
  ],

  build() {
    plots.weights = new Plot("weights", { title: "Weights of the query for what the cache holds", kind: "wide", height: 280 });
    plots.output = new Plot("output", { title: "Values, and the output among them", kind: "narrow", height: 280 });
    plots.rows = new Plot("rows", { title: "All queries so far", kind: "wide", height: 360 });
    plots.room = new Plot("room", { title: "Numbers held", kind: "narrow", height: 360 });
  },

  numbers: state => ({ ...step(state, state.token - 1), room: room(state, state.token - 1) }),

  table: ({ weights, output, room }, { token }) => ({
    "token": `${token}: ${words[token - 1]}`,
    "output": output,
    "largest weight": Math.max(...weights),
    "tokens that share the weight": Math.exp(entropy(weights)),
    "numbers held": room,
  }),

  sentence({ weights, output, room }, { token, cache }) {
    const first = weights.indexOf(Math.max(...weights));
    return `Token ${token}, "${words[token - 1]}", looks most at "${words[first]}" (${
      shown(weights[first], 2)}); its output is (${shown(output, 3)}). The cache, ${CACHES[cache]}, holds ${room} numbers.`;
  },

  draw(state, { weights, output }) {
    const t = state.token - 1, inside = held(state.cache, t), places = range(count).map(i => i + 1);
    const names = Object.fromEntries(places.map(i => [i, words[i - 1]]));
    const gone = range(t + 1).filter(i => !inside.includes(i));
    const x = { domain: [0.4, count + 0.6], ticks: places, names, label: "token whose key it is" };
    plots.weights.draw({
      x, y: { domain: [0, 1.12], label: "weight α" },
      marks: [
        { type: "bars", x: inside.map(i => i + 1), y: inside.map(() => 1), of: "quiet thin dotted", width: 0.9, hollow: true },
        { type: "bars", x: places, y: weights, of: "blue", width: 0.7 },
        { type: "words", x: inside.map(i => i + 1), y: inside.map(i => weights[i]), texts: inside.map(i => weights[i].toFixed(2)), nudge: -5, apart: 1 },
        { type: "words", x: gone.map(i => i + 1), y: gone.map(() => 0.45), texts: gone.map(() => "×"), of: "quiet" },
        { type: "upright", x: t + 1, of: "orange dotted" },
      ],
      legend: [["weight", "blue", true], ["in the cache", "quiet dotted"], ["the token that asks", "orange dotted"],
        ...(gone.length ? [["× dropped by the ring", "quiet", true]] : [])],
      describe: `Weights of token ${t + 1}: ${inside.map(i => `${words[i]} ${weights[i].toFixed(2)}`).join(", ")}.`,
    });
    const [first, second] = [0, 1].map(c => values.map(v => v[c]));
    plots.output.draw({
      x: { domain: [-1.3, 1.3], label: "first number of v" }, y: { domain: [-1.3, 1.45], label: "second number" },
      marks: [
        ...inside.map(i => ({ type: "line", x: [values[i][0], output[0]], y: [values[i][1], output[1]], of: "quiet thin dotted" })),
        { type: "dots", x: first.slice(0, t + 1), y: second.slice(0, t + 1), of: "blue",
          size: weights.slice(0, t + 1).map(w => 3 + 9 * Math.sqrt(w)), strength: range(t + 1).map(i => inside.includes(i) ? 0.8 : 0.15) },
        { type: "words", x: first.slice(0, t + 1), y: second.slice(0, t + 1), texts: words.slice(0, t + 1), nudge: -14 },
        { type: "dots", x: [output[0]], y: [output[1]], of: "orange", size: 6 },
      ],
      legend: [["values, larger with weight", "blue", true], ["output", "orange", true]],
      describe: `The output, (${shown(output, 3)}), is the mean of the values by their weights.`,
    });
    const rows = range(count).map(row => {
      const found = row <= t ? step(state, row).weights : [];
      return range(count).map(i => row > t || i > row ? null : !held(state.cache, row).includes(i) ? "gone" : found[i]);
    });
    plots.rows.draw({
      x: { ...x, label: "key" }, y: { domain: [count + 0.5, 0.5], ticks: places, names, label: "" },
      marks: [{ type: "cells", rows, most: 1, of: "blue" }],
      legend: [["weight: 0 empty, 1 full", "blue", true], ...(gone.length ? [["× dropped", "quiet", true]] : [])],
      describe: `Weights of the ${t + 1} queries so far, a row each; no query sees a later key.`,
    });
    const held_by = Object.keys(CACHES).map(cache => [cache, range(count).map(i => room({ cache }, i))]);
    const styles = { full: "ink", ring: "orange dashed", sum: "green dotted" };
    plots.room.draw({
      x: { domain: [1, count], label: "token t" }, y: { domain: limits(0, held_by.map(([, n]) => n)), label: "numbers" },
      marks: [
        ...held_by.map(([cache, n]) => ({ type: "line", x: places, y: n, of: styles[cache] })),
        { type: "upright", x: t + 1, of: "ink dotted" },
      ],
      legend: held_by.map(([cache]) => [cache === "sum" ? "one sum" : cache, styles[cache]]),
      describe: "Numbers that each cache holds: growing, levelling off, constant.",
    });
  },
};
