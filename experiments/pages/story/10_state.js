// A view of the story: the rows and where the controls stand, as text behind the # of the address.

/** The rows of the story: inputs x (and c, a second one), labels y. Pasted rows have no c. */
const published = content.rows;
Object.assign(content.begin, { rows: published, moved: {}, hover: -1, picked: -1 });
const PASTED_ROWS = [8, 300];  // least and most

/** Two columns of numbers in pasted text. Throws an Error whose message is a sentence. */
function parseTable(text) {
  const lines = text.split(/\r?\n/).map(line => line.trim()).filter(line => line);
  if (lines.length === 0) throw new Error("There is no text: paste two columns of numbers, such as 1.5, 20.");
  const cellsOf = line => /[;\t]/.test(line) ? line.split(/\s*[;\t]\s*/).map(cell => cell.replace(",", "."))
    : line.split(/\s*,\s*|\s+/);
  const rows = lines.map(cellsOf), numeric = row => row.every(cell => cell !== "" && Number.isFinite(Number(cell)));
  let names = ["x", "y"];
  if (!numeric(rows[0])) names = rows.shift().map(name => name.replace(/^"|"$/g, ""));
  const first = lines.length - rows.length + 1;
  rows.forEach((row, i) => {
    if (row.length === 2 && numeric(row)) return;
    throw new Error(`Line ${i + first} is "${row.join(", ").slice(0, 40)}": two numbers are expected, such as 1.5, 20.`);
  });
  const [least, most] = PASTED_ROWS;
  if (rows.length < least || rows.length > most) {
    throw new Error(`There are ${rows.length} rows of numbers: from ${least} to ${most} are expected.`);
  }
  if (names.length !== 2) throw new Error(`The first line has ${names.length} names: two columns are expected.`);
  const [x, y] = [0, 1].map(column => rows.map(row => Number(row[column])));
  if (new Set(x).size < 5) throw new Error("The first column has fewer than 5 different numbers: no curve can be drawn through them.");
  if (new Set(y).size < 2) throw new Error("All numbers of the second column are the same: there is nothing to predict.");
  return { x, y, names };
}

/** Rows with some moved; `moved`: by number of the row, its new [x, y]. */
function withMoved(rows, moved) {
  const [x, y] = [[...rows.x], [...rows.y]];
  for (const [i, at] of Object.entries(moved)) if (i < x.length) [x[i], y[i]] = at;
  return { ...rows, x, y };
}

const short = value => String(Number(value.toPrecision(6)));

/** The address's text for a view; only what differs from the beginning. */
function toHash(state) {
  const parts = new URLSearchParams();
  for (const name of ["step", ...Object.keys(CONTROLS)]) {
    const value = state[name];
    if (value !== outset[name]) parts.set(name, typeof value === "number" ? short(value) : value);
  }
  const moved = Object.entries(state.moved);
  if (moved.length) parts.set("moved", moved.map(([i, [x, y]]) => `${i}:${short(x)}:${short(y)}`).join("_"));
  if (ground !== published) {
    parts.set("names", ground.names.join("_"));
    parts.set("rows", ground.x.map((x, i) => `${x}:${ground.y[i]}`).join("_"));
  }
  return parts.toString();
}

/** The rows in an address, or null. */
function rowsOfHash(text) {
  const parts = new URLSearchParams(text);
  if (!parts.has("rows")) return null;
  const [first, second = "y"] = (parts.get("names") ?? "x_y").split("_");
  const lines = parts.get("rows").split("_").map(pair => pair.replace(":", "\t"));
  return { ...parseTable(lines.join("\n")), names: [first, second] };
}

/** Where the controls stand by an address; what is no number, or outside its control, is left out. */
function fromHash(text) {
  const parts = new URLSearchParams(text), found = {};
  for (const [name, { options, low, high, step }] of Object.entries(CONTROLS)) {
    const text = parts.get(name), value = step === 1 ? Math.round(Number(text)) : Number(text);
    if (options ? options.some(([option]) => option === text)
      : text && value >= low * (1 - 1e-5) - 1e-9 && value <= high * (1 + 1e-5)) found[name] = options ? text : value;
  }
  if (STEPS.some(({ name }) => name === parts.get("step"))) found.step = parts.get("step");
  const moved = {};
  for (const triple of (parts.get("moved") ?? "").split("_")) {
    const [i, x, y] = triple.split(":").map(Number);
    if (Number.isInteger(i) && i >= 0 && i < ground.x.length && [x, y].every(Number.isFinite)) moved[i] = [x, y];
  }
  return { ...found, moved, rows: withMoved(ground, moved) };
}

let ground = published, pasteError = "";
try {
  ground = rowsOfHash(location.hash.slice(1)) ?? published;
} catch (error) {
  pasteError = `The rows in the address cannot be read. ${error.message}`;
}
const isPublished = ground === published;
const names = isPublished ? content.names : { x: ground.names[0], y: ground.names[1] };
const ends = [Math.min(...ground.x), Math.max(...ground.x)], span = ends[1] - ends[0];
const domain = limits(ends), height = limits(ground.y);
const grid = spaced(...ends, 161);
