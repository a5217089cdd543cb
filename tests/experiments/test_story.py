"""The story in Chromium: each step is scrolled to, its numbers are compared with the library's."""

import json
import re
import types

import numpy as np
import pytest
from marks import in_chromium

import attnkernel as ak
from experiments.pages import _story_fits, _story_marks


def numbers_of(page, step):
    return page.evaluate(f"page.numbers({{...state, step: '{step}'}})")


def sentence(page, step):
    return page.inner_text(f"#{step} .sentence")


@in_chromium
def test_story_is_one_small_file_that_agrees_with_the_library(open_story, story_file):
    page = open_story()
    assert story_file.stat().st_size < 900_000
    assert page.evaluate("page.deviation") < 1e-9
    assert "agree with the library's" in page.inner_text(".check")
    train, test = page.evaluate("[content.attention.train, content.attention.test]")
    assert sorted(train + test) == list(range(88))  # no run is in both
    marked = {mark["at"]["step"] for mark in page.evaluate("content.marks")}
    assert marked == set(page.evaluate("STEPS.map(step => step.name)")) - {
        "data",  # has no estimate
        "choose",  # that of `kernel`
        "reveal",  # the errors of `itself`
    }
    # and where no mark can be: the minimum found by the page is that of the library's search
    best = page.evaluate("[bestLengthscale(state.rows, 0), content.best]")
    assert best[0] == pytest.approx(best[1], rel=1e-4)
    best = page.evaluate("[lowest(l => aicc(state.rows, l)), content.begin.smooth]")
    assert best[0] == pytest.approx(best[1], rel=1e-4)


# what a step says, and its controls and figures
STEP = """name => {
    const step = document.getElementById(name);
    const all = (places, read) => [...step.querySelectorAll(places)].map(read);
    const text = place => step.querySelector(place).innerText;
    return {
        title: text("h2"), answer: text(".answer"), sentence: text(".sentence"),
        html: step.innerHTML,
        pictures: all("figure svg[role=img]", svg => svg.getAttribute("aria-label")),
        labels: all("form label", label => label.innerText),
        controls: all("input, select", input => [input.id, input.type]),
        figures: all("figure", figure => [figure.querySelector("[role=img]").id, figure.tabIndex,
            figure.getAttribute("aria-label")]),
    };
}"""
# focuses a control; the view; what the step shows and computes; whether the control is at its end
SHOWN = """([name, id]) => {
    const root = document.getElementById(name), control = document.getElementById(id);
    control.focus();
    return [
        toHash(state), root.querySelector(".figures").innerHTML,
        root.querySelector(".sentence").innerText,
        JSON.stringify(page.numbers({...state, step: name})),
        control.value === control.max || control.selectedIndex > 0,
        control.getAttribute("aria-valuetext"), root.querySelector(`output[for=${id}]`)?.innerText,
    ];
}"""
PICTURE = """id => {
    document.getElementById(id).closest("figure").focus();
    return [document.getElementById(id).innerHTML, toHash(state)];
}"""


