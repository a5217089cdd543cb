// The lengthscale and the query: the kernel's bump, the weights, the estimate, leave-one-out.

const { x, y, kernel, sink, factor, names, dial, bounds, best, curve, truth } = content;
const DIALS = {  // what is moved: its name, its sign, and the lengthscale that it stands for
  lengthscale: { label: "lengthscale ℓ", unit: " (units of x)", lengthscaleOf: value => value },
  temperature: { label: "temperature τ", unit: " (units of x, squared)", lengthscaleOf: value => factor * Math.sqrt(value) },
};
const { label, unit, lengthscaleOf } = DIALS[dial];
const estimate = (lengthscale, query) => regress(kernel, lengthscale / factor, query, x, y, sink);
const ends = [Math.min(...x), Math.max(...x)];
const grid = spaced(...ends, 201);
const plots = {}, errors = new Map();  // errors: by lengthscale, for a query that moves alone

const page = {
  controls: [
    { id: dial, label, log: true, low: bounds[0], high: bounds[1] },
    { id: "query", label: `query: ${names.x}`, low: ends[0], high: ends[1] },
  ],
  buttons: [["best", "Minimum leave-one-out error", () => set({ [dial]: best })]],

  build() {
    for (const only of document.querySelectorAll("[data-kernel]")) {
      only.hidden = only.dataset.kernel !== kernel;
    }
    const onDrag = query => set({ query });
    plots.fit = new Plot("fit", { title: "Points, kernel, estimate", kind: "wide", height: 300, onDrag });
    plots.criterion = new Plot("criterion", {
      title: "Leave-one-out error", kind: "narrow tall", height: [300, 540],
      onDrag: value => set({ [dial]: value }),
    });
    plots.weights = new Plot("weights", { title: "Weights at the query", kind: "wide", height: 180, onDrag });
  },

  numbers({ [dial]: value, query }) {
    const lengthscale = lengthscaleOf(value);
    const { weights, prediction } = estimate(lengthscale, query);
    if (!errors.has(lengthscale)) {
      if (errors.size > 1000) errors.clear();
      errors.set(lengthscale, leaveOneOut(kernel, lengthscale / factor, x, y, sink));
    }
    return {
      prediction, weights, entropy: entropy(weights), leave_one_out: errors.get(lengthscale),
    };
  },

  table: ({ prediction, weights, entropy, leave_one_out }, { [dial]: value, query }) => ({
    [`${label}${unit}`]: said[dial](value),
    ...(dial === "temperature" ? { "lengthscale ℓ = √τ (units of x)": lengthscaleOf(value) / factor }
      : kernel === "gaussian" ? { "temperature τ = σ² (σ: its standard deviation)": (value / factor) ** 2 } : {}),
    [`query (${names.x})`]: said.query(query),
    [`estimate (${names.y})`]: prediction,
    "entropy of the weights (nats)": entropy,
    "points that share the weight, exp(entropy)": share(weights),
    "largest weight": Math.max(...weights),
    "leave-one-out error (mean square)": leave_one_out,
  }),

  sentence({ prediction, weights, leave_one_out }, { query }) {
    const points = share(weights), minimum = Math.min(...curve.y.filter(Number.isFinite));
    if (points === 0) return `At ${said.query(query)} no point is in reach: there is no estimate.`;
    const regime = points < 1.5 ? "One point has nearly all the weight: the estimate is its label."
      : points > 0.8 * x.length ? "All points have nearly the same weight: the mean of all labels."
      : `${shown(points, 3)} points share the weight.`;
    return `At ${said.query(query)} the estimate is ${shown(prediction)}. ${regime} `
      + (!Number.isFinite(leave_one_out) ? "Some labels have no other in reach: no leave-one-out error."
        : `The leave-one-out error is ${leave_one_out / minimum < 1.0005 ? "the minimum"
          : `${shown(leave_one_out / minimum, 3)} times the minimum`}.`);
  },

  draw({ [dial]: value, query }, { prediction, weights, leave_one_out }) {
    const lengthscale = lengthscaleOf(value);
    const domain = limits(ends), height = limits(y);
    const most = Math.max(0, ...weights.filter(w => w > 0)), bump = 0.25 * (height[1] - height[0]);
    const line = grid.map(at => estimate(lengthscale, at).prediction);
    const around = spaced(...domain, 401);
    const shape = around.map(at =>
      height[0] + bump * Math.exp(KERNELS[kernel](Math.abs(query - at) * factor / lengthscale)));
    plots.fit.draw({
      x: { domain, label: names.x }, y: { domain: height, label: names.y },
      marks: [
        { type: "area", x: around, y: shape, base: height[0], of: "green" },
        { type: "line", x: around, y: shape, of: "green thin" },
        { type: "dots", x, y, of: "quiet", size: 3, strength: weights.map(w => 0.25 + 0.75 * (most > 0 ? w / most : 0)) },
        ...(truth ? [{ type: "line", x, y: truth, of: "blue dashed thin" }] : []),
        { type: "line", x: grid, y: line, of: "orange" },
        { type: "upright", x: query, of: "ink dotted" },
        ...(most > 0 ? [{ type: "dots", x: [query], y: [prediction], of: "ink", size: 6 }] : []),
      ],
      legend: [
        ["points, darker with weight", "quiet", true], ["estimate", "orange"],
        ...(truth ? [["true mean", "blue dashed"]] : []), ["kernel, scaled", "green"],
        ["at the query", "ink", true],
      ],
      describe: `${x.length} points of ${names.y} against ${names.x}, with the estimate at `
        + `${label} = ${said[dial](value)}; at ${said.query(query)} it is ${shown(prediction)}.`,
    });
    plots.weights.draw({
      x: { domain, label: names.x }, y: { domain: [0, 1.06 * most || 1], label: "weight" },
      marks: [
        { type: "stems", x, y: weights.map(w => w > 0 ? w : 0), of: "green" },
        { type: "upright", x: query, of: "ink dotted" },
      ],
      describe: `Weights of the points at ${said.query(query)}; the largest is ${shown(most)}.`,
    });
    plots.criterion.draw({
      x: { domain: bounds, log: true, label: label + unit },
      y: { domain: limits(curve.y), label: "mean squared error" },
      marks: [
        { type: "line", x: curve.x, y: curve.y, of: "blue" },
        { type: "upright", x: best, of: "quiet dashed" },
        ...(Number.isFinite(leave_one_out)
          ? [{ type: "dots", x: [value], y: [leave_one_out], of: "orange", size: 6 }] : []),
      ],
      legend: [[`all ${dial}s`, "blue"], ["minimum", "quiet dashed"], ["here", "orange", true]],
      describe: `Leave-one-out error against the ${dial}: minimum at ${shown(best)}, where it is `
        + `${shown(Math.min(...curve.y.filter(Number.isFinite)))}; here it is ${shown(leave_one_out)}.`,
    });
  },
};
