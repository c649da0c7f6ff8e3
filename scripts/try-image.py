#!/usr/bin/env python3
"""Tries deploy/Dockerfile as far as a machine without Docker allows.

    scripts/try-image.py                    builds the program as the image does, then looks at everything below
    scripts/try-image.py --program FILE     takes a program that is built already (beside it: what cargo wrote as FILE.d)

- Every instruction is one that is known here; the compiler is the one of rust-toolchain.toml.
- What the build reads, and what is copied into the image, is in the build's context: .dockerignore leaves it in.
- The program needs no library but those of the image that it is copied into; it has no symbols and no lab.
- With the image's environment it starts, becomes healthy by the image's own check, and stops when it is told to. As root it
  does so in a root folder that holds what the image holds, as the image's user.

Where Docker is there, `docker build -f deploy/Dockerfile .` tells more.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCKERFILE = ROOT / "deploy/Dockerfile"
KNOWN = {"FROM", "ENV", "WORKDIR", "COPY", "RUN", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
# The C library and the compiler's: Debian's smallest image has both.
LIBRARIES = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1"}
START_SECONDS_MAX = 60
STOP_SECONDS_MAX = 30


class Wrong(Exception):
    pass


def expect(condition, problem):
    if not condition:
        raise Wrong(problem)


def instructions():
    """The Dockerfile's stages: each a list of (instruction, the rest of its line)."""
    text = re.sub(r"(?m)^\s*#.*\n", "", DOCKERFILE.read_text(encoding="utf-8")).replace("\\\n", " ")
    stages = []
    for line in filter(None, map(str.strip, text.splitlines())):
        word, _, rest = line.partition(" ")
        expect(word in KNOWN, f"{word} is no instruction that this program knows")
        if word == "FROM":
            stages.append([])
        stages[-1].append((word, rest.strip()))
    return stages


def only(stage, word):
    found = [rest for name, rest in stage if name == word]
    expect(len(found) == 1, f"{len(found)} of {word} where one was expected")
    return found[0]


