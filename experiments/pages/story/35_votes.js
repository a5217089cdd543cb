// The same weights as a softmax, and what each point adds.

const scoresAt = ({ rows, query }) => rows.x.map(at => -((at - query) ** 2) / 2);

STEPS.push({
  name: "softmax", controls: ["lengthscale", "query"],
  figures: [
    { id: "scores", title: "1. A score for each point: minus half its squared distance", height: [190, 200], at: SCENE.at, onQuery: SCENE.onQuery },
    { id: "weights", title: "2. Divided by τ, exponential, made to add up to one: the weights", height: [190, 200], at: SCENE.at, onQuery: SCENE.onQuery },
  ],
  numbers(state) {
    const temperature = state.lengthscale ** 2, { weights } = normalise(scoresAt(state).map(s => s / temperature));
    return { temperature, weights, estimate: mean(weights, state.rows.y) };
  },
  sentence: ({ temperature, weights, estimate }, { rows }) => `τ = ℓ² = ${shown(temperature)}. The weights add up to ${
    shown(total(weights))}; the weighted mean of the ${rows.y.length} values is ${shown(estimate)}.`,
  draw(state, { weights, temperature }) {
    const { rows, query } = state, scores = scoresAt(state), x = { domain, label: names.x };
    const here = { type: "upright", x: query, of: "ink dotted" };
    return {
      scores: {
        x, y: { domain: [Math.min(...scores) * 1.05, -Math.min(...scores) * 0.08], label: "score" },
        marks: [{ type: "level", y: 0, of: "quiet" }, { type: "stems", x: rows.x, y: scores, of: "blue" }, here],
        describe: `Scores: 0 at the dotted line, ${said.query(query)}, and lower with the distance.`,
      },
      weights: {
        x, y: { domain: [0, 1.08 * Math.max(...weights)], label: "weight" },
        marks: [{ type: "stems", x: rows.x, y: weights, of: "green" }, here],
        describe: `Weights by the softmax with temperature ${shown(temperature)}: the largest is ${percent(Math.max(...weights))}.`,
      },
    };
  },
});

/** The point under the pointer, or else that of the control. */
const chosen = state => noticed(state) >= 0 ? noticed(state) : state.point - 1;

STEPS.push({
  name: "votes", controls: ["point", "query"],
  figures: [
    { ...SCENE, title: "Who votes at the dotted line" },
    { id: "influence", title: "For whom one point votes", height: [190, 200], at: SCENE.at, onQuery: SCENE.onQuery },
  ],
  numbers({ rows, lengthscale, query }) {
    const { weights, prediction } = regress("gaussian", lengthscale, query, rows.x, rows.y);
    const largest = [...weights].sort((a, b) => b - a).slice(0, 10);
    return {
      weights, votes: weights.map((w, i) => w * rows.y[i]), estimate: prediction,
      effective: 1 / total(weights.map(w => w * w)), share: total(largest),
    };
  },
  sentence({ weights, votes, estimate, effective, share }, state) {
    const i = chosen(state);
    return `At ${said.query(state.query)} point ${i + 1} has weight ${percent(weights[i])} and adds ${shown(votes[i], 3)}; `
      + `all points together add up to ${shown(estimate)}, the estimate. The ten largest weights are ${percent(share)} `
      + `of it, and the weights are as uneven as if ${shown(effective)} points voted alike.`;
  },
  draw(state, { weights, estimate }) {
    const { rows, lengthscale, query } = state, i = chosen(state);
    const most = Math.max(...weights);
    const influence = grid.map(at => regress("gaussian", lengthscale, at, rows.x, rows.y).weights[i]);
    return {
      scene: scene(state, {
        before: [{ type: "rays", x: rows.x, y: rows.y, to: [query, estimate], of: "green", strength: weights.map(w => w / most) }],
        after: [{ type: "ring", x: rows.x[i], y: rows.y[i], of: "purple" }],
        curves: [{ y: kernelCurve(state), of: "orange", name: "weighted mean" }], weights, estimate,
        legend: [["votes, stronger with weight", "green"], [`point ${i + 1}`, "purple"]],
        describe: `Point ${i + 1} has weight ${percent(weights[i])} at ${said.query(query)}.`,
      }),
      influence: {
        x: { domain, label: names.x }, y: { domain: [0, 1.08 * Math.max(...influence)], label: "weight" },
        marks: [
          { type: "area", x: grid, y: influence, base: 0, of: "purple" }, { type: "line", x: grid, y: influence, of: "purple" },
          { type: "upright", x: rows.x[i], of: "purple dashed" }, { type: "upright", x: query, of: "ink dotted" },
        ],
        legend: [[`weight of point ${i + 1} at each place`, "purple"]],
        describe: `Point ${i + 1}, at ${shown(rows.x[i], 3)}, has most weight, ${percent(Math.max(...influence))}, near its own place.`,
      },
    };
  },
});
