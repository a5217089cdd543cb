// A small trained attention beside the kernel's weights; and layers that correct each other.

const trained = content.attention;

/** What the attention is given of a point: 1, both inputs in standard deviations, their squares, their product. */
function features(point) {
  const [e, c] = standard(point);
  return [1, e, c, e * e, c * c, e * c];
}

/** Weights of runs for a query by the learned projections of an epoch: softmax of q · k / √d. */
function attentionWeights(epoch, query, points, without = -1) {
  const q = product(trained.query[epoch], features(query));
  return normalise(points.map((p, i) => i === without ? -Infinity
    : dot(q, product(trained.key[epoch], features(p))) / Math.sqrt(q.length))).weights;
}

const subset = (values, which) => which.map(i => values[i]);

/** The runs that the attention was trained on, and those that were held out. */
function parts(state) {
  const rows = planeRows(state), points = pointsOf(rows);
  return Object.fromEntries(["train", "test"].map(name => [name,
    { points: subset(points, trained[name]), y: subset(rows.y, trained[name]) }]));
}

const squaresOfNadarayaWatson = scaledSquares(trained.lengthscales);

const heldOutErrors = remembered((rows, epoch) => {
  const { train, test } = parts({ rows });
  const error = weigh => total(test.points.map((p, i) => (test.y[i] - mean(weigh(p), train.y)) ** 2)) / test.y.length;
  return [error(p => attentionWeights(epoch, p, train.points)),
    error(p => weightsOfSquares(train.points.map(k => squaresOfNadarayaWatson(p, k))))];
});

STEPS.push({
  name: "attention", controls: ["epoch", "rich", "compression"], note: OF_PLANE,
  figures: [{ ...PLANE, kind: "half", title: "Weights of the attention", points: undefined, hint: "Drag the crossing, or use the arrow keys." },
    { ...PLANE, kind: "half", id: "kernel", title: "Weights of the kernel", points: undefined, hint: " " },
    { ...SECTIONS, title: "Their estimates along the mixture, at the chosen compression" }],
  numbers(state) {
    const { train } = parts(state), at = [state.rich, state.compression];
    const weights = attentionWeights(state.epoch, at, train.points);
    const kernel = weightsOfSquares(train.points.map(p => squaresOfNadarayaWatson(at, p)));
    const far = found => mean(found, train.points.map(p => Math.sqrt(total(standard(p).map((v, k) => (v - standard(at)[k]) ** 2)))));
    const [error, kernel_error] = heldOutErrors(planeRows(state), state.epoch);
    return { weights, kernel, estimate: mean(weights, train.y), kernel_estimate: mean(kernel, train.y), error, kernel_error,
      reach: [far(weights), far(kernel)] };
  },
  sentence: ({ estimate, kernel_estimate, error, kernel_error, reach }, { epoch }) => `After ${trained.steps[epoch]} steps the attention estimates ${
    shown(estimate, 3)}, the kernel ${shown(kernel_estimate, 3)}. On the ${trained.test.length} runs that neither has seen their mean squared errors are ${
    shown(error, 3)} and ${shown(kernel_error, 3)}. Their weight lies ${shown(reach[0], 2)} and ${shown(reach[1], 2)} standard deviations from the query, on average.`,
  draw(state, { weights, kernel, estimate, kernel_estimate }) {
    const { train } = parts(state), all = found => {
      const spread = planeRows(state).x.map(() => 0);
      trained.train.forEach((row, i) => { spread[row] = found[i]; });
      return spread;
    };
    return {
      plane: planeScene(state, { weights: all(weights), describe: `The attention's weights for the crossing; its estimate is ${shown(estimate, 3)}.` }),
      kernel: planeScene(state, { weights: all(kernel), describe: `The kernel's weights for the crossing; its estimate is ${shown(kernel_estimate, 3)}.` }),
      sections: sections(state, [
        { of: "orange", compression: state.compression, name: "attention", estimate: q => mean(attentionWeights(state.epoch, q, train.points), train.y) },
        { of: "blue dashed", compression: state.compression, name: "kernel (Nadaraya–Watson)",
          estimate: q => mean(weightsOfSquares(train.points.map(k => squaresOfNadarayaWatson(q, k))), train.y) },
      ], `At the dotted line the attention estimates ${shown(estimate, 3)}, the kernel ${shown(kernel_estimate, 3)}.`),
    };
  },
});

