// One figure for all steps: a plot whose points and query are moved by pointer and keyboard.

MARKS.band = ({ x, low, high, of }, sx, sy) => `<path class="area ${of}" d="${path(x, high, sx, sy)}L${
  [...x].reverse().map((at, i) => `${sx(at).toFixed(2)} ${sy(low[low.length - 1 - i]).toFixed(2)}`).join("L")}Z"/>`;
MARKS.rays = ({ x, y, to, of, strength }, sx, sy) => x.map((at, i) => strength[i] < 0.01 ? "" :
  `<path class="stroke ${of}" stroke-opacity="${strength[i].toFixed(3)}" d="M${sx(at).toFixed(1)} ${sy(y[i]).toFixed(1)}L${
    sx(to[0]).toFixed(1)} ${sy(to[1]).toFixed(1)}"/>`).join("");
/** The upper triangle of a square of cells, with its diagonal. */
MARKS.veil = ({ size, of }, sx, sy) => `<path class="area ${of}" d="${[[0.5, 0.5], [size + 0.5, 0.5], [size + 0.5, size + 0.5],
  ...range(size).reverse().flatMap(r => [[r + 0.5, r + 1.5], [r + 0.5, r + 0.5]])].map(([x, y], i) =>
  `${i ? "L" : "M"}${sx(x).toFixed(1)} ${sy(y).toFixed(1)}`).join("")}Z"/>`;
MARKS.ring = ({ x, y, of }, sx, sy) =>
  `<circle class="stroke ${of}" cx="${sx(x).toFixed(2)}" cy="${sy(y).toFixed(2)}" r="9"/>`;

const GRASP = 16;  // pixels about a point in which a pointer asks for it
const HINT = "Hover over a point, or tap it, to see its vote. Drag it, or the dotted line.";
const KEYS = "Enter picks the nearest point: arrow keys then move it, Delete puts it back, Escape lets it go.";

class Figure extends Plot {
  /** `step`: the name of the step; `points(state)`: {x, y} of what can be hovered; `onQuery(x, y)`,
   *  `onMove(i, x, y)`: a query or a point was moved, where it can be. Arrow keys move the query from
   *  `at(state)`, or change the whole number of the state that `counted` names; `keys` says so. */
  constructor(step, options) {
    super(`${step.name}-${options.id}`, { height: [230, 300], kind: "wide", ...options, parent: step.root.querySelector(".figures") });
    Object.assign(this, { step, options });
    const { onQuery, onMove, keys = "Arrow keys move the dotted line." } = options;
    this.line = document.createElement("p");
    this.line.className = "who";
    this.line.setAttribute("aria-hidden", "true");
    this.figure.append(this.line);
    if (onQuery) this.svg.classList.add("draggable");
    this.figure.tabIndex = 0;
    this.figure.setAttribute("role", "group");
    this.figure.setAttribute("aria-label", [`${options.title}.`, keys, ...(onMove ? [KEYS] : [])].join(" "));
    this.figure.addEventListener("keydown", event => this.press(event));
    this.listen();
  }

  listen() {
    const { points, onQuery, onMove } = this.options;
    this.svg.addEventListener("pointerdown", event => {
      this.held = points && onMove ? this.nearest(event, event.pointerType === "mouse" ? 9 : 12) : -1;
      if (this.held < 0 && !onQuery) return;
      this.svg.setPointerCapture(event.pointerId);
      this.from = this.place(event);
      active = this.step;
      if (this.held < 0) this.follow(event); else hover(this.held);
    });
    this.svg.addEventListener("pointermove", event => {
      if (!this.svg.hasPointerCapture(event.pointerId)) { if (points) hover(this.nearest(event, GRASP)); return; }
      const [left, top] = this.place(event);  // a tap shows a point, and does not move it
      if (this.held < 0 || Math.hypot(left - this.from[0], top - this.from[1]) > 3) this.follow(event);
    });
    this.svg.addEventListener("pointerleave", event => { if (event.pointerType === "mouse") hover(-1); });
  }

