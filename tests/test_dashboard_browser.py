"""The dashboard in a real browser: from the login to a run's live log and curves, over a restart, on a desktop and a phone."""

import json
import os
import shutil
import socket
import time

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from lib import paths
from lib.dashboard import tables as db
from tests.dashboards import TINY, TOKEN, Site, serving

pytestmark = pytest.mark.nightly  # test_dashboard fills the same forms and asks for the same parts without a browser


@pytest.fixture
def browser(chromium, home):
    driver = shutil.which("chromedriver")
    if not driver:
        pytest.skip("no chromedriver here (apt-get install chromium-driver): the pages cannot be driven")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for word in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{word}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    short = {**os.environ, "TMPDIR": "/tmp"}  # it makes a socket there, whose path must be short
    browser = webdriver.Chrome(options=options, service=Service(driver, env=short))
    browser.implicitly_wait(10)
    yield browser
    browser.quit()


def show(browser, width):
    """Look at the page as on a screen of this width."""
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1,
                                                                   "mobile": width < 500})


def press(browser, words):
    browser.find_element(By.XPATH, f"//button[normalize-space()='{words}']").click()


def wait(browser, script, *words):
    return WebDriverWait(browser, 15, 0.1).until(lambda one: one.execute_script(f"return {script}", *words))


def test_a_run_from_the_login_to_its_end(browser, home):
    site, written = Site(), []
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def write(run, count):
        for n in range(len(written) + 1, len(written) + 1 + count):
            written.append(f"step {n} <b>bold</b>")
            site.write(run, "log.txt", f"{written[-1]}\n")
            site.report(run, (n, 0, "train/step_loss", 1 / n), (n, 0, "val/acc@1", n / 100))

    def shown(text, part="main"):
        return wait(browser, f"document.querySelector({part!r}).textContent.includes({text!r})")

    with serving(site.app, port) as url:
        show(browser, 1200)
        browser.get(url)
        browser.find_element(By.NAME, "token").send_keys(TOKEN)
        press(browser, "Log in")
        browser.find_element(By.NAME, "name").send_keys("<script>document.title = 'run'</script>")
        press(browser, "Make project")
        browser.find_element(By.NAME, "name").send_keys("tiny")
        browser.find_element(By.NAME, "config_json").clear()
        browser.find_element(By.NAME, "config_json").send_keys(json.dumps(TINY))
        press(browser, "Keep configuration")
        press(browser, "Queue run")
        shown("It waits: its time is being predicted")
        (run,) = site.database.rows(db.Run)
        site.move(run, "running", device="cpu[0]", placement="earliest end", start_s=time.time())
        write(run, 40)
        shown(written[-1], "#log")
        wait(browser, "document.querySelectorAll('.curve polyline').length === 2")
        shown("earliest end")
    wait(browser, "document.getElementById('connection').textContent.startsWith('The server does not answer')")
    write(run, 40)  # while nobody serves the page
    with serving(site.app, port):
        shown(written[-1], "#log")
        (paths.DATA / run.folder / "figures").mkdir()
        (paths.DATA / run.folder / "figures/roc.png").write_bytes(b"")
        site.move(run, "done", end_s=time.time())
        shown("Delete for good")
        wait(browser, "document.querySelectorAll('.figures img').length === 1")
        assert browser.find_element(By.ID, "log").text.splitlines() == written
        for width in (1200, 390):
            show(browser, width)
            for page in (f"web/projects/{run.project_id}/configs", f"web/projects/{run.project_id}/runs",
                         f"web/runs/{run.id}", "web/agents", "web/schedule", "docs"):
                browser.get(f"{url}/{page}")
                assert browser.execute_script("return document.documentElement.scrollWidth") <= width, page
        assert browser.title != "run"
        wrong = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
        assert not [line for line in wrong if "ERR_CONNECTION" not in line and "roc.png" not in line], wrong
