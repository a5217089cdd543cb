// Two inputs: one lengthscale for each, then keys that are learned.

/** The rows of two inputs: those of the engine, also where rows of one input were pasted. */
const planeRows = state => isPublished ? state.rows : published;

/** The plane of both inputs: rows as dots, larger with weight, bluer with the label. */
function planeScene(state, { weights, marks = [], legend = [], describe }) {
  const { x, c, y } = planeRows(state), most = Math.max(...weights), [low, high] = [Math.min(...y), Math.max(...y)];
  const i = noticed(state);
  return {
    x: { domain: rich, label: content.names.x }, y: { domain: compression, label: content.names.c },
    marks: [
      ...marks,
      { type: "dots", x, y: c, of: "blue", size: weights.map(w => 3 + 8 * Math.sqrt(w / most)), strength: y.map(v => 0.12 + 0.88 * (v - low) / (high - low)) },
      { type: "upright", x: state.rich, of: "ink dotted" }, { type: "level", y: state.compression, of: "ink dotted" },
      ...(i >= 0 && i < x.length ? [{ type: "ring", x: x[i], y: c[i], of: "purple" }] : []),
    ],
    legend: [["runs: larger with weight, bluer with NOx", "blue", true], ...legend], describe,
    who: i >= 0 && i < x.length ? `Point ${i + 1}: E ${shown(x[i], 3)}, C ${shown(c[i], 3)}, NOx ${shown(y[i], 3)}. Weight ${percent(weights[i])}.` : undefined,
  };
}

const PLANE = {
  id: "plane", points: state => ({ x: planeRows(state).x, y: planeRows(state).c }), at: state => [state.rich, state.compression],
  onQuery: (x, c) => set({ rich: x, compression: Math.min(compression[1], Math.max(compression[0], c)) }),
  keys: "Arrow keys move the crossing of the dotted lines.",
  hint: "Drag where the dotted lines cross, or use the arrow keys. Hover over a point to see its vote.",
};

const SECTIONS = { id: "sections", at: state => [state.rich], onQuery: x => set({ rich: x }) };

/** Curves along the mixture at several compressions, over the runs near the chosen one. */
function sections(state, curves, describe) {
  const { x, c, y } = planeRows(state), at = spaced(...rich, 121);
  return {
    x: { domain: rich, label: content.names.x }, y: { domain: limits(published.y), label: content.names.y },
    marks: [
      { type: "dots", x, y, of: "quiet", size: 4, strength: c.map(value => 0.12 + 0.88 * Math.exp(-(((value - state.compression) / 2) ** 2))) },
      ...curves.map(({ of, compression, estimate }) => ({ type: "line", x: at, y: at.map(e => estimate([e, compression])), of })),
      { type: "upright", x: state.rich, of: "ink dotted" },
    ],
    legend: [["runs, stronger near the chosen C", "quiet", true], ...curves.map(({ name, of }) => [name, of])], describe,
  };
}

STEPS.push({
  name: "inputs", controls: ["along", "across", "rich", "compression"], note: OF_PLANE,
  figures: [{ ...PLANE, title: "Both inputs from above" }, { ...SECTIONS, title: "Cuts through the surface" }],
  numbers(state) {
    const rows = planeRows(state), points = pointsOf(rows), squares = scaledSquares([state.along, state.across]);
    const weights = weightsOfSquares(points.map(p => squares([state.rich, state.compression], p)));
    return { weights, estimate: mean(weights, rows.y), error: planeError(points, rows.y, squares) };
  },
  sentence: ({ estimate, error }, state) => `At E = ${said.rich(state.rich)} and C = ${said.compression(state.compression)} the estimate is ${
    shown(estimate, 3)}. The leave-one-out error of both inputs is ${shown(error, 3)}; that of the mixture alone is at best ${
    shown(errorAt(0, bestLengthscale(planeRows(state), 0), planeRows(state)), 3)}.`,
  draw(state, { weights, estimate }) {
    const rows = planeRows(state), points = pointsOf(rows), squares = scaledSquares([state.along, state.across]);
    const at = q => mean(weightsOfSquares(points.map(p => squares(q, p))), rows.y);
    const turn = spaced(0, 2 * Math.PI, 61);
    return {
      plane: planeScene(state, {
        weights, describe: `Runs by mixture and compression; the estimate where the dotted lines cross is ${shown(estimate, 3)}.`,
        marks: [{ type: "line", x: turn.map(t => state.rich + state.along * Math.cos(t)), y: turn.map(t => state.compression + state.across * Math.sin(t)), of: "green" }],
        legend: [["one lengthscale away", "green"]],
      }),
      sections: sections(state, [
        { of: "purple dashed", compression: 7.5, name: "C = 7.5", estimate: at }, { of: "green dotted", compression: 18, name: "C = 18", estimate: at },
        { of: "orange", compression: state.compression, name: `C = ${said.compression(state.compression)}`, estimate: at },
      ], `Estimates along the mixture at compressions 7.5, 18 and ${said.compression(state.compression)}.`),
    };
  },
});

