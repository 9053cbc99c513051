"""A headless Chromium over its DevTools protocol: enough to see a page as a reader sees it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

import pytest
import websocket

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage",
    "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--hide-scrollbars", "--remote-debugging-port=0",
)  # fmt: skip


@dataclass
class Visit:
    requests: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Chrome:
    """One browser with one tab. Use as a context manager."""

    def __init__(self, profile: Path, patience: float = 90.0) -> None:
        found = [os.environ.get("CHROMIUM"), *map(shutil.which, NAMES)]
        program = next(filter(None, found), None)
        if program is None:
            pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
        self._log = (profile / "log").open("w")
        command = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        self._patience = patience
        self._number = 0
        self._visit = Visit()
        self._urls: dict[str, str] = {}
        self._loaded = False
        port = self._port(profile / "DevToolsActivePort")
        opener = build_opener(ProxyHandler({}))  # a proxy would not know this machine's loopback
        with opener.open(f"http://127.0.0.1:{port}/json", timeout=patience) as answer:
            tab = next(t for t in json.load(answer) if t["type"] == "page")
        how = {"timeout": patience, "suppress_origin": True, "http_no_proxy": ["127.0.0.1"]}
        self._socket = websocket.create_connection(tab["webSocketDebuggerUrl"], **how)
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Chrome:
        return self

    def __exit__(self, *_: object) -> None:
        self.send("Browser.close")
        self._socket.close()
        self._process.wait(timeout=self._patience)
        self._log.close()

    def _port(self, file: Path) -> str:
        end = time.monotonic() + self._patience
        while time.monotonic() < end:
            if file.is_file() and file.read_text().strip():
                return file.read_text().split()[0]
            if self._process.poll() is not None:
                break
            time.sleep(0.05)
        raise RuntimeError(f"Chromium did not start: {(file.parent / 'log').read_text()[-500:]}")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its answer; events that arrive meanwhile are recorded."""
        self._number += 1
        number = self._number
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]
            self._note(message)

    def _note(self, event: dict[str, Any]) -> None:
        name, data = event.get("method"), event.get("params", {})
        if name == "Page.loadEventFired":
            self._loaded = True
        elif name == "Network.requestWillBeSent":
            url = data["request"]["url"]
            self._urls[data["requestId"]] = url
            self._visit.requests.append(url)
        elif name == "Network.loadingFailed" and not data.get("canceled"):
            url = self._urls.get(data["requestId"], "?")
            self._visit.failed.append(f"{url}: {data['errorText']}")
        elif name == "Network.responseReceived" and data["response"]["status"] >= 400:
            self._visit.failed.append(f"{data['response']['url']}: {data['response']['status']}")
        elif name == "Runtime.exceptionThrown":
            details = data["exceptionDetails"]
            what = details.get("exception", {}).get("description", details["text"])
            self._visit.errors.append(f"{what} ({details.get('url', '')})")
        elif name == "Log.entryAdded" and data["entry"]["level"] == "error":
            self._visit.errors.append(f"{data['entry']['text']} {data['entry'].get('url', '')}")
        elif name == "Runtime.consoleAPICalled" and data["type"] == "error":
            self._visit.errors.append(json.dumps([a.get("value") for a in data["args"]]))

    def resize(self, width: int, height: int = 900) -> None:
        phone = width < 600
        size = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1}
        self.send("Emulation.setDeviceMetricsOverride", **size, mobile=phone)

    def open(self, url: str, width: int = 1280, height: int = 900) -> Visit:
        """Load a page in a window of that size (below 600 wide: as a phone), formulas included."""
        self.resize(width, height)
        self._visit, self._urls, self._loaded = Visit(), {}, False
        self.send("Page.navigate", url=url)
        end = time.monotonic() + self._patience
        while not self._loaded:
            if time.monotonic() > end:
                raise TimeoutError(f"{url} did not load in {self._patience} s")
            self.send("Runtime.evaluate", expression="0")
            time.sleep(0.02)
        self.run("window.MathJax?.startup?.promise")
        return self._visit

    def run(self, script: str) -> Any:
        answer = self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, script: str) -> Any:
        """The value of the expression as soon as it is true; TimeoutError where it never is."""
        end = time.monotonic() + self._patience
        while time.monotonic() < end:
            try:
                if value := self.run(script):
                    return value
            except RuntimeError as error:
                if "navigated" not in str(error):  # between two pages: ask the next one
                    raise
            time.sleep(0.05)
        raise TimeoutError(f"never true: {script}")
