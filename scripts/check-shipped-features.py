#!/usr/bin/env python3
"""What ships compiles by itself, though only the tests are built: no library has a feature for tests or the lab alone that
our code needs.

Tests are built with the features that all crates, the lab and the tests ask for together. What ships asks for fewer. A feature
that it lacks would break `make run` and no test. Compiling both takes minutes; comparing what cargo would choose, a second.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Features that tests or the lab alone ask for, with what our code would name if it needed them.
OF_TESTS = {
    ("parking_lot", "arc_lock"): r"\b(lock|read|write|upgradable_read)_arc\b|Arc(Mutex|RwLock)\w*Guard\b",
    ("rustix", "pty"): r"\brustix::([^;]*\W)?pty\b",
    ("rustix", "stdio"): r"\brustix::([^;]*\W)?stdio\b",
    ("rustix", "termios"): r"\brustix::([^;]*\W)?termios\b",
    ("tokio", "test-util"): r"\btime::(\{[^;]*\W)?(pause|resume|advance)\b|\btokio_test\b",
}


def chosen(*arguments):
    """By library and version, the features with which it is compiled for programs. What runs while others are compiled is left out."""
    edges = "normal,no-proc-macro" if "--workspace" not in arguments else "normal,dev,no-proc-macro"
    command = ["cargo", "tree", "--locked", f"--edges={edges}", "--prefix=none", "--format={p}\t{f}", *arguments]
    told = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    lines = {line.removesuffix(" (*)") for line in told.splitlines() if "\t" in line}
    return {library: set(filter(None, features.split(","))) for library, features in (line.split("\t") for line in lines)}


def main():
    shipped = ("--package=tidings", "--no-default-features", "--features=otel")
    ships = chosen(*shipped)
    tests = chosen("--workspace", "--no-default-features", "--features=tidings/otel")
    ours = [Path(found[1]) for library in ships if (found := re.search(r" \((/.+)\)$", library))]
    direct = set(chosen(*shipped, "--depth=1"))
    for crate in ours:
        direct |= chosen(f"--manifest-path={crate}/Cargo.toml", "--no-default-features", "--depth=1").keys()
    problems = []
    for library in sorted(ships.keys() & direct):
        name = library.split()[0]
        for feature in sorted(tests[library] - ships[library]):
            needs = OF_TESTS.get((name, feature))
            if needs is None:
                problems.append(
                    f"{library} has the feature {feature} in tests and not in what ships: where the code that ships needs it,"
                    f" name it in Cargo.toml; otherwise add it to OF_TESTS in {Path(__file__).name}"
                )
                continue
            for source in (source for crate in ours for source in crate.glob("src/**/*.rs")):
                text = source.read_text()
                for found in re.finditer(needs, text):
                    where = f"{source.relative_to(ROOT)}:{text.count(chr(10), 0, found.start()) + 1}"
                    problems.append(f"{where} needs {name}'s feature {feature}, which does not ship")
    if not ours or not direct:
        problems.append("cargo names no crate that ships")
    for problem in problems:
        print(f"error: {problem}")
    if not problems:
        print(f"{len(direct)} libraries of {len(ours)} crates have in what ships the features that our code needs")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
