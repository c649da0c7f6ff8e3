"""Every case of this client; `run` starts it in the suites' environment."""

import os
import pathlib
import platform
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parents[2])]

import cases_bind  # noqa: E402
import cases_chat  # noqa: E402
import cases_listeners  # noqa: E402
import cases_ends  # noqa: E402
import cases_frames  # noqa: E402
import cases_push  # noqa: E402
from harness.tap import Tap  # noqa: E402
from lab import Lab  # noqa: E402


def main():
    tap = Tap(f"MIOP by docs/miop.md, Python {platform.python_version()}")
    lab = Lab.shared()
    cases_frames.run(tap, lab)
    cases_bind.run(tap, lab)
    cases_push.run(tap, lab)
    cases_chat.run(tap, lab)
    cases_ends.cut_in_a_frame(tap, lab)
    cases_ends.client_rules(tap, lab)
    tap.case("the server serves a fresh session at the end", lab.still_good)
    cases_ends.run(tap)
    cases_listeners.run(tap, pathlib.Path(os.environ["INTEROP_TMP"]))
    tap.end()


if __name__ == "__main__":
    main()
