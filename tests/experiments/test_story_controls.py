"""The story in Chromium, at length: every control, every figure, print, dark and calm."""

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def sentence(page, step):
    return page.inner_text(f"#{step} .sentence")


def test_every_figure_that_can_be_dragged_answers_a_click(open_story):
    page = open_story(size=(1280, 900))
    page.evaluate("showAll()")
    view = "JSON.stringify([toHash(state), state.hover])"
    figures = page.locator("section.step svg.draggable").all()
    assert len(figures) >= 20
    for figure in figures:
        figure.scroll_into_view_if_needed()
        page.click("#outset")
        before, box = page.evaluate(view), figure.bounding_box()
        figure.click(position={"x": 0.3 * box["width"], "y": 0.55 * box["height"]})
        assert page.evaluate(view) != before, figure.get_attribute("id")


def test_button_takes_the_best_lengthscale_and_the_sentence_says_so(open_story):
    page = open_story("step=reveal")
    assert "too long" in sentence(page, "reveal")
    page.click("#best")
    assert sentence(page, "reveal").endswith("Your ℓ is as good.")


def test_story_prints_in_order_and_is_legible_in_the_dark(open_story):
    light, dark = open_story(color_scheme="light"), open_story(color_scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    assert light.evaluate(paper) == "rgb(255, 255, 255)"
    assert dark.evaluate(paper) == "rgb(20, 23, 27)"
    light.emulate_media(media="print")
    assert not light.locator("#own, #theme").filter(visible=True).count()
    assert len(light.pdf()) > 100_000
    assert light.evaluate("page.waiting.size") == 0  # all figures are drawn
    calm = open_story(reduced_motion="reduce")
    assert calm.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"