def ignored():
    """Whether a path is left out of the context, by the patterns of .dockerignore: the last that matches decides."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    patterns = [line.strip() for line in lines if line.strip() and not line.startswith("#")]

    def matches(path, pattern):
        parts = path.split("/")
        starts = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
        if pattern.startswith("**/"):
            return any(fnmatch(part, pattern[3:]) for part in parts)
        return any(fnmatch(start, pattern) and start.count("/") == pattern.count("/") for start in starts)

    def is_ignored(path):
        result = False
        for pattern in patterns:
            if matches(path, pattern.removeprefix("!")):
                result = not pattern.startswith("!")
        return result

    return is_ignored


def check_context(stages, program):
    is_ignored = ignored()
    for stage in stages:
        for word, rest in stage:
            words = [each for each in shlex.split(rest) if not each.startswith("--")]
            if word == "COPY" and "--from" not in rest and words[0] != ".":
                for source in words[:-1]:
                    expect((ROOT / source).exists() and not is_ignored(source), f"{source} is not in the context")
    # What cargo read to make the program, as it notes it for make.
    noted = program.with_name(program.name + ".d").read_text(encoding="utf-8")
    read = [Path(path) for path in noted.partition(": ")[2].split()]
    inside = sorted(path.relative_to(ROOT) for path in read if path.is_relative_to(ROOT))
    expect(len(inside) > 100, f"only {len(inside)} sources: {program}.d is read wrongly")
    manifests = [path.relative_to(ROOT) for path in ROOT.glob("crates/*/Cargo.toml")]
    for path in [*inside, *manifests, "Cargo.toml", "Cargo.lock", "rust-toolchain.toml"]:
        expect(not is_ignored(str(path)), f"the build needs {path}, which .dockerignore leaves out")
    return len(inside)


def check_compiler(build):
    channel = re.search(r'^channel = "(.+)"', (ROOT / "rust-toolchain.toml").read_text(encoding="utf-8"), re.MULTILINE)[1]
    image = only(build, "FROM")
    expect(image.startswith(f"rust:{channel}-"), f"the image is built with {image}, rust-toolchain.toml names {channel}")
    expect(only(build, "ENV") == f"RUSTUP_TOOLCHAIN={channel}", f"RUSTUP_TOOLCHAIN is not {channel}")


def libraries(program):
    """What the dynamic linker finds for a program, by name."""
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return {Path(path).name: Path(path) for path in re.findall(r"(/\S+) \(0x", said)}


def check_what_is_left_out(program):
    symbols = subprocess.run(["nm", program], capture_output=True, text=True, check=False).stdout
    expect(not symbols, "the program has symbols: it is not stripped")
    called = subprocess.run([program, "bench", "group"], capture_output=True, text=True, check=False)
    expect("built without the lab" in called.stderr, f"`tidings bench` says: {called.stderr}")


def root_folder(final, folder, program):
    """A folder that holds of the image what a start and the check of health need."""
    for name in ["usr/local/bin", "etc/ssl/certs", "var/lib/tidings", "dev", "tmp", "bin"]:
        (folder / name).mkdir(parents=True)
    copied = {"/tidings": program, "/etc/ssl/certs/ca-certificates.crt": Path("/etc/ssl/certs/ca-certificates.crt")}
    for word, rest in final:
        if word == "COPY":
            source, target = [each for each in shlex.split(rest) if not each.startswith("--")]
            shutil.copy(copied.get(source, ROOT / source), folder / target.lstrip("/"))
            if "--chmod=755" in rest:
                (folder / target.lstrip("/")).chmod(0o755)
    bash = Path(shutil.which("bash"))
    shutil.copy(bash, folder / "bin/bash")
    for library in {**libraries(program), **libraries(bash)}.values():
        target = folder / str(library).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library.resolve(), target)
    os.mknod(folder / "dev/null", 0o666 | 0o020000, os.makedev(1, 3))
    (folder / "dev/null").chmod(0o666)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def check_life(final, program):
    environment = {}
    for word, rest in final:
        if word == "ENV":
            environment.update(each.split("=", 1) for each in shlex.split(rest))
    user = int(only(final, "USER"))
    home = Path(only(final, "WORKDIR"))
    expect(environment["TIDINGS_DATA_DIR"] == str(home) == only(final, "VOLUME"), "data, volume and working folder differ")
    command = json.loads(only(final, "ENTRYPOINT")) + json.loads(only(final, "CMD"))
    health = json.loads(only(final, "HEALTHCHECK").partition("CMD ")[2])
    port = free_port()
    environment.update(
        TIDINGS_HTTP_LISTEN=f"0.0.0.0:{port}", TIDINGS_MIOP_LISTEN=f"0.0.0.0:{free_port()}",
        TIDINGS_API_KEY="a-key-of-this-trial-alone", TIDINGS_TOKEN_KEY="a secret of this trial, and of no other", PATH="/usr/local/bin:/bin",
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "image"
        if os.getuid() == 0:
            root_folder(final, folder, program)
            os.chmod(temporary, 0o755)
            os.chown(folder / str(home).lstrip("/"), user, user)

            def enter():
                os.chroot(folder)
                os.chdir(home)
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
        else:
            enter = None
            (folder / "data").mkdir(parents=True)
            environment.update(TIDINGS_DATA_DIR=str(folder / "data"), PATH=f"{folder}:{os.environ['PATH']}")
            shutil.copy(program, folder / "tidings")
            shutil.copy(ROOT / "deploy/ready.sh", folder / "tidings-ready")

        def which(name):
            return name if os.getuid() == 0 else str(folder / name)

        log = open(Path(temporary) / "log", "w+", encoding="utf-8")
        server = subprocess.Popen([which(command[0]), *command[1:]], env=environment, preexec_fn=enter, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + START_SECONDS_MAX
            asked = [which(health[0]), *health[1:], str(port)]
            while subprocess.run(asked, env=environment, preexec_fn=enter, capture_output=True, check=False).returncode != 0:
                log.seek(0)
                expect(server.poll() is None, f"the program ended with {server.returncode}: {log.read()}")
                expect(time.monotonic() < deadline, f"not healthy after {START_SECONDS_MAX} s: {log.read()}")
                time.sleep(0.2)
            server.send_signal(signal.Signals[only(final, "STOPSIGNAL")])
            expect(server.wait(STOP_SECONDS_MAX) == 0, f"a stop ended with {server.returncode}")
        finally:
            if server.poll() is None:
                server.kill()
                server.wait()
            log.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", type=Path)
    arguments = parser.parse_args()
    stages = instructions()
    expect(len(stages) == 2, "one stage that builds, one that is the image")
    build, final = stages
    check_compiler(build)
    program = arguments.program
    if program is None:
        command = re.search(r"cargo build [^&]+", only(build, "RUN"))[0]
        subprocess.run(shlex.split(command), cwd=ROOT, check=True)
        program = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release/tidings"
    program = program.resolve()
    count = check_context(stages, program)
    needed = {name for name in libraries(program) if not name.startswith(("ld-", "linux-vdso"))}
    expect(needed <= LIBRARIES, f"the image has no {sorted(needed - LIBRARIES)}")
    check_what_is_left_out(program)
    check_life(final, program)
    where = "in the image's files, as its user" if os.getuid() == 0 else "with its environment"
    print(f"scripts/try-image.py: {count} sources in the context; {where}: healthy, and stopped when told to")


if __name__ == "__main__":
    try:
        main()
    except Wrong as wrong:
        sys.exit(f"scripts/try-image.py: {wrong}")
