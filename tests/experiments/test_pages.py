"""Interactive pages in Chromium: controls are moved, numbers compared with the library's."""

import math

import numpy as np
import pytest
from marks import in_chromium, slow
from paths import CONFIGS

import attnkernel as ak
from experiments.__main__ import main
from experiments.config.kernels import KERNELS

OTHERS = ["lengthscales", "temperature", "retrieval_rule", "zoo", "zoo_positions", "cache"]
every_page = pytest.mark.parametrize("name", ["cps71", *OTHERS])


@pytest.fixture
def page_file(site):
    """The pages of a config, of the site: NAME, or NAME_positions."""
    return lambda name: site / "pages" / f"{name}.html"


@pytest.fixture
def open_page(open_file, page_file):
    """Opens the page of a config."""
    return lambda name, **options: open_file(page_file(name), **options)


def read(page):
    """State of the controls, the numbers that the page computes, and the list that it shows."""
    state = page.evaluate("({...state})")
    numbers = page.evaluate("page.numbers(state)")
    terms, shown = (page.locator(f".numbers {tag}").all_inner_texts() for tag in ("dt", "dd"))
    return state, numbers, dict(zip(terms, shown, strict=True))


@in_chromium
@every_page
def test_page_is_one_small_labelled_file_that_agrees_with_the_library(name, open_page, page_file):
    page = open_page(name)
    assert page_file(name).stat().st_size < 500_000
    assert page.evaluate("page.deviation") < 1e-6
    assert "agree with the library's" in page.inner_text(".check")
    assert page.locator("figure svg[role=img]").count() >= 3
    for control in page.locator("input, select").all():  # labels for readers of screens
        assert page.locator(f"label[for={control.get_attribute('id')}]").inner_text().strip()
    for picture in page.locator("figure svg[role=img]").all():
        assert len(picture.get_attribute("aria-label")) > 20
    assert page.locator(".sentence").inner_text().endswith(".")
    assert page.locator("button:not([id])").count() == 0


@in_chromium
@every_page
def test_every_control_moves_by_keyboard(name, open_page):
    page = open_page(name)
    for control in page.locator("input[type=range]").all():
        place = control.get_attribute("id")
        control.focus()
        seen = set()
        for key in ("Home", "ArrowRight", "PageUp", "End"):
            page.keyboard.press(key)
            state, _, shown = read(page)
            value = page.inner_text(f"output[for={place}]")
            assert control.get_attribute("aria-valuetext") == value
            assert all(shown.values())
            seen.add(state[place])
        assert len(seen) == 4 or place in ("token", "window")  # few steps
        assert len(seen) >= 3
        lowest, highest = min(seen), max(seen)
        assert lowest < highest
    for control in page.locator("select").all():
        for value in control.locator("option").evaluate_all("all => all.map(one => one.value)"):
            control.select_option(value)
            state, _, shown = read(page)
            assert state[control.get_attribute("id")] == value
            assert all(shown.values())
    before = page.evaluate("document.documentElement.className")
    page.click("#theme")
    assert page.evaluate("document.documentElement.className") != before


@in_chromium
def test_text_has_the_computed_numbers(open_page):
    page = open_page("cps71")
    page.fill("#query", "30")
    _, numbers, shown = read(page)
    estimate = shown["estimate (log of wage)"]
    assert float(estimate) == pytest.approx(numbers["prediction"], rel=5e-4)
    assert f"the estimate is {estimate}" in page.inner_text(".sentence")  # at once
    page.locator(".spoken[role=status]", has_text="At 30").wait_for(state="attached")
    assert estimate in page.get_attribute("#fit", "aria-label")


@in_chromium
def test_button_moves_to_the_minimum_of_the_criterion(open_page):
    page = open_page("cps71")
    page.focus("#lengthscale")
    for _ in range(60):
        page.keyboard.press("ArrowLeft")
    _, far, _ = read(page)
    page.click("#best")
    state, near, _ = read(page)
    assert near["leave_one_out"] < far["leave_one_out"]
    assert state["lengthscale"] == page.evaluate("content.best")
    assert near["leave_one_out"] == pytest.approx(0.316055, abs=1e-6)  # as R's np prints it


@in_chromium
def test_query_follows_mouse_and_touch(open_page):
    page = open_page("cps71")
    box = page.locator("#fit").bounding_box()
    middle = box["y"] + 100
    page.mouse.move(box["x"] + 200, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 400, middle)
    page.mouse.up()
    state, _, _ = read(page)
    low, high = page.evaluate("limits(ends)")
    share = (400 - 56) / (box["width"] - 8 - 56)
    assert state["query"] == pytest.approx(low + share * (high - low), abs=0.1)
    page.mouse.move(box["x"] + 100, middle)  # let go: it stays
    assert read(page)[0] == state
    touched = open_page("cps71", has_touch=True)
    box = touched.locator("#criterion").bounding_box()
    touched.touchscreen.tap(box["x"] + 90, box["y"] + 50)
    assert read(touched)[0]["lengthscale"] < touched.evaluate("content.best")


@in_chromium
def test_tokens_are_stepped_and_played(open_page):
    page = open_page("cache")
    page.clock.install()
    page.click("#next")
    assert read(page)[0]["token"] == 8
    page.click("#back")
    page.click("#back")
    assert read(page)[0]["token"] == 6
    page.click("#play")
    assert page.inner_text("#play") == "Pause"
    page.clock.run_for(20_000)
    assert read(page)[0]["token"] == 11
    assert page.inner_text("#play") == "Play"


