#!/usr/bin/env python3
"""Builds every test of the workspace and runs them, several programs at a time.

    scripts/run-tests.py [NAME ...]           programs whose source's path contains a NAME, for example crates/gateway/tests
    scripts/run-tests.py --quick              without what needs PostgreSQL, Redis or a cluster, or is marked `// Slow:`
    scripts/run-tests.py --shuffle SEED       tests in another order; with --repeat N, in N orders

`cargo test` runs one program after another, with a thread for each core. Most tests wait, for a server or for a time-out
that they are about: here several programs run at a time, each with more threads. TEST_THREADS and TEST_PROGRAMS say how many.

Each crate has one program of tests, `tests/it`. Those beside it are programs of their own because they are about a process
(what it holds in memory, what it starts again from its own file): they run one by one, beside the others.

What a program printed is printed when it has ended, as `cargo test` prints it. The slowest tests are named at the end.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from quick_tests import Quick

ROOT = Path(__file__).resolve().parent.parent
CORES = os.cpu_count() or 1
THREADS = int(os.environ.get("TEST_THREADS") or 4 * CORES)
PROGRAMS = int(os.environ.get("TEST_PROGRAMS") or CORES)
SLOWEST = 10
QUICK_SECONDS_MAX = 60

RESULT = re.compile(r"^(test (.+) \.\.\. .*?)(?: <([0-9.]+)s>)?$")
TOTAL = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored")
# Told at once: the others are told when their program has ended, and one that hangs never ends.
URGENT = re.compile(r"^test .* has been running for over")

running = {}  # by process: its program, and what it printed
is_over = threading.Event()
lock = threading.Lock()


def say(text):
    with lock:
        print(text, flush=True)


@dataclass(frozen=True, eq=False)
class Program:
    title: str
    command: tuple
    folder: str
    environment: dict
    source: Path
    rerun: str
    has_harness: bool = True
    is_aside: bool = False

    def arguments(self, seed, left_out):
        """The times of tests are an option that libtest calls unstable. A harness of another's takes its other arguments."""
        skipped = [argument for module in left_out for argument in ("--skip", f"{module}::")]
        if not self.has_harness:
            return skipped
        shuffled = ["--shuffle-seed", str(seed)] if seed is not None else []
        return ["-Zunstable-options", "--report-time", f"--test-threads={THREADS}", *shuffled, *skipped]


@dataclass(frozen=True, eq=False)
class Outcome:
    program: Program
    status: int
    seconds: float
    lines: list
    times: list  # of (seconds, name)