/** The labels that k layers smooth: y, plus the residuals of the layers before. */
const layeredLabels = remembered((rows, lengthscale, layers) => {
  const hat = rows.x.map(at => polynomialWeights(0, lengthscale, at, rows.x));
  let residual = rows.y, sum = rows.y;
  for (let k = 1; k < layers; k++) {
    residual = residual.map((r, i) => r - dot(hat[i], residual));
    sum = sum.map((s, i) => s + residual[i]);
  }
  return sum;
});

STEPS.push({
  name: "layers", controls: ["layers", "broad", "query"], figures: [{ ...SCENE, title: "Layers, each correcting what is left" }],
  numbers({ rows, broad, layers, query }) {
    const labels = layeredLabels(rows, broad, layers);
    return { labels, estimate: estimateAt(0, broad, query, { x: rows.x, y: labels }), first: estimateAt(0, broad, query, rows) };
  },
  sentence: ({ estimate, first }, { layers, query }) => layers === 1
    ? `One layer: the weighted mean at ${said.query(query)} is ${shown(first, 3)}.`
    : `The first layer estimates ${shown(first, 3)} at ${said.query(query)}; with ${layers - 1} more, each for what the ones before it have left over, ${shown(estimate, 3)}.`,
  draw(state, { labels, estimate }) {
    const { rows, broad, layers } = state;
    return { scene: scene(state, {
      curves: [{ y: curveOf(at => estimateAt(0, broad, at, rows)), of: "green dashed", name: "one layer" },
        { y: curveOf(at => estimateAt(0, broad, at, { x: rows.x, y: labels })), of: "orange", name: `${layers} ${layers === 1 ? "layer" : "layers"}` }],
      estimate, describe: `With ${layers} layers the estimate at ${said.query(state.query)} is ${shown(estimate, 3)}.`,
    }) };
  },
});

/** Weights of a head over the words up to one: pairs of roles that it looks for score more, words far back less. */
function wordWeights(head, word) {
  const { roles, looks, contrast, decay } = content.words;
  const score = j => {
    if (j > word) return -Infinity;
    if (looks[head] === null) return j === word ? -contrast : j === word - 1 ? 0 : -Infinity;  // the word before
    const isLookedFor = looks[head].some(([query, key]) => query === roles[word] && key === roles[j]);
    return (isLookedFor ? contrast : 0) - decay * (word - j);
  };
  return normalise(roles.map((_, j) => score(j))).weights;
}

STEPS.push({
  name: "words", controls: ["looks", "word"], note: "This step is of words: it keeps its own sentence.",
  figures: [{ ...SCENE, id: "words", title: "Where a word looks: the weights of the words up to it", points: undefined, onMove: undefined,
    at: state => [state.word], counted: "word", keys: "Left and right arrow keys choose the word.",
    hint: "Click a word, or use the arrow keys.",
    onQuery: at => set({ word: Math.min(content.words.tokens.length, Math.max(1, Math.round(at))) }) }],
  numbers: ({ looks, word }) => ({ weights: wordWeights(looks, word - 1) }),
  sentence({ weights }, { word }) {
    const { tokens } = content.words, most = weights.indexOf(Math.max(...weights));
    return `“${tokens[word - 1]}”, word ${word}, looks most at “${tokens[most]}”, word ${most + 1}: with ${percent(weights[most])} of its weight.`;
  },
  draw({ word, looks }, { weights }) {
    const { tokens } = content.words, places = tokens.map((_, i) => i + 1), [before, after] = [places.slice(0, word), places.slice(word)];
    return { words: {
      x: { domain: [0.4, tokens.length + 0.6], label: "", ticks: places, names: Object.fromEntries(tokens.map((token, i) => [i + 1, token])) },
      y: { domain: [0, 1], label: "weight" },
      marks: [{ type: "bars", x: before, y: weights.slice(0, word), width: 0.7, of: "blue" },
        { type: "dots", x: after, y: after.map(() => 0.02), of: "quiet", size: 2 }, { type: "upright", x: word, of: "ink dotted" }],
      legend: [["weight", "blue", true], ["the word that asks", "ink dotted"], ["hidden by the mask", "quiet", true]],
      describe: `The head ${looks}: weights of ${word} words, for word ${word}, ${tokens[word - 1]}.`,
    } };
  },
});
