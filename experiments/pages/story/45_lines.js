// A line in place of a mean, and a band about it.

STEPS.push({
  name: "edges", controls: ["lengthscale", "edge"],
  figures: [{ ...SCENE, title: "A weighted mean and a weighted line", at: state => [state.edge], onQuery: x => set({ edge: x }) }],
  numbers({ rows, lengthscale, edge }) {
    const [constant, line] = [0, 1].map(order => estimateAt(order, lengthscale, edge, rows));
    const errors = [0, 1].map(order => errorAt(order, lengthscale, rows));
    return { weights: polynomialWeights(0, lengthscale, edge, rows.x), constant, line, errors };
  },
  sentence: ({ constant, line, errors }, { edge }) => `At ${said.edge(edge)} the weighted mean is ${shown(constant, 3)}, the end of the `
    + `weighted line ${shown(line, 3)}. Their leave-one-out errors at this ℓ: ${shown(errors[0], 3)} and ${shown(errors[1], 3)}.`,
  draw(state, { weights, constant, line }) {
    const { rows, lengthscale, edge } = state, reach = [edge - 2 * lengthscale, edge + 2 * lengthscale];
    const there = at => total(polynomialLine(lengthscale, edge, rows).map((b, power) => b * ((at - edge) / lengthscale) ** power));
    return { scene: scene(state, {
      query: edge, weights, estimate: line,
      curves: [{ y: kernelCurve(state), of: "orange dashed", name: "weighted means" },
        { y: curveOf(at => estimateAt(1, lengthscale, at, rows)), of: "blue", name: "ends of weighted lines" }],
      before: bell(edge, lengthscale),
      after: [{ type: "line", x: reach, y: reach.map(there), of: "green" }, { type: "dots", x: [edge], y: [constant], of: "orange", size: 5 }],
      legend: [["the line at the dotted place", "green"]],
      describe: `At ${said.edge(edge)} the mean gives ${shown(constant, 3)}, the line ${shown(line, 3)}.`,
    }) };
  },
});

/** Intercept and slope, per lengthscale, of the weighted line at a place. */
function polynomialLine(lengthscale, query, { x, y }) {
  const u = x.map(at => (at - query) / lengthscale), { weights } = normalise(u.map(r => -r * r / 2));
  const moment = power => total(weights.map((w, i) => w * u[i] ** power));
  const product = power => total(weights.map((w, i) => w * u[i] ** power * y[i]));
  return solve([[1, moment(1)], [moment(1), moment(2)]], [product(0), product(1)]) ?? [product(0), 0];
}

STEPS.push({
  name: "bands", controls: ["level", "corrected", "smooth", "query"],
  figures: [{ ...SCENE, title: "A weighted line, and a band of its mean" }],
  numbers({ rows, level, corrected, smooth, query }) {
    const quantile = content.quantiles[level];
    return { ...bandAt(rows, smooth, query, quantile, corrected === "yes"), quantile, noise: noiseVariance(rows, smooth) };
  },
  sentence: ({ low, high, noise }, { level, query }) => `At ${said.query(query)} the ${level} % band of the mean is ${shown(low, 3)} to ${
    shown(high, 3)}. Single runs scatter about the mean by ${shown(Math.sqrt(noise), 2)}, one standard deviation.`,
  draw(state, { centre, low, high, quantile }) {
    const { rows, corrected, smooth, query } = state;
    const band = grid.map(at => bandAt(rows, smooth, at, quantile, corrected === "yes"));
    const inside = rows.x.filter((at, i) => {
      const { low, high } = bandAt(rows, smooth, at, quantile, corrected === "yes");
      return rows.y[i] >= low && rows.y[i] <= high;
    }).length;
    return { scene: scene(state, {
      before: [{ type: "band", x: grid, low: band.map(b => b.low), high: band.map(b => b.high), of: "blue" }],
      curves: [{ y: band.map(b => b.centre), of: "ink", name: "middle of the band" }], estimate: centre,
      after: [{ type: "line", x: [query, query], y: [low, high], of: "ink" }],
      legend: [[`${state.level} % band of the mean: ${inside} of ${rows.x.length} points inside`, "sky"]],
      describe: `At ${said.query(query)} the band runs from ${shown(low, 3)} to ${shown(high, 3)}; ${inside} of the points lie inside it.`,
      who: noticed(state) >= 0 ? whoVotes(state) : undefined,
    }) };
  },
});
