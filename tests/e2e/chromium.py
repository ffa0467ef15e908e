# Controls a headless Chromium with its DevTools protocol over a pair of pipes. Messages are JSON and end with a zero
# byte. Needs only Python. find() returns None if there is no Chromium.
import base64
import json
import os
import select
import shutil
import subprocess
import time


def find():
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        if shutil.which(name):
            return name
    return None


class Browser:
    def __init__(self, folder, limit):
        """Starts Chromium with its profile in `folder`. Every wait may take `limit` seconds."""
        self.limit, self.number, self.buffer, self.complaints = limit, 0, b"", []
        commands, self.commands = os.pipe()
        self.answers, answers = os.pipe()
        flags = ["--headless=new", "--remote-debugging-pipe", f"--user-data-dir={folder}", "--disable-gpu",
                 "--no-first-run", "--disable-dev-shm-usage", "--hide-scrollbars"]
        flags += ["--no-sandbox"] if os.geteuid() == 0 else []
        # Chromium reads from descriptor 3 and writes to descriptor 4.
        self.process = subprocess.Popen(["sh", "-c", f'exec "$@" 3<&{commands} 4>&{answers}', "sh", find(), *flags],
                                        pass_fds=(commands, answers), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(commands)
        os.close(answers)

    def close(self):
        try:
            self.call("Browser.close")
            self.process.wait(self.limit)
        finally:
            self.process.kill()
            self.process.wait()
        os.close(self.commands)
        os.close(self.answers)

    def receive(self):
        end = time.monotonic() + self.limit
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.answers], [], [], max(0, end - time.monotonic()))
            piece = os.read(self.answers, 1 << 20) if ready else b""
            if not piece:
                raise RuntimeError(f"chromium: nothing came within {self.limit} s")
            self.buffer += piece
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def call(self, method, session=None, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"chromium: {method}: {answer['error']}")
                return answer["result"]
            self.note(answer)

    def note(self, event):
        """Keeps the errors that the console of the browser shows."""
        kind, about = event.get("method"), event.get("params", {})
        if kind == "Runtime.exceptionThrown":
            self.complaints.append(about["exceptionDetails"].get("exception", {}).get("description", str(about)))
        elif kind == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(about["args"]))
        elif kind == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.complaints.append(about["entry"]["text"])

    def open(self, url, width=1280, dark=False):
        return Page(self, url, width, dark)


class Page:
    def __init__(self, browser, url, width, dark):
        self.browser, self.width, self.dark = browser, width, dark
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for part in ("Runtime", "Log", "Page"):
            self.call(part + ".enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Page.navigate", url=url)
        self.wait(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def value(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"chromium: {expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, expression):
        """Waits until the expression is true or an element, and returns its value."""
        end = time.monotonic() + self.browser.limit
        while not (value := self.value(f"(v => v instanceof Node || v)({expression})")):
            if time.monotonic() > end:
                raise RuntimeError(f"chromium: not so within {self.browser.limit} s: {expression}")
            time.sleep(0.02)
        return value

    def click(self, selector):
        self.value(f"document.querySelector({json.dumps(selector)}).click()")

    def fill(self, name, value, event="change"):
        """Gives the control with this id a value, and sends it the event."""
        self.value(f"(e => (e.value = {json.dumps(value)}, e.dispatchEvent(new Event('{event}'))))"
                   f"(document.getElementById('{name}'))")

    def press(self, *keys):
        numbers = {"Tab": 9, "Enter": 13, " ": 32, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39,
                   "ArrowDown": 40}
        for key in keys:
            code = "Space" if key == " " else key
            text = {"text": {"Enter": "\r"}.get(key, key)} if key == "Enter" or len(key) == 1 else {}
            self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", key=key, code=code,
                      windowsVirtualKeyCode=numbers.get(key, 0), **text)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=code, windowsVirtualKeyCode=numbers.get(key, 0))

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **({} if kind == "mouseMoved" else {"button": "left"}), **more)

    def drag(self, x, y, to):
        """Drags horizontally from x to `to`, at the height y in the window."""
        self.mouse("mousePressed", x, y, clickCount=1)
        for at in (x, (x + to) / 2, to):
            self.mouse("mouseMoved", at, y, buttons=1)
        self.mouse("mouseReleased", to, y, clickCount=1)

    def picture(self):
        """Returns a PNG of the whole page."""
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])