/** The place in the list of the kept step of training that is nearest. */
const nearestStep = at => content.keys.steps.indexOf(nearestTo(content.keys.steps, at));

const standard = point => point.map((value, k) => (value - content.keys.centre[k]) / content.keys.scale[k]);

STEPS.push({
  name: "keys", controls: ["training", "rich", "compression"], note: OF_PLANE,
  figures: [{ ...PLANE, title: "What counts as near, while it is trained" }, { id: "errors", title: "Error while training", height: [190, 220], onQuery: x => set({ training: nearestStep(x) }),
      counted: "training", keys: "Left and right arrow keys choose the step of training.",
      hint: "Click or drag to go to that step, or use the arrow keys." }],
  numbers(state) {
    const rows = planeRows(state), points = pointsOf(rows).map(standard), squares = metricSquares(content.keys.metrics[state.training]);
    const weights = weightsOfSquares(points.map(p => squares(standard([state.rich, state.compression]), p)));
    return { weights, estimate: mean(weights, rows.y), error: planeError(points, rows.y, squares) };
  },
  sentence({ error }, { training }) {
    const metric = content.keys.metrics[training], ratio = Math.sqrt(metric[0][0] / metric[1][1]);
    return `After ${content.keys.steps[training]} steps of training the leave-one-out error is ${shown(error, 3)}. One standard deviation `
      + `of the mixture counts as much as ${shown(ratio, 2)} of the compression.`;
  },
  draw(state, { weights, error }) {
    const { metrics, steps } = content.keys, [[a, b], [, d]] = metrics[state.training], turn = spaced(0, 2 * Math.PI, 91);
    const away = turn.map(t => {
      const u = [Math.cos(t), Math.sin(t)], r = 1 / Math.sqrt(a * u[0] ** 2 + 2 * b * u[0] * u[1] + d * u[1] ** 2);
      return u.map((value, k) => r * value * content.keys.scale[k]);
    });
    const errors = trainingErrors(planeRows(state));
    return {
      plane: planeScene(state, {
        weights, describe: `After ${steps[state.training]} steps the error is ${shown(error, 3)}; the ellipse holds the points one lengthscale away.`,
        marks: [{ type: "line", x: away.map(p => state.rich + p[0]), y: away.map(p => state.compression + p[1]), of: "green" }],
        legend: [["one learned lengthscale away", "green"]],
      }),
      errors: {
        x: { domain: [0, steps.at(-1)], label: "steps of training" }, y: { domain: [0, 1.06 * Math.max(...errors)], label: "error" },
        marks: [{ type: "line", x: steps, y: errors, of: "blue" }, { type: "dots", x: [steps[state.training]], y: [error], of: "orange", size: 6 }],
        legend: [["leave-one-out error", "blue"], ["shown above", "orange", true]],
        describe: `The leave-one-out error falls from ${shown(errors[0], 3)} to ${shown(errors.at(-1), 3)}.`,
      },
    };
  },
});

const trainingErrors = remembered(rows => content.keys.metrics.map(metric =>
  planeError(pointsOf(rows).map(standard), rows.y, metricSquares(metric))));