def build():
    """The programs of tests, those with most tests first."""
    command = ["cargo", "test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]
    built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if built.returncode:
        sys.exit(built.returncode)
    messages = [json.loads(line) for line in built.stdout.splitlines()]
    programs = [program(m) for m in messages if m["reason"] == "compiler-artifact" and m["profile"]["test"] and m["executable"]]
    return sorted(programs, key=lambda one: -os.path.getsize(one.command[0]))


def program(artifact):
    """How cargo would run it: in the folder of its package, with the variables that tell of it."""
    manifest = Path(artifact["manifest_path"])
    package, target = tomllib.loads(manifest.read_text()), artifact["target"]
    source, kind, name = Path(target["src_path"]), target["kind"][0], target["name"]
    harness = next((test.get("harness", True) for test in package.get("test", []) if test["name"] == name and kind == "test"), True)
    environment = {
        **os.environ,
        "CARGO": os.environ.get("CARGO", "cargo"),
        "CARGO_MANIFEST_DIR": str(manifest.parent),
        "CARGO_PKG_NAME": package["package"]["name"],
        "RUSTC_BOOTSTRAP": "1",
    }
    shown = source.relative_to(ROOT)
    return Program(
        title=f"     Running {'' if kind == 'test' else 'unittests '}{shown} ({os.path.relpath(artifact['executable'], ROOT)})",
        command=(artifact["executable"],),
        folder=str(manifest.parent),
        environment=environment,
        source=shown,
        rerun=f"-p {package['package']['name']} --{kind}{'' if kind == 'lib' else f' {name}'}",
        has_harness=harness,
        is_aside=kind == "test" and name != "it",
    )


EXAMPLES = Program(
    title="     Running examples in the documentation",
    command=("cargo", "test", "--workspace", "--doc", "--no-fail-fast"),
    folder=str(ROOT),
    environment=dict(os.environ),
    source=Path("examples in the documentation"),
    rerun="--workspace --doc",
    has_harness=False,
    is_aside=True,
)


def run(program, seed=None, left_out=()):
    """Runs a program in a process group of its own, so that nothing that it started outlives it."""
    began, lines, times = time.monotonic(), [], []
    if is_over.is_set():
        return Outcome(program, 1, 0, lines, times)
    process = subprocess.Popen(
        [*program.command, *program.arguments(seed, left_out)], cwd=program.folder, env=program.environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
    running[process] = program, lines

    def read():
        for line in process.stdout:
            line = line.rstrip("\n")
            if URGENT.match(line):
                say(line)
            if found := RESULT.match(line):
                line = found[1]
                if found[3]:
                    times.append((float(found[3]), found[2]))
            lines.append(line)

    # Not on this thread: what the program started may hold the pipe when it has ended.
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    status = process.wait()
    end(process)
    reader.join(10)
    del running[process]
    return Outcome(program, status, time.monotonic() - began, lines, times)


def end(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def interrupted(number, _):
    """Names what is running, and leaves nothing behind."""
    is_over.set()
    ended = list(running.items())
    for process, _ in ended:
        end(process)
    for _, (program, lines) in ended:
        print(f"error: {program.source} was ended; these of its tests had not finished:", flush=True)
        for name in without_result(program, lines):
            print(f"error:     {name}", flush=True)
    # What began between the two.
    for process in list(running):
        end(process)
    os._exit(128 + number)


def without_result(program, lines):
    """The tests that ran or were to run."""
    if not program.has_harness:
        return []
    command = [*program.command, "--list", "--format=terse"]
    try:
        listed = subprocess.run(command, cwd=program.folder, env=program.environment, capture_output=True, text=True, timeout=20)
    except subprocess.TimeoutExpired:
        return ["it did not list its tests in time"]
    names = [line.removesuffix(": test") for line in listed.stdout.splitlines() if line.endswith(": test")]
    ended = {found[2] for line in lines if (found := RESULT.match(line))}
    return [name for name in names if name not in ended]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--shuffle", metavar="SEED", type=int)
    parser.add_argument("--repeat", metavar="N", type=int, default=1)
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupted)

    began = time.monotonic()
    programs = [one for one in build() if not arguments.names or any(name in str(one.source) for name in arguments.names)]
    quick = Quick() if arguments.quick else None
    left_out = {one: quick.choose(one) if quick else [] for one in programs}
    programs = [one for one in programs if left_out[one] is not None]
    if not quick and not arguments.names:
        programs.append(EXAMPLES)
    built = time.monotonic()

    outcomes = []
    with ThreadPoolExecutor(PROGRAMS) as pool, ThreadPoolExecutor(1) as aside:
        seeds = [arguments.shuffle + n if arguments.shuffle is not None else None for n in range(arguments.repeat)]
        jobs = [(aside if one.is_aside else pool).submit(run, one, seed, left_out.get(one, ())) for seed in seeds for one in programs]
        for job in as_completed(jobs):
            outcome = job.result()
            outcomes.append(outcome)
            say("\n".join([outcome.program.title, *outcome.lines]))
            if outcome.status:
                say(f"error: test failed with status {outcome.status}, to rerun pass `{outcome.program.rerun}`")

    if quick:
        quick.tell()
    totals = [map(int, found.groups()) for one in outcomes for line in one.lines if (found := TOTAL.match(line))]
    passed, failed, ignored = (sum(column) for column in zip(*totals)) if totals else (0, 0, 0)
    print(f"\nThe slowest tests, with {PROGRAMS} programs at a time and {THREADS} threads each:")
    for seconds, name, where in sorted(((s, name, one.program.source) for one in outcomes for s, name in one.times), reverse=True, key=lambda row: row[0])[:SLOWEST]:
        print(f"{seconds:8.1f} s  {name}  ({where})")
    print("\nThe slowest programs:")
    for one in sorted(outcomes, key=lambda one: -one.seconds)[:SLOWEST]:
        print(f"{one.seconds:8.1f} s  {one.program.source}")
    seconds = time.monotonic() - built
    print(f"\n{passed} tests passed, {failed} failed, {ignored} were ignored, in {len(outcomes)} programs; built in {built - began:.0f} s, run in {seconds:.0f} s")
    if quick and seconds > QUICK_SECONDS_MAX:
        print(f"That is more than {QUICK_SECONDS_MAX} s. A line `// Slow: …` in their file leaves tests out.")
    broken = [one.program for one in outcomes if one.status]
    if broken:
        print(f"\nerror: {len(broken)} programs failed:", *(f"`{one.rerun}`" for one in broken), sep="\n    ")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