@in_chromium
def test_each_step_asks_shows_answers_and_moves_by_keyboard(open_story):
    page, figures = open_story(size=(390, 844), reduced_motion="reduce"), []  # of a phone
    for name in page.evaluate("STEPS.map(step => step.name)"):
        page.locator(f"#{name}").scroll_into_view_if_needed()
        page.wait_for_function("name => document.querySelector(`#${name} svg path`)", arg=name)
        step = page.evaluate(STEP, name)
        assert step["title"].endswith("?")
        assert step["answer"].endswith(".")
        assert step["sentence"].endswith(".")
        assert not re.search(r"NaN|undefined|null", step["html"])
        assert all(len(label) > 20 for label in step["pictures"])
        assert len(list(filter(str.strip, step["labels"]))) == len(step["controls"])
        for place, kind in step["controls"]:
            was = page.evaluate(SHOWN, [name, place])
            keys = ("PageUp", "PageDown") if kind == "range" else ("ArrowDown", "ArrowUp")
            page.keyboard.press(keys[was[4]])
            now = page.evaluate(SHOWN, [name, place])
            assert now[0] != was[0], place
            assert now[1] != was[1], place
            assert now[2:4] != was[2:4] or place == "itself-itself"  # whose sentence says both
            assert not re.search(r"NaN|undefined", now[1] + now[2])
            assert now[5] == now[6]
        for picture, index, label in step["figures"]:
            assert index == 0
            assert "rrow keys" in label
            seen = [page.evaluate(PICTURE, picture)]
            for _ in range(2):
                page.keyboard.press("ArrowLeft")
                seen.append(page.evaluate(PICTURE, picture))
            assert all(len(set(part)) == 3 for part in zip(*seen, strict=True)), picture
        figures += step["figures"]
    assert len(figures) == 29
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    x, y, query, ell = page.evaluate("[state.rows.x, state.rows.y, state.query, state.lengthscale]")
    weights = np.exp(-0.5 * ((np.array(x) - query) / ell) ** 2)
    expected = pytest.approx(weights @ y / weights.sum(), rel=1e-12)
    assert numbers_of(page, "kernel")["estimate"] == expected


@in_chromium
def test_points_are_dragged_by_pointer_and_by_key(open_story):
    page = open_story("step=kernel")
    page.locator("#kernel-scene").scroll_into_view_if_needed()
    before = numbers_of(page, "kernel")["estimate"]
    place = page.evaluate(
        "(() => { const {sx, sy, svg} = STEPS[3].plots.scene, box = svg.getBoundingClientRect();"
        "return [box.left + sx(state.rows.x[30]), box.top + sy(state.rows.y[30])]; })()"
    )
    page.mouse.move(*place)
    assert page.inner_text("#kernel .who").startswith("Point 31:")
    page.evaluate("showAll()")
    assert "point 31 has weight" in sentence(page, "votes")  # as its figure shows
    page.mouse.down()
    page.mouse.move(place[0], place[1] - 40)
    page.mouse.up()
    assert page.evaluate("state.rows.y[30]") > page.evaluate("published.y[30]") + 0.3
    assert numbers_of(page, "kernel")["estimate"] != before
    page.focus("#kernel figure")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("state.query") > 0.85
    page.keyboard.press("Enter")
    picked = page.evaluate("state.picked")
    assert picked >= 0
    page.keyboard.press("ArrowUp")
    assert page.evaluate("i => state.rows.y[i] - published.y[i]", picked) > 0
    page.keyboard.press("Delete")
    assert page.evaluate("i => state.rows.y[i] - published.y[i]", picked) == 0
    page.keyboard.press("Escape")
    assert page.evaluate("state.picked") == -1


@in_chromium
def test_address_keeps_the_view(open_story):
    page = open_story("step=bands&level=99&query=0.7&moved=3:1.1:2&lengthscale=none&point=999")
    assert page.evaluate("[state.level, state.query]") == ["99", 0.7]
    assert page.evaluate("[state.rows.x[3], state.rows.y[3]]") == [1.1, 2]
    assert page.evaluate("[state.lengthscale, state.point]") == [0.06, 55]  # what is wrong is left
    assert page.evaluate("document.querySelector('#bands').getBoundingClientRect().top < 400")
    page.select_option("#bands-level", "80")
    page.wait_for_function("() => location.hash.includes('level=80')")  # once the controls rest
    again = open_story(page.evaluate("location.hash.slice(1)"))
    kept = "JSON.stringify([toHash(state), state.rows])"
    assert again.evaluate(kept) == page.evaluate(kept)


WRONG_TABLES = {
    "1, 2\n3, four": 'Line 2 is "3, four": two numbers are expected',
    "1 2\n2 3": "There are 2 rows of numbers: from 8 to 300",
    "\n".join(f"{i % 2} {i}" for i in range(9)): "fewer than 5 different",
    "\n".join(f"{i} 7" for i in range(9)): "are the same",
}


