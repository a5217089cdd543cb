// Temperature and prior: the softmax, its objective, and its regimes.

const keys = content.prior.length, [coldest, hottest] = content.range;
const temperatures = geometric(coldest, hottest, 161);
const COLOURS = ["blue", "orange", "green", "purple", "ink", "sky"];
const DASHES = ["", "dashed", "dotted", "dashdot"];
const style = i => `${COLOURS[i % 6]} ${DASHES[(i + Math.floor(i / 6)) % 4]}`;  // of 12 all differ
const plots = {};

/** r, the prior to the power of its strength. */
function priorAt(strength) {
  return normalise(content.prior.map(r => strength * Math.log(r))).weights;
}

function solve(scores, prior, temperature) {
  const { weights } = normalise(scores.map((s, i) => s / temperature + Math.log(prior[i])));
  const match = mean(weights, scores);
  const divergence = total(weights.map((a, i) => a > 0 ? a * Math.log(a / prior[i]) : 0));
  const term = -temperature * divergence;
  return { weights, match, divergence, term, objective: match + term, entropy: entropy(weights) };
}

const scoresOf = state => range(keys).map(i => state[`score${i}`]);
const widest = Math.max(3, ...scoresOf(content.begin).map(Math.abs));

const page = {
  controls: [
    { id: "temperature", label: "temperature τ", log: true, low: coldest, high: hottest },
    { id: "strength", label: "prior: 0 uniform, 1 as given", low: 0, high: 1, step: 0.01 },
    ...range(keys).map(i => ({
      id: `score${i}`, label: `score of key ${i + 1}`, low: -widest, high: widest, step: 0.05,
    })),
  ],
  buttons: [
    ["cold", "Coldest", () => set({ temperature: coldest })],
    ["hot", "Hottest", () => set({ temperature: hottest })],
    ["reset", "As it began", () => set(content.begin)],
  ],

  build() {
    plots.scores = new Plot("scores", { title: "Scores", height: 220 });
    plots.weights = new Plot("weights", { title: "Retrieval distribution", height: 220 });
    const onDrag = temperature => set({ temperature });
    plots.objective = new Plot("objective", { title: "Objective at its maximum", height: 260, onDrag });
    plots.regimes = new Plot("regimes", { title: "Weights against the temperature", height: 260, onDrag });
  },

  numbers: state => ({ ...solve(scoresOf(state), priorAt(state.strength), state.temperature),
    prior: priorAt(state.strength) }),

  table: ({ match, term, objective, divergence, entropy, weights }, { temperature }) => ({
    "temperature τ": temperature,
    "match Σ a s": match,
    "divergence KL(a‖r) (nats)": divergence,
    "cost −τ KL(a‖r)": term,
    "objective": objective,
    "entropy H(a) (nats)": entropy,
    "keys that share the weight, exp(H)": Math.exp(entropy),
    "weights a": weights.map(a => Number(a.toFixed(4))),
  }),

  sentence({ weights, prior, divergence, entropy }, state) {
    const first = weights.indexOf(Math.max(...weights)) + 1;
    if (Math.exp(entropy) < 1.1) return `Cold: key ${first} has nearly all the weight, as an argmax.`;
    if (divergence < 0.02) return `Hot: the weights are nearly the prior, ${shown(prior, 2)}; the scores say little.`;
    return `Between: ${shown(Math.exp(entropy), 3)} keys share the weight; key ${first} has most, `
      + `${shown(Math.max(...weights), 3)}.`;
  },

  draw(state, { weights, prior, match, term, objective }) {
    const scores = scoresOf(state), places = range(keys).map(i => i + 1);
    const names = Object.fromEntries(places.map(i => [i, `key ${i}`]));
    const x = { domain: [0.4, keys + 0.6], ticks: places, names, label: "" };
    plots.scores.draw({
      x, y: { domain: [-1.1 * widest, 1.1 * widest], label: "score s" },
      marks: [
        { type: "bars", x: places, y: scores, of: "blue", width: 0.5 },
        { type: "level", y: 0, of: "quiet" },
      ],
      describe: `Scores of the keys: ${shown(scores)}.`,
    });
    plots.weights.draw({
      x, y: { domain: [0, 1.08], label: "weight" },
      marks: [
        { type: "bars", x: places, y: weights, of: "orange", width: 0.5 },
        { type: "bars", x: places, y: prior, of: "ink thin", width: 0.7, hollow: true },
        { type: "words", x: places, y: weights.map((a, i) => Math.max(a, prior[i])),
          texts: weights.map(a => a.toFixed(2)), nudge: -5, apart: 1 },
      ],
      legend: [["weight a", "orange", true], ["prior r", "ink"]],
      describe: `Weights ${shown(weights, 3)} beside the prior ${shown(prior, 3)}.`,
    });
    const found = temperatures.map(tau => solve(scores, prior, tau));
    const here = { type: "upright", x: state.temperature, of: "ink dotted" };
    const log = { domain: content.range, log: true, label: "temperature τ" };
    const lines = { match: "blue dashed", term: "purple dotted", objective: "ink" };
    plots.objective.draw({
      x: log, y: { domain: limits(Object.keys(lines).map(name => found.map(f => f[name]))), label: "units of the scores" },
      marks: [
        ...Object.entries(lines).map(([name, of]) =>
          ({ type: "line", x: temperatures, y: found.map(f => f[name]), of })),
        here,
        { type: "dots", x: [1, 1, 1].map(() => state.temperature), y: [match, term, objective],
          of: "orange", size: 5 },
      ],
      legend: [["match Σ a s", "blue dashed"], ["−τ KL(a‖r)", "purple dotted"], ["objective", "ink"],
        ["here", "orange", true]],
      describe: `Match, cost and objective against the temperature; here ${shown([match, term, objective])}.`,
    });
    plots.regimes.draw({
      x: log, y: { domain: [0, 1.02], label: "weight" },
      marks: [
        ...range(keys).map(i => ({ type: "line", x: temperatures, y: found.map(f => f.weights[i]), of: style(i) })),
        here,
        { type: "dots", x: weights.map(() => state.temperature), y: weights, of: "ink", size: 4 },
      ],
      legend: range(keys).map(i => [`key ${i + 1}`, style(i)]),
      describe: "Weights against the temperature: one key when cold, the prior when hot.",
    });
  },
};
