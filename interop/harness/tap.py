"""Test Anything Protocol 13, as far as suites need it."""

import sys
import traceback


class Tap:
    """`tap = Tap("websockets 15.0"); tap.case("binds", lambda: ...); tap.end()`"""

    def __init__(self, client):
        print("TAP version 13")
        print(f"# client: {client}", flush=True)
        self.count = 0
        self.failures = 0

    def case(self, name, check):
        """Runs `check`; the case fails when it raises, or answers with False."""
        try:
            answer = check()
            self.report(name, answer is not False, "the check answered with False")
            return answer
        except Exception:  # noqa: BLE001 - whatever it is, it is told
            self.report(name, False, traceback.format_exc())
            return None

    async def async_case(self, name, check):
        """The same for a coroutine function."""
        try:
            answer = await check()
            self.report(name, answer is not False, "the check answered with False")
            return answer
        except Exception:  # noqa: BLE001
            self.report(name, False, traceback.format_exc())
            return None

    def report(self, name, passed, why=""):
        self.count += 1
        print(f"{'ok' if passed else 'not ok'} {self.count} - {name.replace('#', '')}")
        if not passed:
            self.failures += 1
            for line in str(why).rstrip().splitlines():
                print(f"# {line}")
        sys.stdout.flush()

    def end(self):
        """Prints the plan, and ends the program."""
        print(f"1..{self.count}", flush=True)
        sys.exit(1 if self.failures else 0)
