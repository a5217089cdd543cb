// Why a point may not vote for itself; a lengthscale by eye, and by leave-one-out.

/** The figure of errors against the lengthscale; a click in it takes that lengthscale. */
const CRITERION = {
  id: "criterion", height: [230, 240], title: "Mean squared error against the lengthscale",
  at: state => [state.lengthscale], onQuery: x => set({ lengthscale: x }), keys: "Arrow keys change the lengthscale.",
  hint: "Click or drag to take that lengthscale, or use the arrow keys.",
};

function criterion(state, curves, rest) {
  return {
    x: { domain: [tried[0], tried.at(-1)], log: true, label: "lengthscale ℓ" },
    y: { domain: [0, 1.06 * Math.max(3 * Math.min(...curves.at(-1).y), rest.error)], label: "error" },
    marks: [...curves.map(({ y, of }) => ({ type: "line", x: tried, y, of })), ...rest.marks],
    legend: [...curves.map(({ name, of }) => [name, of]), ...rest.legend], describe: rest.describe,
  };
}

STEPS.push({
  name: "itself", controls: ["point", "itself", "lengthscale"],
  figures: [{ ...SCENE, title: "One point, predicted with and without its own vote", onQuery: undefined,
    at: state => [state.rows.x[state.point - 1]], counted: "point", keys: "Left and right arrow keys choose the point.",
    hint: "Hover over a point, or tap it, to see its vote. Drag it." }, CRITERION],
  numbers({ rows, lengthscale, point }) {
    const at = rows.x[point - 1], both = [-1, point - 1].map(out => polynomialWeights(0, lengthscale, at, rows.x, out));
    const [own, others] = both.map(weights => mean(weights, rows.y));
    return { at, own, others, both, self_error: errorAt(0, lengthscale, rows, true), error: errorAt(0, lengthscale, rows) };
  },
  sentence: ({ own, others, both }, { point, rows }) => `Point ${point} measured ${shown(rows.y[point - 1])}. With its own vote, `
    + `of weight ${percent(both[0][point - 1])}, it is predicted as ${shown(own)}; from the others alone as ${shown(others)}.`,
  draw(state, { at, own, others, both, self_error, error }) {
    const { rows, point, itself, lengthscale } = state, isOut = itself === "no", out = isOut ? point - 1 : -1;
    const without = { ...rows, x: rows.x.filter((_, i) => i !== out), y: rows.y.filter((_, i) => i !== out) };
    const estimate = isOut ? others : own;
    return {
      scene: scene(state, {
        query: at, weights: both[isOut ? 1 : 0], estimate,
        curves: [{ y: curveOf(place => estimateAt(0, lengthscale, place, without)), of: "orange", name: isOut ? "without the point" : "with the point" }],
        after: [{ type: "ring", x: at, y: rows.y[point - 1], of: "purple" },
          { type: "line", x: [at, at], y: [rows.y[point - 1], estimate], of: "purple" }],
        legend: [[`point ${point} and its error`, "purple"]],
        describe: `Point ${point} is predicted as ${shown(estimate)} ${isOut ? "without" : "with"} its own vote.`,
      }),
      criterion: criterion(state, [
        { y: errorCurve(rows, 0, true), of: "orange dashed", name: "each point votes for itself" },
        { y: errorCurve(rows, 0, false), of: "blue", name: "no point votes for itself" },
      ], {
        error, marks: [{ type: "dots", x: [lengthscale, lengthscale], y: [self_error, error], of: "ink", size: 5 }],
        legend: [["at this ℓ", "ink", true]],
        describe: `With votes for itself the error falls to 0 as the lengthscale shrinks; without, it has a lowest value. `
          + `At ${said.lengthscale(lengthscale)} they are ${shown(self_error)} and ${shown(error)}.`,
      }),
    };
  },
});

/** How many runs a share of them is, at least one. */
const hiddenCount = (share, count) => Math.max(1, Math.round(share * count));

/** For each draw the places of the rows in a random order: the library's, or one for pasted rows. */
const drawnRanks = remembered(rows => {
  if (rows.x.length === published.x.length) return content.ranks;
  let seed = 1;
  const random = () => (seed = seed * 16807 % 2147483647) / 2147483647;
  return content.ranks.map(() => {
    const order = rows.x.map((_, i) => [random(), i]).sort(([a], [b]) => a - b), ranks = [];
    order.forEach(([, i], rank) => { ranks[i] = rank; });
    return ranks;
  });
});

/** Mean squared error of hidden rows, predicted from those that are not: in each draw all rows are cut
 *  into blocks, and one block after the other is hidden. */
const hiddenError = remembered((rows, lengthscale, share) => {
  const { x, y } = rows, hide = hiddenCount(share, x.length), blocks = Math.floor(x.length / hide);
  const logs = x.map(at => x.map(other => -(((other - at) / lengthscale) ** 2) / 2));
  const errors = drawnRanks(rows).map(ranks => {
    const block = ranks.map(rank => Math.floor(rank / hide));
    const squares = x.flatMap((_, i) => block[i] >= blocks ? [] : [(y[i] - mean(
      normalise(logs[i].map((log, j) => block[j] === block[i] ? -Infinity : log)).weights, y)) ** 2]);
    return total(squares) / squares.length;
  });
  return total(errors) / errors.length;
});

const hiddenCurve = remembered((rows, share) => tried.map(lengthscale => hiddenError(rows, lengthscale, share)));
const bestHidden = remembered((rows, share) => lowest(lengthscale => hiddenError(rows, lengthscale, share), hiddenCurve(rows, share)));

