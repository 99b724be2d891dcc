"""The dashboard in a real browser: from the login to a run's live log and curves, over a restart, on a desktop and a phone."""

import json
import os
import shutil

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from lib import paths
from lib.dashboard import database as db
from tests.agents import free_port, serving
from tests.dashboards import TINY, TOKEN, Site

pytestmark = pytest.mark.nightly  # test_dashboard fills the same forms and reads the same streams without a browser


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
    site, written, port = Site(), [], free_port()

    def write(run, many):
        for n in range(len(written) + 1, len(written) + 1 + many):
            written.append(f"step {n} <b>bold</b>")
            site.output(run, (n, written[-1]), step=n, values={"loss": 1 / n, "images_per_sec": 100.0 + n, "lr": 0.1})

    with serving(site.app, port) as url:
        show(browser, 1200)
        browser.get(url)
        browser.find_element(By.NAME, "token").send_keys(TOKEN)
        press(browser, "Log in")
        browser.find_element(By.NAME, "name").send_keys("<script>document.title = 'run'</script>")
        press(browser, "Make project")
        browser.find_element(By.XPATH, "//summary[text()='Pasted JSON']").click()
        form = browser.find_element(By.XPATH, "//form[.//textarea[@name='config']]")
        form.find_element(By.NAME, "name").send_keys("tiny")
        form.find_element(By.NAME, "config").send_keys(json.dumps(TINY))
        form.find_element(By.TAG_NAME, "button").click()
        press(browser, "Queue run")
        wait(browser, "document.querySelector('[data-fact=state]')?.textContent === 'queued'")
        run = site.operations.get(db.Run, site.dispatcher.submit.call_args[0][0])
        wait(browser, "document.getElementById('now').textContent.includes('It waits: its time is being predicted')")
        site.dispatcher.planned = [(run.id, "ws/cpu", 90.0, 95.0, "planned", "earliest end")]
        wait(browser, "document.getElementById('now').textContent.includes('it starts in 0:01:30 on ws/cpu')")
        site.move(run, "running", device="cpu[0]", placement="earliest end")
        wait(browser, "!document.getElementById('now').textContent.includes('It waits')")
        write(run.id, 40)
        wait(browser, "document.querySelectorAll('[data-line]').length === 40")
        wait(browser, "document.querySelectorAll('#curves .curve polyline').length === 2")
        wait(browser, "document.querySelectorAll('#rest .curve').length === 1")
        assert wait(browser, "document.querySelector('[data-fact=placement]').textContent") == "earliest end"
    wait(browser, "document.getElementById('connection').textContent.startsWith('The connection is lost')")
    write(run.id, 40)  # while nobody serves the page
    with serving(site.app, port):
        wait(browser, "document.querySelectorAll('[data-line]').length === 80")
        write(run.id, 40)
        (paths.DATA / run.folder / "figures").mkdir()
        (paths.DATA / run.folder / "figures/roc.png").write_bytes(b"")
        site.move(run, "finished")
        wait(browser, "document.querySelector('[data-fact=state]').textContent === 'finished'")
        wait(browser, "document.querySelectorAll('.figures img').length === 1")  # without loading the page again
        assert wait(browser, "[...document.querySelectorAll('[data-line]')].map(one => one.textContent.trim())") == written
        project = site.get("projects")[0]["id"]
        for width in (1200, 390):
            show(browser, width)
            for page in (f"web/projects/{project}/configs", f"web/projects/{project}/runs", f"web/runs/{run.id}",
                         "web/schedule", "docs"):
                browser.get(f"{url}/{page}")
                assert browser.execute_script("return document.documentElement.scrollWidth") <= width, page
        assert browser.title != "run"
        wrong = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
        assert not [line for line in wrong if "ERR_CONNECTION" not in line and "ERR_INCOMPLETE" not in line], wrong
