"""Reverse proxies of Debian's packages, run in the foreground on a folder and ports of the suite's own."""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

# A proxy is there within a second; a machine that does something else takes longer.
START_SECONDS_MAX = 60


def program(name):
    """Where Debian puts what is for administrators is not on everybody's path."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/local/sbin")
    if not found:
        raise RuntimeError(f"{name} is not installed: scripts/setup.sh does it")
    return found


def free_ports(count):
    """Ports that nobody has now. Somebody may take one before the proxy does: `Proxy` then asks for others."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Proxy:
    """`configure(ports)` writes the configuration for these ports; `command` starts the proxy with it."""

    def __init__(self, command, configure, ports, log):
        self.log = Path(log)
        for attempt in range(10):
            self.ports = free_ports(ports)
            configure(self.ports)
            with open(self.log, "ab") as out:
                self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
            if self._answers():
                return
            self.stop()
        raise RuntimeError(f"{command[0]} did not start: {self.log.read_text(errors='replace')[-3000:]}")

    def _answers(self):
        end = time.monotonic() + START_SECONDS_MAX
        waiting = list(self.ports)
        while waiting:
            if self.process.poll() is not None or time.monotonic() > end:
                return False
            try:
                socket.create_connection(("127.0.0.1", waiting[0]), timeout=5).close()
                waiting.pop(0)
            except OSError:
                time.sleep(0.02)
        return self.process.poll() is None

    def signal(self, number):
        os.kill(self.process.pid, number)

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def substituted(text, *pairs):
    """The text with each pair replaced. What is not in it is a mistake: the file and the suite have drifted apart."""
    for old, new in pairs:
        assert old in text, f"{old!r} is not in the configuration any more"
        text = text.replace(old, new)
    return text


def nginx_folders(scratch):
    """Where nginx puts bodies and answers that it buffers: by default folders that only root may write."""
    return "".join(f"    {kind}_temp_path {scratch}/{kind};\n" for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"])


def nginx_configuration(scratch, server):
    """A configuration with nginx's defaults and one server, which lets no upgrade through."""
    return f"""
{"user root;" if os.geteuid() == 0 else ""}
pid {scratch}/nginx.pid;
error_log {scratch}/error.log;
events {{}}
http {{
{nginx_folders(scratch)}
    access_log off;
    client_max_body_size 8m;
    types {{ text/html html; text/javascript js; }}
    server {{
{server}
    }}
}}
"""
