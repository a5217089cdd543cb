// What can be set in the story, and where all of it stands at the beginning.

const YES_NO = [["yes", "yes"], ["no", "no"]];
const rowCount = ground.x.length, trainings = content.keys.metrics.length, epochs = content.attention.query.length;
const [rich, compression] = [published.x, published.c].map(values => limits(values));

/** By the name of a number in the state; steps that show the same number share it. */
const CONTROLS = {
  query: { label: "dotted line", low: ends[0], high: ends[1] },
  width: { label: "half width of the window", log: true, low: 0.01 * span, high: span },
  lengthscale: { label: "lengthscale ℓ", log: true, low: tried[0], high: tried.at(-1) },
  point: { label: "point", low: 1, high: rowCount, step: 1 },
  itself: { label: "does the point vote for itself?", kind: "select", options: YES_NO },
  hidden: { label: "runs hidden at a time", kind: "select",
    options: content.shares.map(share => [share, String(Math.max(1, Math.round(share * rowCount)))]) },
  edge: { label: "dotted line", low: ends[0], high: ends[1] },
  smooth: { label: "lengthscale ℓ of the line", log: true, low: tried[0], high: tried.at(-1) },
  level: { label: "level of the band", kind: "select", options: Object.keys(content.quantiles).map(l => [l, `${l} %`]) },
  corrected: { label: "corrected for bias", kind: "select", options: YES_NO },
  rich: { label: content.names.x, low: rich[0], high: rich[1] },
  compression: { label: content.names.c, low: compression[0], high: compression[1] },
  along: { label: "ℓ of the mixture", log: true, low: 0.01, high: 0.3 },
  across: { label: "ℓ of the compression", log: true, low: 0.5, high: 100 },
  training: { label: "steps of training", low: 0, high: trainings - 1, step: 1, show: t => String(content.keys.steps[t]) },
  heads: { label: "heads", kind: "select", options: Object.keys(content.heads).map(h => [h, h]) },
  seen: { label: "runs made so far", low: 1, high: rowCount - 1, step: 1 },
  epoch: { label: "steps of training", low: 0, high: epochs - 1, step: 1, show: t => String(content.attention.steps[t]) },
  layers: { label: "layers", low: 1, high: content.most_layers, step: 1 },
  word: { label: "word that asks", low: 1, high: content.words.tokens.length, step: 1, show: t => content.words.tokens[t - 1] },
  looks: { label: "head", kind: "select", options: Object.keys(content.words.looks).map(name => [name, name]) },
  broad: { label: "lengthscale of each layer", log: true, low: tried[0], high: tried.at(-1) },
};

/** The view at the beginning: that of the published rows, or one that suits pasted ones. */
const outset = { ...content.begin, rows: ground };
if (!isPublished) {
  const best = bestLengthscale(ground, 0), sorted = [...ground.x].sort((a, b) => a - b);
  Object.assign(outset, {
    query: sorted[Math.floor(0.6 * rowCount)], edge: ends[0], width: span / 10, point: Math.ceil(rowCount / 2),
    lengthscale: Math.min(tried.at(-1), 1.7 * best), broad: Math.min(tried.at(-1), 3 * best),
    seen: Math.ceil(rowCount / 2), smooth: lowest(lengthscale => aicc(ground, lengthscale)),
  });
}

const STEPS = [];  // in the order of the story; each file of steps adds its own

const curveOf = estimate => grid.map(estimate);
const OF_PLANE = "This step needs two inputs: it keeps the runs of the engine.";