@in_chromium
def test_page_is_legible_light_dark_printed_and_on_phones(open_page, contrast_ratio):
    light, dark = (open_page("zoo", color_scheme=scheme) for scheme in ("light", "dark"))
    paper = "getComputedStyle(document.body).backgroundColor"
    assert light.evaluate(paper) == "rgb(255, 255, 255)"
    assert dark.evaluate(paper) == "rgb(20, 23, 27)"
    for page in (light, dark):  # text and lines stand out from the paper
        for colour in COLOURS:
            ratio = contrast_ratio(colour_of(page, colour), colour_of(page, "--paper"))
            assert ratio >= (4.5 if colour in TEXT else 3.0), colour
    light.emulate_media(media="print")
    assert not light.locator("#theme").is_visible()
    assert len(light.pdf()) > 10_000
    light.emulate_media(media="screen")
    light.set_viewport_size({"width": 360, "height": 740})
    assert light.evaluate("document.documentElement.scrollWidth") <= 360


TEXT = ("--ink", "--quiet")
COLOURS = (*TEXT, "--blue", "--orange", "--green", "--purple", "--sky")


def colour_of(page, name):
    style = "getComputedStyle(document.documentElement)"
    return page.evaluate(f"{style}.getPropertyValue('{name}')").strip()


@in_chromium
def test_page_that_deviates_from_the_library_reports_it(page_file, browser, home):
    right, text = "gaussian: r => -r * r / 2", page_file("cps71").read_text()
    assert right in text
    (home / "wrong.html").write_text(text.replace(right, f"{right}.001"))
    page, messages = browser.new_page(), []
    page.on("console", lambda message: messages.append(message.text))
    page.goto((home / "wrong.html").as_uri())
    assert "deviate" in page.inner_text(".check")
    page.close()
    assert messages


@in_chromium
def test_names_of_columns_are_not_read_as_html(open_csv_page):
    page = open_csv_page(range(20), names=("</script><b>x", "<i>y&amp;"))
    assert "</script><b>x" in page.locator(".controls").inner_text()


@pytest.fixture
def open_csv_page(open_file, home):
    """Opens the page of a CSV file."""

    def opened(x, *settings, names=("year", "level")):
        rows = "\n".join(f"{at},{math.sin(at)}" for at in x)
        (home / "mine.csv").write_text(f"{','.join(names)}\n{rows}\n")
        data = ["data.source=csv", "data.path=mine.csv", f"data.x={names[0]}", f"data.y={names[1]}"]
        out = ["--out", "mine.html"]
        assert main(["page", str(CONFIGS / "cps71.yaml"), *data, *settings, *out]) == 0
        return open_file(home / "mine.html")

    return opened


@in_chromium
@pytest.mark.parametrize("begin", [2019.0, 1.6e9])
def test_inputs_far_from_zero_have_distinct_labels(open_csv_page, begin):
    page = open_csv_page(begin + np.arange(21) / 10)
    ticks = page.locator("#weights text[text-anchor=middle]:not([transform])").all_text_contents()
    assert len(set(ticks)) == len(ticks) > 3
    page.focus("#query")
    texts = set()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
        texts.add(page.get_attribute("#query", "aria-valuetext"))
        assert page.get_attribute("#query", "aria-valuetext") in page.inner_text(".numbers")
    assert len(texts) == 5


@in_chromium
def test_query_without_points_in_the_support_has_no_estimate(open_csv_page):
    x = np.r_[np.arange(10) / 10, 50 + np.arange(10) / 10]
    page = open_csv_page(x, "model.kernel=epanechnikov")
    page.focus("#lengthscale")
    page.keyboard.press("Home")
    page.fill("#query", "25")
    _, numbers, shown = read(page)
    assert math.isnan(numbers["prediction"])
    assert shown["points that share the weight, exp(entropy)"] == "0"
    sentence = page.inner_text(".sentence")
    assert "no point is in reach" in sentence
    assert sentence.startswith(f"At {shown['query (year)']} no point")
    assert "NaN" not in page.inner_html(".figures")
    assert not page.locator("[data-kernel=gaussian]").is_visible()  # true of a Gaussian alone
    assert "temperature" not in page.inner_text(".numbers")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["heads.yaml"], "has no page; these have: cache, holdout"),
        slow(["cps71.yaml", "data.name=wage1", "data.x=[educ, exper]"], "a page draws one input"),
        (["zoo.yaml", "data.n=5000"], "a page takes up to 2000 rows"),
        (["cps71.yaml", "model.lengthscal=1"], "lengthscale"),
    ],
)
def test_config_without_a_page_is_refused(arguments, message, home, error_of):
    config, *rest = arguments
    assert message in error_of("page", CONFIGS / config, *rest, "--out", "page.html")
    assert not list(home.iterdir())


def test_page_of_a_users_kernel_is_refused(error_of, monkeypatch):
    monkeypatch.setitem(KERNELS, "mine", ak.Laplace)
    error = error_of("page", CONFIGS / "cps71.yaml", "model.kernel=mine", "--out", "page.html")
    assert "a page knows these alone" in error
