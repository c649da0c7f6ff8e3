"""A server in a process of its own, on a folder and ports of its own.

`harness/server.py` needs the standard library only, so that it runs before anything is installed.
"""

import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

API_KEY = "interop-key-of-the-app-0123456789abcdef"
TOKEN_KEY = "interop secret that tokens are signed with"
# A server that is not there by then is not coming; on a loaded machine a start takes seconds.
START_SECONDS_MAX = 120


class Server:
    """`with Server(settings={"session.bind_timeout_ms": 500}) as server:`

    `settings` become TIDINGS_ variables (`session.bind_timeout_ms` is TIDINGS_SESSION__BIND_TIMEOUT_MS or its flat form, see
    `variable`), `env` is passed as it is, `arguments` follow `serve`. The folder stays from one `start` to the next.
    """

    def __init__(self, settings=None, env=None, arguments=(), program=None, start=True):
        self._folder = tempfile.TemporaryDirectory(prefix="tidings-")
        self.folder = Path(self._folder.name)
        self.data = self.folder / "data"
        self.api_key, self.token_key = API_KEY, TOKEN_KEY
        self.program = str(program or os.environ["TIDINGS_BIN"])
        self.arguments = list(arguments)
        self.env = {
            "PATH": os.environ.get("PATH", ""),
            "TIDINGS_HTTP_LISTEN": "127.0.0.1:0",
            "TIDINGS_MIOP_LISTEN": "127.0.0.1:0",
            "TIDINGS_DATA_DIR": str(self.data),
            "TIDINGS_API_KEY": API_KEY,
            "TIDINGS_TOKEN_KEY": TOKEN_KEY,
            # A suite sends as one user what it has to send.
            "TIDINGS_ENGINE_SENDS_PER_SECOND": "0",
            **{variable(name): str(value) for name, value in (settings or {}).items()},
            **(env or {}),
        }
        self.process = None
        if start:
            self.start()

    def start(self):
        """Starts it, and waits until it says where it listens."""
        listening = self.data / "listening"
        listening.unlink(missing_ok=True)
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [self.program, "serve", *self.arguments],
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        end = time.monotonic() + START_SECONDS_MAX
        while not listening.exists():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the server did not start:\n{self.log()}")
            time.sleep(0.02)
        self.listeners = dict(line.split("=", 1) for line in listening.read_text().split())
        self.http = self.listeners.get("http", "")
        self.url = f"http://{self.http}"
        self.ws = f"ws://{self.http}/v1/connect"
        self.miop = self.listeners.get("miop", "")
        return self

    def environment(self):
        """What suites find it by."""
        return {
            "TIDINGS_URL": self.url,
            "TIDINGS_WS": self.ws,
            "TIDINGS_MIOP": self.miop,
            "TIDINGS_API_KEY": self.api_key,
            "TIDINGS_TOKEN_KEY": self.token_key,
        }

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def log(self):
        try:
            return (self.folder / "log").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def kill(self):
        """As a crash ends it."""
        self._end(signal.SIGKILL)

    def stop(self):
        """In order: SIGTERM, and the hard way when it does not end within a minute. Answers with the exit status."""
        return self._end(signal.SIGTERM)

    def _end(self, how):
        if self.process is None:
            return None
        if self.process.poll() is None:
            self.process.send_signal(how)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        status, self.process = self.process.returncode, None
        return status

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self._folder.cleanup()


def variable(setting):
    """The variable of a setting: `session.bind_timeout_ms` is TIDINGS_SESSION_BIND_TIMEOUT_MS."""
    return "TIDINGS_" + setting.upper().replace(".", "_")
