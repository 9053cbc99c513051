"""A headless Chromium, driven by Playwright: enough to see a page as a reader sees it."""

import os
import shutil
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking")


@dataclass
class Visit:
    requests: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Chrome:
    """One browser with one tab. Use as a context manager."""

    def __init__(self, patience=90.0):
        found = [os.environ.get("CHROMIUM"), *map(shutil.which, NAMES)]
        program = next(filter(None, found), None)
        if program is None:
            pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
        self._playwright = sync_playwright().start()
        self._browser = self._playwright.chromium.launch(executable_path=program, args=FLAGS)
        self.page = self._browser.new_page()
        self.page.set_default_timeout(1000 * patience)
        self.session = self.page.context.new_cdp_session(self.page)
        self._visit = Visit()
        self.page.on("request", lambda one: self._visit.requests.append(one.url))
        self.page.on("requestfailed", self._failed)
        self.page.on("response", self._answered)
        self.page.on("pageerror", lambda error: self._visit.errors.append(str(error)))
        self.page.on("console", self._said)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._browser.close()
        self._playwright.stop()

    def _failed(self, request):
        if request.failure != "net::ERR_ABORTED":  # given up for another page
            self._visit.failed.append(f"{request.url}: {request.failure}")

    def _answered(self, response):
        if response.status >= 400:
            self._visit.failed.append(f"{response.url}: {response.status}")

    def _said(self, message):
        if message.type == "error":
            self._visit.errors.append(f"{message.text} {message.location.get('url', '')}")

    def resize(self, width, height=900):
        phone = width < 600
        size = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1}
        self.session.send("Emulation.setDeviceMetricsOverride", {**size, "mobile": phone})

    def open(self, url, width=1280, height=900):
        """Load a page, formulas included."""
        self.resize(width, height)
        self._visit = Visit()
        self.page.goto(url)
        self.run("window.MathJax?.startup?.promise")
        return self._visit

    def run(self, script):
        return self.page.evaluate(script)

    def wait(self, script):
        """The value of the expression as soon as it is true."""
        return self.page.wait_for_function(script, polling=50).json_value()
