// Several heads over the same points; and a mask that hides what has not happened yet.

const headEstimates = (heads, query, rows, without = -1) => heads.lengthscales.map(lengthscale =>
  estimateAt(0, lengthscale, query, rows, without));

const headsError = remembered((rows, count) => total(rows.x.map((at, i) =>
  (rows.y[i] - dot(content.heads[count].coefficients, headEstimates(content.heads[count], at, rows, i))) ** 2)) / rows.x.length);

STEPS.push({
  name: "heads", controls: ["heads", "rich"], note: OF_PLANE,
  figures: [{ ...SCENE, title: "Each head alone, and their sum", points: state => planeRows(state), onMove: undefined,
    at: state => [state.rich], onQuery: x => set({ rich: x }) }],
  numbers(state) {
    const rows = planeRows(state), heads = content.heads[state.heads];
    const each = headEstimates(heads, state.rich, rows);
    return { each, estimate: dot(heads.coefficients, each), error: headsError(rows, state.heads) };
  },
  sentence({ estimate, each, error }, state) {
    const { coefficients } = content.heads[state.heads];
    return `At E = ${said.rich(state.rich)}: ${coefficients.map((u, h) => `${shown(u, 3)} × ${shown(each[h], 3)}`).join(" + ").replaceAll("+ −", "− ")
      } = ${shown(estimate, 3)}. Leave-one-out error with ${state.heads} ${state.heads === "1" ? "head" : "heads"}: ${shown(error, 3)}.`;
  },
  draw(state, { estimate }) {
    const rows = planeRows(state), heads = content.heads[state.heads], at = spaced(...rich, 161);
    const styles = ["purple dashed", "green dotted", "sky dashdot", "blue thin"], i = noticed(state);
    return { scene: {
      x: { domain: rich, label: content.names.x }, y: { domain: limits(published.y), label: content.names.y },
      marks: [
        { type: "dots", x: rows.x, y: rows.y, of: "quiet", size: 4, strength: rows.x.map(() => 0.6) },
        ...heads.lengthscales.map((l, h) => ({ type: "line", x: at, y: at.map(q => estimateAt(0, l, q, rows)), of: styles[h] })),
        { type: "line", x: at, y: at.map(q => dot(heads.coefficients, headEstimates(heads, q, rows))), of: "orange" },
        { type: "upright", x: state.rich, of: "ink dotted" }, { type: "dots", x: [state.rich], y: [estimate], of: "ink", size: 6 },
        ...(i >= 0 && i < rows.x.length ? [{ type: "ring", x: rows.x[i], y: rows.y[i], of: "purple" }] : []),
      ],
      legend: [["measured", "quiet", true], ...heads.lengthscales.map((l, h) => [`ℓ = ${shown(l, 2)}, times ${shown(heads.coefficients[h], 3)}`, styles[h]]),
        ["sum of the heads", "orange"]],
      describe: `${state.heads} heads with lengthscales ${shown(heads.lengthscales, 2)}; their sum at the dotted line is ${shown(estimate, 3)}.`,
      who: i >= 0 && i < rows.x.length ? `Point ${i + 1}: weight ${heads.lengthscales.map(l => percent(polynomialWeights(0, l, state.rich, rows.x)[i])).join(", ")} in the heads.` : undefined,
    } };
  },
});

/** Each row predicted from those before it; NaN for the first. */
const fromEarlier = remembered((rows, lengthscale) => rows.x.map((at, t) =>
  t === 0 ? NaN : regress("gaussian", lengthscale, at, rows.x.slice(0, t), rows.y.slice(0, t)).prediction));

/** The first of the runs in the figure of weights, which shows 24 at a time. */
const firstShown = ({ rows, seen }) => Math.max(0, Math.min(rows.x.length - 24, 24 * Math.floor(seen / 24)));

const NEXT_RUN = { counted: "seen", keys: "Left and right arrow keys choose the next run." };

