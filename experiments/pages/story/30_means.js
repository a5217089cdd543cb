// From one average to a soft window: the first four steps.

STEPS.push({
  name: "data", controls: ["query"], figures: [{ ...SCENE, title: isPublished ? "88 runs of an engine" : `${rowCount} points` }],
  numbers: ({ rows }) => ({ count: rows.x.length }),
  sentence: ({ count }, { query, rows }) => `${count} points. The nearest to the dotted line, at `
    + `${said.query(query)}, is at ${shown(nearestTo(rows.x, query))}.`,
  draw: state => ({ scene: scene(state, { describe: `A dotted line stands at ${said.query(state.query)}.` }) }),
});

const nearestTo = (x, query) => x.reduce((best, at) => Math.abs(at - query) < Math.abs(best - query) ? at : best);

STEPS.push({
  name: "average", controls: ["query"], figures: [{ ...SCENE, title: "The average of all" }],
  numbers: ({ rows }) => ({ estimate: total(rows.y) / rows.y.length }),
  sentence: ({ estimate }, { query, rows }) => `The average of all ${rows.y.length} is ${shown(estimate)}: `
    + `at ${said.query(query)}, and at every other place.`,
  draw: (state, { estimate }) => ({ scene: scene(state, {
    curves: [{ y: grid.map(() => estimate), of: "orange", name: "average" }], estimate,
    weights: state.rows.x.map(() => 1 / state.rows.x.length), describe: `The average is ${shown(estimate)} everywhere.`,
  }) }),
});

STEPS.push({
  name: "window", controls: ["width", "query"], figures: [{ ...SCENE, title: "The average of a window" }],
  numbers: ({ rows, width, query }) => {
    const { weights, prediction } = regress("boxcar", width, query, rows.x, rows.y);
    return { weights, estimate: prediction, count: weights.filter(w => w > 0).length };
  },
  sentence: ({ estimate, count }, { query, width }) => count === 0
    ? `No point is within ${said.width(width)} of ${said.query(query)}: there is no estimate.`
    : `${count} ${count === 1 ? "point is" : "points are"} within ${said.width(width)} of ${said.query(query)}: `
      + `${count === 1 ? "its value" : "their average"} is ${shown(estimate)}.`,
  draw(state, { weights, estimate }) {
    const { rows, width, query } = state;
    return { scene: scene(state, {
      before: [{ type: "band", x: [query - width, query + width], low: [height[0], height[0]], high: [height[1], height[1]], of: "green" }],
      curves: [{ y: curveOf(at => regress("boxcar", width, at, rows.x, rows.y).prediction), of: "orange", name: "average of the window" }],
      weights, estimate, describe: `At ${said.query(query)} the window's average is ${shown(estimate)}.`,
    }) };
  },
});

/** The bell of a kernel about the query, drawn from the floor of the axes. */
function bell(query, lengthscale) {
  const x = spaced(...domain, 301), room = 0.3 * (height[1] - height[0]);
  const y = x.map(at => height[0] + room * Math.exp(KERNELS.gaussian(Math.abs(at - query) / lengthscale)));
  return [{ type: "area", x, y, base: height[0], of: "green" }, { type: "line", x, y, of: "green thin" }];
}

const kernelCurve = ({ rows, lengthscale }) => curveOf(at => estimateAt(0, lengthscale, at, rows));

STEPS.push({
  name: "kernel", controls: ["lengthscale", "query"], figures: [{ ...SCENE, title: "A mean with soft weights" }],
  numbers: ({ rows, lengthscale, query }) => {
    const { weights, prediction } = regress("gaussian", lengthscale, query, rows.x, rows.y);
    return { weights, estimate: prediction, share: share(weights) };
  },
  sentence: ({ estimate, weights, share }, { query }) => `At ${said.query(query)} the estimate is ${shown(estimate)}. `
    + `The largest weight is ${percent(Math.max(...weights))}; it is as if ${shown(share, 2)} points shared the weight.`,
  draw: (state, { weights, estimate }) => ({ scene: scene(state, {
    before: bell(state.query, state.lengthscale), weights, estimate,
    curves: [{ y: kernelCurve(state), of: "orange", name: "weighted mean" }], legend: [["kernel", "green"]],
    describe: `The kernel's weighted mean at ${said.query(state.query)} is ${shown(estimate)}.`,
  }) }),
});
