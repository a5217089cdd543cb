// The lengthscale and the query: the kernel's bump, the weights, the estimate, leave-one-out.

const { x, y, kernel, sink, factor, names, bounds, best, curve, truth } = content;
const estimate = (lengthscale, query) => regress(kernel, lengthscale / factor, query, x, y, sink);
const ends = [Math.min(...x), Math.max(...x)];
const grid = spaced(...ends, 201);
const plots = {};

const page = {
  controls: [
    { id: "lengthscale", label: "lengthscale ℓ", log: true, low: bounds[0], high: bounds[1] },
    { id: "query", label: `query: ${names.x}`, low: ends[0], high: ends[1] },
  ],
  buttons: [["best", "Least leave-one-out error", () => set({ lengthscale: best })]],

  build() {
    const onDrag = query => set({ query });
    plots.fit = new Plot("fit", { title: "Points, kernel, estimate", kind: "wide", height: 300, onDrag });
    plots.criterion = new Plot("criterion", {
      title: "Leave-one-out error", kind: "narrow tall", height: [300, 540],
      onDrag: lengthscale => set({ lengthscale }),
    });
    plots.weights = new Plot("weights", { title: "Weights at the query", kind: "wide", height: 180, onDrag });
  },

  numbers({ lengthscale, query }) {
    const { weights, prediction } = estimate(lengthscale, query);
    return {
      prediction, weights, entropy: entropy(weights),
      leave_one_out: leaveOneOut(kernel, lengthscale / factor, x, y, sink),
    };
  },

  table: ({ prediction, weights, entropy, leave_one_out }, { lengthscale, query }) => ({
    "lengthscale ℓ (units of x)": lengthscale,
    "temperature τ = σ² (σ: its standard deviation)": (lengthscale / factor) ** 2,
    [`query (${names.x})`]: query,
    [`estimate (${names.y})`]: prediction,
    "entropy of the weights (nats)": entropy,
    "points that share the weight, exp(entropy)": Math.exp(entropy),
    "largest weight": Math.max(...weights),
    "leave-one-out error (mean square)": leave_one_out,
  }),

  sentence({ prediction, entropy, leave_one_out }, { query }) {
    const share = Math.exp(entropy), least = Math.min(...curve.y);
    const regime = share < 1.5 ? "One point has nearly all the weight: a step function, the nearest label."
      : share > 0.8 * x.length ? "All points have nearly the same weight: the mean of all labels."
      : `${shown(share, 3)} points share the weight.`;
    return `At ${shown(query)} the estimate is ${shown(prediction)}. ${regime} The leave-one-out `
      + `error is ${leave_one_out / least < 1.0005 ? "the least" : `${shown(leave_one_out / least, 3)} times the least`}.`;
  },

  draw({ lengthscale, query }, { prediction, weights, leave_one_out }) {
    const domain = limits(ends), height = limits(y);
    const most = Math.max(...weights), bump = 0.25 * (height[1] - height[0]);
    const line = grid.map(at => estimate(lengthscale, at).prediction);
    const around = spaced(...domain, 401);
    const shape = around.map(at =>
      height[0] + bump * Math.exp(KERNELS[kernel](Math.abs(query - at) * factor / lengthscale)));
    plots.fit.draw({
      x: { domain, label: names.x }, y: { domain: height, label: names.y },
      marks: [
        { type: "area", x: around, y: shape, base: height[0], of: "green" },
        { type: "line", x: around, y: shape, of: "green thin" },
        { type: "dots", x, y, of: "quiet", size: 3, strength: weights.map(w => 0.25 + 0.75 * w / most) },
        ...(truth ? [{ type: "line", x, y: truth, of: "blue dashed thin" }] : []),
        { type: "line", x: grid, y: line, of: "orange" },
        { type: "upright", x: query, of: "ink dotted" },
        { type: "dots", x: [query], y: [prediction], of: "ink", size: 6 },
      ],
      legend: [
        ["points, darker with weight", "quiet", true], ["estimate", "orange"],
        ...(truth ? [["true mean", "blue dashed"]] : []), ["kernel, scaled", "green"],
        ["at the query", "ink", true],
      ],
      describe: `${x.length} points of ${names.y} against ${names.x}, with the estimate at `
        + `lengthscale ${shown(lengthscale)}; at ${shown(query)} it is ${shown(prediction)}.`,
    });
    plots.weights.draw({
      x: { domain, label: names.x }, y: { domain: [0, 1.06 * most], label: "weight" },
      marks: [
        { type: "stems", x, y: weights, of: "green" },
        { type: "upright", x: query, of: "ink dotted" },
      ],
      describe: `Weights of the points at ${shown(query)}; the largest is ${shown(most)}.`,
    });
    plots.criterion.draw({
      x: { domain: bounds, log: true, label: "lengthscale ℓ (units of x)" },
      y: { domain: limits(curve.y), label: "mean squared error" },
      marks: [
        { type: "line", x: curve.x, y: curve.y, of: "blue" },
        { type: "upright", x: best, of: "quiet dashed" },
        { type: "dots", x: [lengthscale], y: [leave_one_out], of: "orange", size: 6 },
      ],
      legend: [["all lengthscales", "blue"], ["the least", "quiet dashed"], ["here", "orange", true]],
      describe: `Leave-one-out error against the lengthscale: least at ${shown(best)}, where it is `
        + `${shown(Math.min(...curve.y))}; here it is ${shown(leave_one_out)}.`,
    });
  },
};
