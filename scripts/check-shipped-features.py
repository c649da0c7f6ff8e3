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
    ("parking_lot", "arc_lock"): r"\b(lock|read|write|upgradable_read)_arc\b|\bArc(Mutex|RwLock)\w*Guard\b",
    ("rustix", "pty"): r"\brustix::pty\b",
    ("rustix", "stdio"): r"\brustix::stdio\b",
    ("rustix", "termios"): r"\brustix::termios\b",
    ("tokio", "test-util"): r"\btime::(pause|resume|advance)\b|\btokio_test\b",
}


def chosen(*arguments):
    """By library and version, the sets of features with which it is compiled: one for programs, perhaps another for build scripts."""
    command = ["cargo", "tree", "--locked", "--prefix=none", "--format={p}\t{f}", *arguments]
    told = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    found = {}
    for line in set(told.splitlines()):
        if "\t" in line:
            library, features = line.removesuffix(" (*)").split("\t")
            found.setdefault(library, set()).add(frozenset(filter(None, features.split(","))))
    return found


def main():
    ships = chosen("--package=tidings", "--no-default-features", "--features=otel", "--edges=normal,build")
    tests = chosen("--workspace", "--no-default-features", "--features=tidings/otel", "--edges=normal,build,dev")
    ours = [Path(found[1]) for library in ships if (found := re.search(r" \((/.+)\)$", library))]
    direct = chosen("--package=tidings", "--no-default-features", "--features=otel", "--edges=normal", "--depth=0")
    for crate in ours:
        direct |= chosen(f"--manifest-path={crate}/Cargo.toml", "--no-default-features", "--edges=normal", "--depth=1")
    problems = []
    for library in sorted(ships.keys() & direct.keys()):
        name = library.split()[0]
        # What ships is in none of the sets that tests compile: it gets fewer.
        for features in ships[library] - tests[library]:
            more = min((other - features for other in tests[library] if other > features), key=len, default=None)
            if more is None:
                problems.append(f"{library} ships with {sorted(features)}, which no test compiles")
                continue
            for feature in sorted(more):
                needs = OF_TESTS.get((name, feature))
                if needs is None:
                    problems.append(
                        f"{library} has the feature {feature} in tests and not in what ships: where the code that ships needs it,"
                        f" name it in Cargo.toml; otherwise add it to OF_TESTS in {Path(__file__).name}"
                    )
                    continue
                for source in (source for crate in ours for source in crate.glob("src/**/*.rs")):
                    for number, line in enumerate(source.read_text().splitlines(), 1):
                        if re.search(needs, line):
                            where = source.relative_to(ROOT)
                            problems.append(f"{where}:{number} needs {name}'s feature {feature}, which does not ship")
    if not ours or not direct:
        problems.append("cargo names no crate that ships")
    for problem in problems:
        print(f"error: {problem}")
    if not problems:
        print(f"{len(direct)} libraries of {len(ours)} crates have in what ships the features that our code needs")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
