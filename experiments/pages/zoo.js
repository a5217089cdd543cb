// Kernels of the distance: their shapes, and their estimates on one data set.

const { x, y, names, truth, best, bounds } = content, ends = [Math.min(...x), Math.max(...x)];
const grid = spaced(...ends, 301), title = name => name.replace("_", " ");
const plots = {};

const page = {
  controls: [
    { id: "kernel", label: "kernel of the distance", kind: "select", options: Object.keys(best).map(name => [name, title(name)]) },
    { id: "lengthscale", label: "lengthscale ℓ", log: true, low: bounds[0], high: bounds[1] },
    { id: "query", label: `query: ${names.x}`, low: ends[0], high: ends[1] },
  ],
  buttons: [["best", "Minimum leave-one-out error", () => set({ lengthscale: best[state.kernel] })]],

  build() {
    const onDrag = query => set({ query });
    plots.fit = new Plot("fit", { title: "Estimate", kind: "wide", height: 320, onDrag });
    plots.shape = new Plot("shape", { title: "Kernel", kind: "narrow tall", height: [320, 560] });
    plots.weights = new Plot("weights", { title: "Weights at the query", kind: "wide", height: 180, onDrag });
  },

  numbers({ kernel, lengthscale, query }) {
    const { weights, prediction } = regress(kernel, lengthscale, query, x, y);
    return { weights, prediction, shape: content.distances.map(r => Math.exp(KERNELS[kernel](r))) };
  },

  table: ({ weights, prediction }, { kernel, lengthscale, query }) => ({
    "kernel": title(kernel),
    "lengthscale ℓ (units of x)": said.lengthscale(lengthscale),
    [`estimate (${names.y}) at ${said.query(query)}`]: prediction,
    "points with weight": weights.filter(w => w > 0).length,
    "points that share the weight": share(weights),
  }),

  sentence: ({ prediction, weights }, { kernel, query }) => `${title(kernel)}: at ${said.query(query)} `
    + (Number.isFinite(prediction) ? `the estimate is ${shown(prediction)}, of ${weights.filter(w => w > 0).length} points.`
      : "no point is in reach."),

  draw({ kernel, lengthscale, query }, { weights, prediction }) {
    const domain = limits(ends), height = limits(y);
    const most = Math.max(0, ...weights.filter(w => w > 0));
    const line = grid.map(at => regress(kernel, lengthscale, at, x, y).prediction);
    plots.fit.draw({
      x: { domain, label: names.x }, y: { domain: height, label: names.y },
      marks: [
        { type: "dots", x, y, of: "quiet", size: 3, strength: weights.map(w => 0.25 + 0.75 * (most > 0 ? w / most : 0)) },
        ...(truth ? [{ type: "line", x, y: truth, of: "blue dashed thin" }] : []),
        { type: "line", x: grid, y: line, of: "orange" },
        { type: "upright", x: query, of: "ink dotted" },
        ...(Number.isFinite(prediction) ? [{ type: "dots", x: [query], y: [prediction], of: "ink", size: 6 }] : []),
      ],
      legend: [["points, darker with weight", "quiet", true], ["estimate", "orange"],
        ...(truth ? [["true mean", "blue dashed"]] : []), ["at the query", "ink", true]],
      describe: `Estimate by the ${title(kernel)} kernel of lengthscale ${said.lengthscale(lengthscale)}; at ${
        said.query(query)} it is ${shown(prediction)}.`,
    });
    const r = spaced(-2.5, 2.5, 501), of = name => r.map(at => Math.exp(KERNELS[name](Math.abs(at))));
    plots.shape.draw({
      x: { domain: [-2.5, 2.5], label: "distance, in lengthscales" }, y: { domain: [0, 1.05], label: "K" },
      marks: [
        ...Object.keys(best).map(name => ({ type: "line", x: r, y: of(name), of: "quiet thin dotted" })),
        { type: "line", x: r, y: of(kernel), of: "orange" },
      ],
      legend: [[title(kernel), "orange"], ["the others", "quiet dotted"]],
      describe: `Shape of the ${title(kernel)} kernel against the distance.`,
    });
    plots.weights.draw({
      x: { domain, label: names.x }, y: { domain: [0, 1.06 * most || 1], label: "weight" },
      marks: [
        { type: "stems", x, y: weights.map(w => w > 0 ? w : 0), of: "green" },
        { type: "upright", x: query, of: "ink dotted" },
      ],
      describe: `Weights of the points at ${said.query(query)}; the largest is ${shown(most)}.`,
    });
  },
};
