// The story as a page: its steps drawn where they are read, its view kept in the address.

const page = {
  controls: [], visible: new Set(), waiting: new Set(STEPS),
  buttons: [["outset", "As it began", () => set({ ...outset, step: state.step })]],

  build() {
    for (const step of STEPS) {
      step.root = document.getElementById(step.name);
      const form = step.root.querySelector(".controls");
      step.plots = Object.fromEntries(step.figures.map(options => [options.id, new Figure(step, options)]));
      page.controls.push(...step.controls.map(name => ({ ...CONTROLS[name], name, id: `${step.name}-${name}`, form })));
      for (const kind of ["input", "focusin", "pointerdown"]) step.root.addEventListener(kind, () => { active = step; }, true);
      if (step.note && !isPublished) step.root.querySelector(".answer").insertAdjacentHTML("beforebegin", `<p class="note">${step.note}</p>`);
    }
    buildContents();
    buildLinks();
    buildPaste();
  },

  numbers: state => STEPS.find(step => step.name === state.step).numbers(state),

  render() {
    STEPS.forEach(step => page.waiting.add(step));
    page.visible.forEach(showStep);
    if (active && !page.visible.has(active)) showStep(active);
    clearTimeout(page.later);
    page.later = setTimeout(showNext, 200);  // while something moves, what is out of sight waits
    clearTimeout(page.keeping);
    if (page.isOpen) page.keeping = setTimeout(keepView, 250);
  },

  draw() { page.render(); },
};

/** Draws one step; its sentence is written with its figures, and never later. */
function showStep(step) {
  page.waiting.delete(step);
  const numbers = step.numbers(state), words = step.sentence(numbers, state);
  const line = step.root.querySelector(".sentence");
  line.textContent = words;
  for (const [id, spec] of Object.entries(step.draw(state, numbers))) step.plots[id].draw(spec);
  if (step === active) speak(state.picked >= 0 ? whoVotes(state, numbers.weights) ?? words : words);
}

/** Draws a step that waits out of sight, then goes on with the next. */
function showNext() {
  const [step] = page.waiting;
  if (!step) return;
  showStep(step);
  page.later = setTimeout(showNext, 0);
}

function showAll() {
  [...page.waiting].forEach(showStep);
}

function keepView() {
  clearTimeout(page.keeping);
  const text = toHash(state);
  if (text !== location.hash.slice(1)) history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
}

function goTo(name, behavior = "auto") {
  showAll();  // figures that are not drawn yet would move the place
  document.getElementById(name).scrollIntoView({ behavior });
  document.getElementById(name).querySelector("h2").focus({ preventScroll: true });
}

function buildContents() {
  const list = document.querySelector("#contents ol");
  for (const { root, name } of STEPS) {
    const title = root.querySelector("h2");
    title.tabIndex = -1;
    list.insertAdjacentHTML("beforeend", `<li><a href="#step=${name}">${escaped(title.textContent)}</a></li>`);
    list.lastChild.firstChild.addEventListener("click", event => {
      event.preventDefault();
      goTo(name);
    });
  }
}

/** Links to the pages that lie beside this one. */
function buildLinks() {
  for (const place of document.querySelectorAll("[data-page]")) {
    const { page: name } = place.dataset;
    if (content.pages.includes(name)) {
      place.hidden = false;
      Object.assign(place.querySelector("a"), { href: `${name}.html`, target: "_top" });
    }
  }
}

function buildPaste() {
  const error = document.getElementById("paste-error");
  const open = rows => {
    const at = new URLSearchParams();
    at.set("names", rows.names.map(name => name.replaceAll("_", " ")).join("_"));
    at.set("rows", rows.x.map((x, i) => `${x}:${rows.y[i]}`).join("_"));
    location.hash = at.toString();  // the story begins anew, with these rows
  };
  const read = text => {
    try {
      error.textContent = "";
      open(parseTable(text));
    } catch (problem) {
      error.textContent = problem.message;
    }
  };
  error.textContent = pasteError;
  if (pasteError || !isPublished) document.getElementById("own").open = true;
  document.getElementById("paste-draw").addEventListener("click", () => read(document.getElementById("paste-text").value));
  document.getElementById("paste-file").addEventListener("change", async event => read(await event.target.files[0].text()));
  const back = document.getElementById("paste-back");
  back.hidden = isPublished;
  document.getElementById("other-rows").hidden = isPublished;
  back.addEventListener("click", () => { location.hash = ""; });
}

/** After the first drawing: the view of the address, and what follows the scroll. */
function openStory() {
  for (const { buttons, root } of STEPS) if (buttons) addButtons(buttons, root.querySelector(".controls"));
  const view = fromHash(location.hash.slice(1));
  set({ ...outset, ...view });
  observe("300px", (step, isIn) => {
    if (isIn) page.visible.add(step); else page.visible.delete(step);
    if (isIn && page.waiting.has(step)) showStep(step);
  });
  observe("-45% 0px -45% 0px", (step, isIn) => {
    if (!isIn) return;
    state.step = step.name;
    clearTimeout(page.keeping);
    page.keeping = setTimeout(keepView, 250);
  });
  addEventListener("hashchange", () => location.reload());
  addEventListener("beforeprint", showAll);
  page.isOpen = true;
  if (view.step) goTo(view.step, "instant");
}

function observe(rootMargin, react) {
  const observer = new IntersectionObserver(entries => entries.forEach(({ target, isIntersecting }) =>
    react(STEPS.find(({ root }) => root === target), isIntersecting)), { rootMargin });
  STEPS.forEach(({ root }) => observer.observe(root));
}
