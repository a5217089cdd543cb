"""A notebook opened and run by the commands of the documentation; its slider moved in Chromium."""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from marks import in_chromium
from paths import DOCS, ROOT

FOLDER, NAME = Path("experiments/notebooks"), "1100_context_temperature"
COMMANDS = re.findall(r"^(?:jupyter|marimo) .*\.py$", (DOCS / "notebooks.md").read_text(), re.M)
SECONDS = 600  # that a server or all cells may take, while other tests have the processor


def words(*start):
    """Returns the command of the documentation that begins so, for another notebook."""
    (command,) = [one for one in COMMANDS if one.startswith(" ".join(start))]
    return shlex.split(command.replace("000_ten_minutes", NAME))


@pytest.fixture
def clone(tmp_path):
    """A folder with the notebooks, which front ends may write into."""
    shutil.copytree(ROOT / FOLDER, tmp_path / FOLDER)
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | home | {"PYTHONPATH": str(ROOT), "PATH": path}

    def start(command, **options):
        return subprocess.Popen(command, cwd=tmp_path, env=env, text=True, **options)

    return start


@pytest.fixture
def serve(clone):
    """Starts a command that serves pages, and returns their address once it answers."""
    servers = []

    def started(command, option_of_port):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        servers.append(clone([*command, option_of_port, str(port)], **quiet))
        address, deadline = f"http://127.0.0.1:{port}", time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            try:
                urlopen(address).close()
                return address
            except URLError:
                assert servers[-1].poll() is None, "the server has ended"
                time.sleep(0.2)
        raise TimeoutError(address)

    yield started
    for server in servers:
        server.terminate()
        server.wait(30)


def assert_slider_moves_figure_and_number(page, slider):
    page.get_by_text("inputs × 2: fixed").first.wait_for(state="attached")
    figures = page.locator("img[src*='image/png']")
    before = figures.last.get_attribute("src")
    slider.press("ArrowRight")
    page.get_by_text("inputs × 2.025: fixed").first.wait_for(state="attached")
    assert page.get_by_text("inputs × 2: fixed").count() == 0
    assert figures.last.get_attribute("src") != before


@pytest.fixture
def page(browser):
    page = browser.new_page()
    page.set_default_timeout(1000 * SECONDS)
    yield page
    page.close()


@in_chromium
def test_slider_of_a_notebook_in_jupyterlab(page, serve):
    pytest.importorskip("jupyterlab", reason="pip install -e '.[notebooks]'")
    options = ["--no-browser", "--allow-root", "--IdentityProvider.token=secret"]
    address = serve([*words("jupyter lab"), *options], "--ServerApp.port")
    page.goto(f"{address}/lab/tree/{NAME}.py?token=secret")
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()  # else no cell would run
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_text("Run All Cells", exact=True).click()
    assert_slider_moves_figure_and_number(page, page.locator(".widget-slider .noUi-handle"))


@in_chromium
def test_slider_of_a_notebook_in_marimo(page, serve, clone):
    pytest.importorskip("marimo", reason="pip install -e '.[notebooks]'")
    assert clone(words("marimo", "convert")).wait() == 0
    options = ["--headless", "--no-token"]
    address = serve([*words("marimo", "edit"), *options], "--port")
    page.goto(address)
    page.get_by_role("heading", name="Two approximations").wait_for()
    page.keyboard.press("Control+Shift+r")  # runs all cells
    assert_slider_moves_figure_and_number(page, page.get_by_role("slider"))