@in_chromium
def test_pasted_rows_replace_those_of_the_engine_or_a_sentence_says_why_not(open_story):
    page = open_story()
    page.click("#own summary")
    for text, message in WRONG_TABLES.items():
        page.fill("#paste-text", text)
        page.click("#paste-draw")
        assert message in page.inner_text("#paste-error")
    x = np.linspace(0.0, 6.0, 40)
    rows = [f"{a:.3f};{b:.4f}".replace(".", ",") for a, b in zip(x, np.sin(x), strict=True)]
    page.fill("#paste-text", "\n".join(["hours;<b>marks", *rows]))
    with page.expect_navigation():
        page.click("#paste-draw")
    page.wait_for_load_state()
    assert page.evaluate("state.rows.x.length") == 40
    page.evaluate("showAll()")
    assert "<b>marks" in page.inner_text("#kernel")
    assert not re.search(r"NaN|undefined", page.inner_html("main"))
    assert page.evaluate("page.deviation") < 1e-9  # of the library's own rows
    near = page.evaluate("estimateAt(1, state.smooth, 2, state.rows)")
    assert near == pytest.approx(np.sin(2.0), abs=0.05)


@in_chromium
def test_pages_beside_the_story_are_linked_and_no_others(open_file, story_file, home):
    text, pages = story_file.read_text(), re.compile(r'"pages": ?(\[[^]]*\])')
    beside = {path.stem for path in story_file.parent.glob("*.html")}
    assert {*json.loads(pages.search(text).group(1)), "explain"} == beside
    (home / "explain.html").write_text(pages.sub('"pages": ["temperature"]', text))
    page = open_file(home / "explain.html")
    links = [link.get_attribute("href") for link in page.locator(".lab:visible a").all()]
    assert links == ["temperature.html"]


def rows():
    data = ak.data.load("ethanol", x=("E", "C"))
    return np.asarray(data.x, float), np.asarray(data.y, float)


def test_the_attention_of_the_story_is_trained_on_other_rows_than_those_that_judge_it(monkeypatch):
    """Both fits are replaced: they keep the rows that they are given."""
    given = []

    def fit(model, x, y, **_):
        given.append((x, y))
        sides = dict.fromkeys(("query", "key"), np.zeros((1501, 4, 6)))
        return types.SimpleNamespace(model=model, history=sides)

    monkeypatch.setattr(_story_fits.ak, "fit", fit)
    points, y = rows()
    found = _story_fits.train_attention(points, y)
    assert sorted([*found["train"], *found["test"]]) == list(range(88))  # no run is in both
    assert len(found["test"]) == 22
    (inputs, labels), (plain, plain_labels) = given
    np.testing.assert_array_equal(inputs, _story_fits.features(points, points)[found["train"]])
    np.testing.assert_array_equal(plain, points[found["train"]])
    for seen in (labels, plain_labels):
        np.testing.assert_array_equal(seen, y[found["train"]])


@pytest.mark.slow
def test_a_masked_run_of_the_story_sees_earlier_runs_alone(x64):
    points, y = rows()
    x = points[:, :1]
    marks = [one for one in _story_marks.marks_of_means(x, y) if one["at"]["step"] == "mask"]
    assert [one["at"]["lengthscale"] for one in marks] == [0.02, 0.06, 0.2]
    for mark in marks:
        weights = np.tril(np.exp(-0.5 * ((x - x.T) / mark["at"]["lengthscale"]) ** 2), -1)
        expected = weights[1:] @ y / weights[1:].sum(axis=1)
        np.testing.assert_allclose(mark["numbers"]["predicted"][1:], expected, rtol=1e-7)
        assert mark["numbers"]["estimate"] == mark["numbers"]["predicted"][30]
