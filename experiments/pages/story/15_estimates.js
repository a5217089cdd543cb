// The estimators of the story: sums of labels with weights, as the library defines them.

/** x with A x = b, by elimination with pivots; null where A is singular. */
function solve(A, b) {
  const rows = A.map((row, i) => [...row, b[i]]), n = b.length;
  for (let c = 0; c < n; c++) {
    const best = range(n).slice(c).reduce((a, r) => Math.abs(rows[r][c]) > Math.abs(rows[a][c]) ? r : a, c);
    [rows[c], rows[best]] = [rows[best], rows[c]];
    if (!(Math.abs(rows[c][c]) > 1e-13)) return null;
    for (let r = c + 1; r < n; r++) {
      const factor = rows[r][c] / rows[c][c];
      for (let k = c; k <= n; k++) rows[r][k] -= factor * rows[c][k];
    }
  }
  const found = Array(n).fill(0);
  for (let r = n - 1; r >= 0; r--) {
    found[r] = (rows[r][n] - total(range(n).slice(r + 1).map(c => rows[r][c] * found[c]))) / rows[r][r];
  }
  return found;
}

/** L_j(q) of a local polynomial with a Gaussian kernel: its estimate at q is Σ L_j y_j. */
function polynomialWeights(order, lengthscale, query, x, without = -1) {
  const u = x.map(at => (at - query) / lengthscale);
  const { weights } = normalise(u.map((r, i) => i === without ? -Infinity : -r * r / 2));
  if (order === 0) return weights;
  const powers = range(order + 1);
  const moments = powers.map(a => powers.map(b => total(weights.map((w, i) => w * u[i] ** (a + b)))));
  const first = solve(moments, powers.map(a => a === 0 ? 1 : 0));
  if (first === null) return polynomialWeights(order - 1, lengthscale, query, x, without);
  return weights.map((w, i) => w * total(powers.map(a => first[a] * u[i] ** a)));
}

const estimateAt = (order, lengthscale, query, { x, y }, without = -1) =>
  mean(polynomialWeights(order, lengthscale, query, x, without), y);

/** Mean squared error at the rows themselves: each predicted from all, or from all others. */
function errorAt(order, lengthscale, rows, votesForItself = false) {
  return total(rows.x.map((at, i) =>
    (rows.y[i] - estimateAt(order, lengthscale, at, rows, votesForItself ? -1 : i)) ** 2)) / rows.x.length;
}

/** A function that keeps its results for the same rows. */
function remembered(compute) {
  const kept = new WeakMap();
  return (rows, ...others) => {
    if (!kept.has(rows)) kept.set(rows, new Map());
    const found = kept.get(rows), key = others.join();
    if (!found.has(key)) found.set(key, compute(rows, ...others));
    return found.get(key);
  };
}

const tried = geometric(0.008 * span, 0.6 * span, 41);  // lengthscales of the curves of errors
const errorCurve = remembered((rows, order, votesForItself) =>
  tried.map(lengthscale => errorAt(order, lengthscale, rows, votesForItself)));

/** The place of the lowest of a criterion: the best lengthscale tried, then golden section. */
function lowest(criterion, values = tried.map(criterion)) {
  const at = values.indexOf(Math.min(...values)), golden = (Math.sqrt(5) - 1) / 2, value = log => criterion(Math.exp(log));
  let [low, high] = [tried[Math.max(0, at - 1)], tried[Math.min(tried.length - 1, at + 1)]].map(Math.log);
  let [a, b] = [high - golden * (high - low), low + golden * (high - low)], [va, vb] = [value(a), value(b)];
  for (let i = 0; i < 24; i++) {
    if (va < vb) [high, b, vb] = [b, a, va], a = high - golden * (high - low), va = value(a);
    else [low, a, va] = [a, b, vb], b = low + golden * (high - low), vb = value(b);
  }
  return Math.exp((low + high) / 2);
}

const bestLengthscale = remembered((rows, order) =>
  lowest(lengthscale => errorAt(order, lengthscale, rows), errorCurve(rows, order, false)));

/** Residual sum of squares about the weighted line, trace of its hat matrix L and Σ L². */
const lineSums = remembered((rows, lengthscale) => {
  const hat = rows.x.map(at => polynomialWeights(1, lengthscale, at, rows.x));
  return { squares: total(hat.map((row, i) => (rows.y[i] - mean(row, rows.y)) ** 2)),
    trace: total(hat.map((row, i) => row[i])), norm: total(hat.flat().map(w => w * w)) };
});

/** The variance of the labels about the line, Σ r² / (n − 2 tr L + Σ L²). */
function noiseVariance(rows, lengthscale) {
  const { squares, trace, norm } = lineSums(rows, lengthscale);
  return squares / (rows.x.length - 2 * trace + norm);
}

/** The corrected criterion of Akaike, infinite where tr L + 2 reaches the number of rows. */
function aicc(rows, lengthscale) {
  const { squares, trace } = lineSums(rows, lengthscale), n = rows.x.length;
  return trace + 2 < n ? Math.log(squares / n) + (1 + trace / n) / (1 - (trace + 2) / n) : Infinity;
}

/** The band of the mean about a local line; corrected for bias, about a local parabola. */
function bandAt(rows, lengthscale, query, quantile, isCorrected) {
  const noise = noiseVariance(rows, lengthscale), n = rows.x.length;
  const weights = isCorrected
    ? polynomialWeights(2, lengthscale * n ** (1 / 5 - 1 / 4), query, rows.x)
    : polynomialWeights(1, lengthscale, query, rows.x);
  const centre = mean(weights, rows.y), error = Math.sqrt(noise * total(weights.map(w => w * w)));
  return { centre, low: centre - quantile * error, high: centre + quantile * error };
}

// ---- several inputs: a point is a list of numbers

/** Weights of points by the squares of their distances from a query. */
const weightsOfSquares = (squares, without = -1) =>
  normalise(squares.map((d, i) => i === without ? -Infinity : -d / 2)).weights;

/** Squared distance in lengthscales, one for each input. */
const scaledSquares = lengthscales => (a, b) => total(a.map((v, k) => ((v - b[k]) / lengthscales[k]) ** 2));

/** Squared distance ΔᵀMΔ. */
const metricSquares = metric => (a, b) => {
  const gap = a.map((v, k) => v - b[k]);
  return total(gap.map((v, r) => v * total(gap.map((u, c) => metric[r][c] * u))));
};

/** Leave-one-out error of a weighted mean whose weights fall with some squared distance. */
const planeError = (points, y, squares) => total(points.map((at, i) =>
  (y[i] - mean(weightsOfSquares(points.map(p => squares(at, p)), i), y)) ** 2)) / y.length;

const pointsOf = rows => rows.x.map((x, i) => [x, rows.c[i]]);
const dot = (a, b) => total(a.map((value, i) => value * b[i]));
const product = (matrix, point) => matrix.map(row => dot(row, point));
