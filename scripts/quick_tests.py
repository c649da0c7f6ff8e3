"""What `make test-quick` leaves out: a file of tests by what it uses or says, so that no list needs to be kept."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OTHERS, SLOW = "start a database, Redis or a cluster", "take long"


class Quick:
    def __init__(self):
        # The types by which tests start MariaDB, PostgreSQL and Redis: defined in the files that run these programs.
        files = [path.read_text() for path in ROOT.glob("crates/*/tests/**/*.rs")]
        starts = [text for text in files if re.search(r'"(initdb|mariadb-install-db|redis-server)"', text)]
        launchers = {name for text in starts for name in re.findall(r"^pub(?:\([a-z]+\))? struct (\w+(?:Server|Cluster)) ", text, re.M)}
        if not all(any(name.startswith(word) for name in launchers) for word in ("Mariadb", "Postgres", "Redis")):
            sys.exit(f"scripts/run-tests.py no longer finds how tests start MariaDB, PostgreSQL and Redis: it found {sorted(launchers)}")
        # `tidings cluster --nodes` starts both, `tidings bench brokers` other servers.
        self.other = re.compile(rf'\b({"|".join(launchers)})\b|"cluster", "--nodes"|"bench", "brokers"')
        self.left_out = {OTHERS: set(), SLOW: set()}

    def leaves_out(self, path):
        """Whether a file of tests, or a folder of files, is left out."""
        text = "\n".join(file.read_text() for file in ([path] if path.is_file() else sorted(path.rglob("*.rs"))))
        why = OTHERS if self.other.search(text) else SLOW if re.search("^// Slow: ", text, re.M) else None
        if why:
            self.left_out[why].add(str(path.relative_to(ROOT)))
        return why is not None

    def choose(self, program):
        """The modules of a program that are left out; None if that is all of it."""
        source = ROOT / program.source
        if source.parent.parent.name != "tests":
            is_test = source.parent.name == "tests"
            return None if is_test and self.leaves_out(source) else []
        if source.parent.name != "it":
            return None if self.leaves_out(source.parent) else []
        listed = subprocess.run([*program.command, "--list", "--format=terse"], check=True, stdout=subprocess.PIPE, text=True).stdout
        names = [line.removesuffix(": test") for line in listed.splitlines() if line.endswith(": test")]
        modules = {name.split("::")[0] for name in names}
        files = {path.stem: path for path in source.parent.iterdir() if path.is_dir() or path.suffix == ".rs"}
        out = sorted(module for module in modules if module in files and self.leaves_out(files[module]))
        return out if len(out) < len(modules) else None

    def tell(self):
        print("\nLeft out, and run by `make test`:")
        for why, paths in self.left_out.items():
            print(f"- {len(paths)} files of tests that {why}", *sorted(paths), sep="\n    ")
        print("- examples in the documentation, tests that are marked as ignored, and every client of interop/")