STEPS.push({
  name: "mask", controls: ["seen", "lengthscale"],
  figures: [{ ...SCENE, title: "The next run, predicted from the runs made so far", onQuery: undefined,
    at: state => [state.rows.x[state.seen]], ...NEXT_RUN, hint: "Hover over a point, or tap it, to see its vote. Drag it." },
    { id: "matrix", title: "Who may vote for whom: a row for each run", height: [300, 340], ...NEXT_RUN,
      hint: "Click or drag to predict that run, or use the arrow keys.",
      onQuery: (_, row) => set({ seen: Math.min(rowCount - 1, Math.max(1, firstShown(state) + Math.round(row) - 1)) }) }],
  numbers({ rows, lengthscale, seen }) {
    const weights = polynomialWeights(0, lengthscale, rows.x[seen], rows.x.slice(0, seen)), predicted = fromEarlier(rows, lengthscale);
    const misses = predicted.map((p, t) => (p - rows.y[t]) ** 2).slice(1), half = Math.floor(misses.length / 2);
    return { weights: [...weights, ...rows.x.slice(seen).map(() => 0)], estimate: mean(weights, rows.y), predicted,
      early: total(misses.slice(0, half)) / half, late: total(misses.slice(half)) / (misses.length - half) };
  },
  sentence: ({ estimate, early, late }, { seen, rows }) => `Run ${seen + 1} is predicted from the ${seen === 1 ? "one run" : `${seen} runs`} before it: ${
    shown(estimate, 3)}; it measured ${shown(rows.y[seen], 3)}. The mean squared error of the first half of the runs is ${shown(early, 3)}, of the second half ${shown(late, 3)}.`,
  draw(state, { weights, estimate }) {
    const { rows, lengthscale, seen } = state, past = { x: rows.x.slice(0, seen), y: rows.y.slice(0, seen) };
    const first = firstShown(state), shownRows = range(Math.min(24, rows.x.length)).map(i => first + i);
    const cells = shownRows.map(t => {
      const found = polynomialWeights(0, lengthscale, rows.x[t], rows.x.slice(0, Math.max(1, t)));
      return shownRows.map(i => i >= t || t > seen ? null : found[i]);
    });
    const most = Math.max(0.05, ...cells.flat().filter(Number.isFinite)), ticks = [0, 5, 11, 17, 23].filter(i => i < shownRows.length);
    const axis = { ticks: ticks.map(i => i + 1), names: Object.fromEntries(ticks.map(i => [i + 1, String(shownRows[i] + 1)])) };
    const size = shownRows.length;
    return {
      scene: scene(state, {
        query: rows.x[seen], weights, estimate, curves: [{ y: curveOf(at => estimateAt(0, lengthscale, at, past)), of: "orange", name: "from the runs so far" }],
        after: [{ type: "ring", x: rows.x[seen], y: rows.y[seen], of: "purple" },
          { type: "line", x: [rows.x[seen], rows.x[seen]], y: [rows.y[seen], estimate], of: "purple" }],
        legend: [["the next run and its error", "purple"]],
        describe: `Run ${seen + 1} is predicted from ${seen} earlier ones as ${shown(estimate, 3)}.`,
      }),
      matrix: {
        x: { domain: [0.5, size + 0.5], label: "run that votes", ...axis }, y: { domain: [size + 0.5, 0.5], label: "run that is predicted", ...axis },
        marks: [{ type: "veil", size, of: "quiet" }, { type: "cells", rows: cells, most, least: 0.12, of: "blue" }, { type: "level", y: seen - first + 1, of: "orange dotted" }],
        legend: [["weight, palest where it is 0", "blue", true], ["hidden by the mask", "quiet", true], ["the next run; rows below are not drawn yet", "orange dotted"]],
        describe: `A triangle: each of runs ${first + 1} to ${first + size} is predicted from earlier runs only.`,
      },
    };
  },
});