  place(event) {
    const box = this.svg.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  nearest(event, reach) {
    const [left, top] = this.place(event), { x, y } = this.options.points(state);
    const gaps = x.map((at, i) => Math.hypot(this.sx(at) - left, this.sy(y[i]) - top));
    const least = gaps.indexOf(Math.min(...gaps));
    return gaps[least] < reach ? least : -1;
  }

  follow(event) {
    const [left, top] = this.place(event), [x, y] = [this.valueAt(left), this.valueUp(top)];
    if (this.held < 0) this.options.onQuery(x, y);
    else {
      state.hover = this.held;
      this.options.onMove(this.held, x, y);
    }
  }

  press(event) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowDown: [0, -1], ArrowUp: [0, 1] }[event.key];
    const { points, onQuery, onMove, at, counted } = this.options, i = state.picked;
    const moved = values => values.map((value, k) => {
      const { domain: [low, high], log } = this.axes[k], share = step[k] * (event.shiftKey ? 0.1 : 0.01);
      return Math.min(high, Math.max(low, log ? value * (high / low) ** share : value + (high - low) * share));
    });
    active = this.step;
    if (step && i >= 0 && onMove) {
      const now = points(state);
      onMove(i, ...moved([now.x[i], now.y[i]]));
    } else if (step && counted) {
      if (step[1]) return;  // up and down scroll the page
      const { low, high } = CONTROLS[counted], more = step[0] * (event.shiftKey ? 10 : 1);
      set({ [counted]: Math.min(high, Math.max(low, state[counted] + more)) });
    } else if (step) {
      const now = at(state);
      if (now.length === 1 && step[1]) return;
      onQuery(...moved(now));
    } else if (event.key === "Enter" && onMove && i < 0) {
      const gaps = points(state).x.map(place => Math.abs(place - at(state)[0]));
      set({ picked: gaps.indexOf(Math.min(...gaps)) });
    } else if (["Enter", "Escape"].includes(event.key) && i >= 0) set({ picked: -1 });
    else if (event.key === "Delete" && i >= 0) putBack(i);
    else return;
    event.preventDefault();
  }

  draw(spec) {
    super.draw(spec);
    this.axes = [spec.x, spec.y];
    const [low, high] = spec.y.domain, [bottom, top] = [low, high].map(this.sy);
    const share = up => Math.min(1, Math.max(0, (up - bottom) / (top - bottom)));
    this.valueUp = up => low + (high - low) * share(up);
    const points = this.options.points?.(state);
    if (points && this.options.onMove) {  // a finger on a point moves it; elsewhere it scrolls
      this.svg.insertAdjacentHTML("beforeend", points.x.map((at, i) =>
        `<circle class="hit" cx="${this.sx(at).toFixed(1)}" cy="${this.sy(points.y[i]).toFixed(1)}" r="11"/>`).join(""));
    }
    this.line.textContent = spec.who ?? this.options.hint ?? (this.options.onMove ? HINT : "");
  }
}

let active = null;  // the step that was touched last: its sentence is spoken

function hover(i) {
  if (state.hover !== i) set({ hover: i });
}

/** Moves row i, within the axes. */
function moveRow(i, x, y) {
  const at = [Math.min(ends[1], Math.max(ends[0], x)), Math.min(height[1], Math.max(height[0], y))];
  const moved = { ...state.moved, [i]: at };
  set({ moved, rows: withMoved(ground, moved) });
}

function putBack(i) {
  const { [i]: _, ...moved } = state.moved;
  set({ moved, rows: withMoved(ground, moved) });
}

/** The point that is picked by key, or else under the pointer; -1 for none. */
const noticed = state => state.picked >= 0 ? state.picked : state.hover;

const percent = share => `${shown(100 * share, 2)} %`;

/** What is said of the point under the pointer, given the weights at the query. */
function whoVotes(state, weights) {
  const i = noticed(state);
  if (i < 0 || i >= state.rows.x.length) return undefined;
  const { x, y } = state.rows, w = weights?.[i];
  return `Point ${i + 1}: ${names.x} ${shown(x[i], 3)}, ${names.y} ${shown(y[i], 3)}.` + (w === undefined ? ""
    : Number.isNaN(w) ? " No point has weight." : ` Weight ${percent(w)}: adds ${shown(w * y[i], 3)}.`);
}

/** The scene of most steps: rows, stronger with weight; curves; the query and the estimate there. */
function scene(state, { curves = [], weights, query = state.query, estimate, before = [], after = [], legend = [], describe, who }) {
  const { x, y } = state.rows, most = weights ? Math.max(...weights.filter(w => w > 0), 0) : 0, i = noticed(state);
  const strength = x.map((_, j) => most > 0 ? 0.22 + 0.78 * Math.max(0, weights[j]) / most : 0.75);
  return {
    x: { domain, label: names.x }, y: { domain: height, label: names.y },
    marks: [
      ...before,
      { type: "dots", x, y, of: "quiet", size: 4, strength },
      ...curves.map(({ y, of }) => ({ type: "line", x: grid, y, of })),
      { type: "upright", x: query, of: "ink dotted" },
      ...(Number.isFinite(estimate) ? [{ type: "dots", x: [query], y: [estimate], of: "ink", size: 6 }] : []),
      ...after,
      ...(i >= 0 && i < x.length ? [{ type: "ring", x: x[i], y: y[i], of: "purple" }] : []),
    ],
    legend: [[weights ? "measured, stronger with weight" : "measured", "quiet", true],
      ...curves.filter(curve => curve.name).map(curve => [curve.name, curve.of]), ...legend,
      ...(Number.isFinite(estimate) ? [["estimate", "ink", true]] : [])],
    describe: `${x.length} points of ${names.y} against ${names.x}. ${describe}`,
    who: who ?? whoVotes(state, weights),
  };
}

/** Options of a figure of that scene. */
const SCENE = {
  id: "scene", points: state => state.rows, onMove: moveRow, at: state => [state.query],
  onQuery: x => set({ query: x }),
};