STEPS.push({
  name: "hidden", controls: ["hidden", "lengthscale"],
  figures: [{ ...SCENE, title: "Many runs hidden, and the curve through the others" }, CRITERION],
  numbers: ({ rows, lengthscale, hidden }) => ({ error: hiddenError(rows, lengthscale, hidden), one: errorAt(0, lengthscale, rows),
    best: bestHidden(rows, hidden) }),
  sentence: ({ error, best }, { rows, lengthscale, hidden }) => `With ${hiddenCount(hidden, rows.x.length)} of ${rows.x.length
    } runs hidden at a time the error is lowest, ${shown(hiddenError(rows, best, hidden), 3)}, at ℓ = ${shown(best, 3)}; with one hidden, at ${
    shown(bestLengthscale(rows, 0), 3)}. At your ℓ, ${said.lengthscale(lengthscale)}, it is ${shown(error, 3)}.`,
  draw(state, { error, one, best }) {
    const { rows, lengthscale, hidden, query } = state, hide = hiddenCount(hidden, rows.x.length), ranks = drawnRanks(rows)[0];
    const part = isHidden => { const which = range(rows.x.length).filter(i => ranks[i] < hide === isHidden);
      return { x: which.map(i => rows.x[i]), y: which.map(i => rows.y[i]) }; };
    const [gone, rest] = [part(true), part(false)], estimate = estimateAt(0, lengthscale, query, rest);
    return {
      scene: scene(state, {
        estimate, curves: [{ y: curveOf(at => estimateAt(0, lengthscale, at, rest)), of: "orange", name: "from the others" }],
        after: [{ type: "dots", ...gone, of: "purple", size: 5 }], legend: [["hidden in the first draw", "purple", true]],
        describe: `${hide} runs are hidden; the curve of the others is ${shown(estimate)} at the dotted line.`,
      }),
      criterion: criterion(state, [
        { y: errorCurve(rows, 0, false), of: "green dashed", name: "one hidden" },
        { y: hiddenCurve(rows, hidden), of: "blue", name: `${hide} hidden` },
      ], {
        error, marks: [{ type: "upright", x: best, of: "blue dotted" }, { type: "dots", x: [lengthscale, lengthscale], y: [one, error], of: "ink", size: 5 }],
        legend: [["at this ℓ", "ink", true]],
        describe: `With ${hide} hidden the error is lowest at ${shown(best, 3)}; at ${said.lengthscale(lengthscale)} it is ${shown(error)}.`,
      }),
    };
  },
});

STEPS.push({
  name: "choose", controls: ["lengthscale"], figures: [{ ...SCENE, title: "Which curve is right?" }],
  numbers: ({ rows, lengthscale, query }) => ({ estimate: estimateAt(0, lengthscale, query, rows) }),
  sentence: (_, { lengthscale }) => `You have chosen ℓ = ${said.lengthscale(lengthscale)}. The next step says how good that is.`,
  draw: (state, { estimate }) => ({ scene: scene(state, {
    estimate, curves: [{ y: kernelCurve(state), of: "orange", name: "your curve" }],
    describe: `Your curve has lengthscale ${said.lengthscale(state.lengthscale)}. At ${said.query(state.query)} it is ${shown(estimate)}.`,
  }) }),
});

STEPS.push({
  name: "reveal", controls: ["lengthscale"],
  buttons: [["best", "Take the best ℓ", () => set({ lengthscale: bestLengthscale(state.rows, 0) })]],
  figures: [CRITERION, { ...SCENE, title: "Your curve and the best one" }],
  numbers({ rows, lengthscale }) {
    const best = bestLengthscale(rows, 0), error = errorAt(0, lengthscale, rows), least = errorAt(0, best, rows);
    return { error, best, least };
  },
  sentence: ({ error, best, least }, { lengthscale }) => `Leave-one-out takes ℓ = ${shown(best, 3)}, with error ${shown(least, 3)}. `
    + (error / least < 1.005 ? "Your ℓ is as good." : `Yours, ${said.lengthscale(lengthscale)}, has error ${shown(error, 3)}: ${
      shown(error / least, 3)} times as much. It is ${lengthscale > best ? "too long: the curve is too stiff" : "too short: the curve follows the noise"}.`),
  draw(state, { error, best, least }) {
    const { rows, lengthscale, query } = state, estimates = [lengthscale, best].map(l => estimateAt(0, l, query, rows));
    return {
      criterion: criterion(state, [{ y: errorCurve(rows, 0, false), of: "blue", name: "leave-one-out error" }], {
        error, marks: [{ type: "upright", x: best, of: "green dashed" }, { type: "dots", x: [best], y: [least], of: "green", size: 5 },
          { type: "dots", x: [lengthscale], y: [error], of: "orange", size: 6 }],
        legend: [["lowest", "green dashed"], ["your choice", "orange", true]],
        describe: `The leave-one-out error is lowest, ${shown(least, 3)}, at ${shown(best, 3)}; yours is ${shown(error, 3)}.`,
      }),
      scene: scene(state, {
        estimate: estimates[0], curves: [{ y: kernelCurve(state), of: "orange", name: "your curve" },
          { y: curveOf(at => estimateAt(0, best, at, rows)), of: "green dashed", name: "the best of leave-one-out" }],
        describe: `Your curve of lengthscale ${said.lengthscale(lengthscale)} beside that of ${shown(best, 3)}. `
          + `At ${said.query(query)} they are ${shown(estimates, 3).replace(",", " and")}.`,
      }),
    };
  },
});
