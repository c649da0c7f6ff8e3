#!/usr/bin/env python3
"""The same group chat over WebSocket by k6 and by the lab, against the same server; and what each notices of planted faults.

    scripts/beside-k6/beside-k6.py [--program target/release/tidings] [--members 200] [--rate 50] [--seconds 20] [--rounds 3]

k6 is built from its Go module, at the version that go.mod names. Each round is a run of k6 and one of the lab, in turns, on a server of
their own with a data folder: CPU time and memory are those of the load generator and of the server's process. For the faults, a proxy in
front of the server loses, doubles, or swaps one of the entries that a member is handed; loses one and doubles another; or changes one.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "interop"))

import aiohttp  # noqa: E402
from aiohttp import web  # noqa: E402
from harness.api import call, token  # noqa: E402
from harness.server import Server  # noqa: E402

TEXT = "x" * 160
# Until then every member is bound.
BINDING_SECONDS = 10
DRAIN_SECONDS = 5
FAULTS = ["none", "lost", "doubled", "swapped", "lost and doubled", "changed"]


class Load(NamedTuple):
    members: int
    senders: int
    rate: int
    seconds: int


class Run(NamedTuple):
    status: int
    text: str
    cpu: float
    memory_mib: float
    server_cpu: float
    figures: dict


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(command, server, folder):
    """Runs a load generator; its status, what it printed, and what it and the server have used. (Of several processes the largest counts.)"""
    before = cpu_seconds(server.process.pid)
    with open(folder / "output", "w+b") as output:
        generator = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=folder)
        _, status, used = os.wait4(generator.pid, 0)
        generator.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read().decode()
    cpu = used.ru_utime + used.ru_stime
    return generator.returncode, text, cpu, used.ru_maxrss / 1024, cpu_seconds(server.process.pid) - before


def by_k6(k6, server, base, load, folder):
    users = [f"k6-{number}" for number in range(load.members)]
    status, _, answer = call("PUT", "/v1/users", {"users": [{"id": user} for user in users]}, url=server.url, key=server.api_key)
    assert status == 200, answer
    group = {"kind": "group", "members": users}
    status, _, answer = call("POST", "/v1/conversations", group, url=server.url, key=server.api_key)
    assert status in (200, 201), answer
    begin = time.time() + BINDING_SECONDS
    plan = {
        "url": base.replace("http:", "ws:") + "/v1/connect", "conversation": answer["id"], "text": TEXT,
        "tokens": [token(user, key=server.token_key) for user in users],
        "senders": load.senders, "messages": load.rate * load.seconds, "rate": load.rate,
        "begin": begin * 1000, "end": (begin + load.seconds + DRAIN_SECONDS) * 1000,
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    command = [k6, "run", "--quiet", "--no-usage-report", "--summary-export", folder / "k6.json", "-e", f"PLAN={folder}/plan.json", HERE / "chat.js"]
    found = measured(command, server, folder)
    figures = json.loads((folder / "k6.json").read_text())["metrics"] if (folder / "k6.json").exists() else {}
    return Run(*found, figures)


def by_lab(program, server, base, load, folder):
    command = [
        program, "bench", "group", "--quiet", "--via", "ws", "--members", load.members, "--senders", load.senders, "--rate", load.rate,
        "--duration", f"{load.seconds}s", "--url", base, "--api-key", server.api_key, "--token-key", server.token_key,
        "--json", folder / "lab.json",
    ]
    found = measured([str(part) for part in command], server, folder)
    figures = json.loads((folder / "lab.json").read_text()) if (folder / "lab.json").exists() else {}
    return Run(*found, figures)


class FaultyProxy:
    """Hands everything on, but for one of the entries that one of the sessions is handed."""

    def __init__(self, target, fault):
        self.target, self.fault = target, fault
        self.passed, self.held, self.is_done, self.sessions = 0, [], False, 0
        ready = threading.Event()
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self._serve, args=(ready,), daemon=True).start()
        ready.wait()

    def _serve(self, ready):
        asyncio.set_event_loop(self.loop)

        async def start():
            self.session = aiohttp.ClientSession(auto_decompress=False)
            app = web.Application(client_max_size=1 << 26)
            app.router.add_route("*", "/{path:.*}", self._handle)
            self.runner = web.AppRunner(app, access_log=None)
            await self.runner.setup()
            site = web.TCPSite(self.runner, "127.0.0.1", 0)
            await site.start()
            self.url = "http://127.0.0.1:%d" % site._server.sockets[0].getsockname()[1]
            ready.set()

        self.loop.run_until_complete(start())
        self.loop.run_forever()

    async def _handle(self, request):
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return await self._socket(request)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in ("host", "content-length", "transfer-encoding")}
        async with self.session.request(request.method, self.target + request.path_qs, headers=headers, data=await request.read()) as answer:
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in ("content-length", "transfer-encoding", "connection")}
            return web.Response(status=answer.status, headers=kept, body=await answer.read())

    async def _socket(self, request):
        client = web.WebSocketResponse(max_msg_size=0, compress=False)
        await client.prepare(request)
        self.sessions += 1
        is_victim = self.sessions == 3
        async with self.session.ws_connect(self.target + request.path_qs, max_msg_size=0) as server:
            async def up():
                async for message in client:
                    await (server.send_str(message.data) if message.type == aiohttp.WSMsgType.TEXT else server.send_bytes(message.data))
                await server.close()

            upward = asyncio.create_task(up())
            async for message in server:
                is_text = message.type == aiohttp.WSMsgType.TEXT
                try:
                    for data in self._frames(message.data) if is_victim and is_text else [message.data]:
                        await (client.send_str(data) if is_text else client.send_bytes(data))
                except ConnectionResetError:
                    # The client has all that it wanted.
                    break
            await client.close(code=server.close_code or 1000)
            upward.cancel()
        return client

    def _frames(self, text):
        """The frames in place of this one. The fault comes once some entries have passed."""
        frame = json.loads(text)
        if frame["t"] != "messages" or self.is_done:
            return [text]
        self.passed += len(frame["entries"])
        if self.passed < 20:
            return [text]
        entries = frame["entries"]
        entry = entries[-1]
        if self.fault == "lost":
            entries.pop()
        elif self.fault == "doubled":
            entries.append(entry)
        elif self.fault == "changed":
            entry["body"] = {**entry["body"], "text": "y"} if isinstance(entry["body"], dict) else "y"
        elif self.fault in ("swapped", "lost and doubled"):
            if not self.held and len(entries) < 2:
                # It waits for another entry.
                self.held = entries
                return []
            entries[:0] = self.held
            entries[-2:] = [entries[-1], entries[-2]] if self.fault == "swapped" else [entries[-1], entries[-1]]
        self.is_done = True
        return [json.dumps(frame, separators=(",", ":"), ensure_ascii=False)]

    def stop(self):
        async def end():
            await self.runner.cleanup()
            await self.session.close()

        asyncio.run_coroutine_threadsafe(end(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)


def build_k6(folder):
    print("building k6 ...", flush=True)
    subprocess.run(["go", "build", "-o", folder / "k6", "go.k6.io/k6"], cwd=HERE, check=True)
    return folder / "k6"


def medians(runs):
    return [statistics.median(getattr(run, what) for run in runs) for what in ("cpu", "memory_mib", "server_cpu")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "target/release/tidings"))
    parser.add_argument("--k6", help="a k6 that is there already")
    parser.add_argument("--members", type=int, default=200)
    parser.add_argument("--senders", type=int, default=10)
    parser.add_argument("--rate", type=int, default=50)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    program = str(Path(arguments.program).resolve())
    load = Load(arguments.members, arguments.senders, arguments.rate, arguments.seconds)
    with tempfile.TemporaryDirectory(prefix="beside-k6-") as name:
        folder = Path(name)
        k6 = arguments.k6 or build_k6(folder)
        runs = {"k6": [], "lab": []}
        for number in range(arguments.rounds):
            for tool in runs:
                with Server(program=program) as server:
                    run = by_k6(k6, server, server.url, load, folder) if tool == "k6" else by_lab(program, server, server.url, load, folder)
                print(f"round {number + 1}: {tool}: exit {run.status}, CPU {run.cpu:.2f} s, memory {run.memory_mib:.0f} MiB, server {run.server_cpu:.2f} s", flush=True)
                if run.status != 0:
                    print(run.text)
                runs[tool].append(run)
        script = len((HERE / "chat.js").read_text().splitlines())
        print(f"\n{load.members} members online, {load.rate} messages a second by {load.senders} of them for {load.seconds} s: "
              f"{load.rate * load.seconds * load.members} deliveries; medians of {arguments.rounds} rounds")
        print("       lines to write   CPU s   memory MiB   server's CPU s")
        for tool, lines in (("k6", script), ("lab", 1)):
            cpu, memory, server_cpu = medians(runs[tool])
            print(f"  {tool:<4} {lines:>14}  {cpu:>6.2f}   {memory:>10.0f}   {server_cpu:>14.2f}")
        print(f"ratio of CPU, k6 to lab: {medians(runs['k6'])[0] / medians(runs['lab'])[0]:.1f}\n")
        print("planted, once, for one member   k6            lab")
        small = Load(20, 2, 20, 10)
        for fault in FAULTS:
            found = []
            for tool in runs:
                with Server(program=program) as server:
                    proxy = FaultyProxy(server.url, fault)
                    run = by_k6(k6, server, proxy.url, small, folder) if tool == "k6" else by_lab(program, server, proxy.url, small, folder)
                    proxy.stop()
                    assert proxy.is_done or fault == "none", run.text
                found.append("passed" if run.status == 0 else f"exit {run.status}")
                if tool == "lab":
                    found.append(next(line.split("of", 1)[1] for line in run.text.splitlines() if line.strip().startswith("deliveries")))
            print(f"  {fault:<28}  {found[0]:<12}  {' '.join(found[1:])}", flush=True)


if __name__ == "__main__":
    main()
