"""`tidings bench --otlp`: the exports of a run decoded by OpenTelemetry's own messages, and compared with the JSON of the same
run; and collectors that hang, refuse or are away, which change nothing of a run."""

import importlib.metadata
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from collector import Collector, away, hanging  # noqa: E402
from harness.tap import Tap  # noqa: E402

CUMULATIVE = 2
COUNTERS = ("planned", "sent", "committed", "answers", "refused", "retried", "expected", "delivered", "lost", "doubled",
            "out_of_order", "altered", "broken", "wrong", "reconnects")
# A debug build on a busy machine sends late, which is not what this is about.
GROUP = ["group", "--members", "5", "--rate", "200", "--lag-max", "60s"]
SECONDS_MAX = 120
# What a collector may cost: an export that is under way, the last one, and a busy machine.
DELAY_SECONDS_MAX = 15

SCENARIO = """
name = "two-at-once"
about = "A script beside a group, then the group again."
[population.g]
kind = "group"
members = 4
[script.s]
sessions = 2
seed = 18446744073709551615
steps = ["bind", { wait = "1s" }]
[[phase]]
name = "first"
duration = "2s"
[[phase.work]]
name = "group"
population = "g"
rate = 50
[[phase.work]]
name = "script"
script = "s"
[[phase]]
name = "second"
duration = "2s"
[[phase.work]]
name = "group"
population = "g"
rate = 100
"""


def check(condition, why=""):
    if not condition:
        raise AssertionError(why)


def bench(arguments, url, folder):
    """Exit code, what was said on standard error, the figures, and how long it took."""
    figures = pathlib.Path(folder) / "figures.json"
    figures.unlink(missing_ok=True)
    command = [os.environ["TIDINGS_BIN"], "bench", *arguments, "--json", str(figures), *(["--otlp", url] if url else [])]
    started = time.monotonic()
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, cwd=folder,
                           env={**os.environ, "NO_PROXY": "127.0.0.1"})
    seconds = time.monotonic() - started
    check(figures.exists(), f"exit code {ended.returncode}:\n{ended.stdout}{ended.stderr}")
    return ended.returncode, ended.stderr, json.loads(figures.read_text()), seconds


def is_quiet(said):
    """Nothing is said of the collector, but for a machine so busy that an export took longer than a second."""
    return all("longer than a second" in line for line in said.splitlines() if line.startswith("--otlp"))


def parts_of(value):
    """The measured parts of a result by their titles."""
    if isinstance(value, dict):
        if "title" in value and "latency" in value:
            yield value["title"], value
        else:
            for inner in value.values():
                yield from parts_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from parts_of(inner)


def attributes(of):
    return {attribute.key: attribute.value.string_value for attribute in of.attributes}


def points(request):
    """All points of an export: (resource, metric, part) and the point."""
    for of_resource in request.resource_metrics:
        resource = tuple(sorted(attributes(of_resource.resource).items()))
        for metric in (metric for scope in of_resource.scope_metrics for metric in scope.metrics):
            data = getattr(metric, metric.WhichOneof("data"))
            for point in data.data_points:
                yield (resource, metric.name, attributes(point).get("part")), metric, data, point


def last_points(requests):
    """The last point of each series, after it was checked that no count of any series ever falls."""
    last = {}
    for request in requests:
        seen = set()
        for key, metric, data, point in points(request):
            check(key not in seen, f"{key} has two points in one export")
            seen.add(key)
            if metric.WhichOneof("data") == "gauge":
                check(not point.start_time_unix_nano, "a gauge with a start")
            else:
                check(data.aggregation_temporality == CUMULATIVE, f"{key} is not cumulative")
                check(0 < point.start_time_unix_nano <= point.time_unix_nano, f"{key}: {point}")
            if metric.WhichOneof("data") == "sum":
                check(data.is_monotonic and metric.unit == "1", metric)
            if before := last.get(key):
                check(before[1].start_time_unix_nano == point.start_time_unix_nano, f"{key} began again")
                check(before[1].time_unix_nano < point.time_unix_nano, f"{key}: time went back")
                if metric.WhichOneof("data") == "sum":
                    check(before[1].as_int <= point.as_int, f"{key} fell from {before[1].as_int} to {point.as_int}")
                if metric.WhichOneof("data") == "exponential_histogram":
                    old, new = buckets(before[1]), buckets(point)
                    check(all(new.get(i, 0) >= count for i, count in old.items()), f"{key}: a bucket fell")
            last[key] = metric, point
    return last


def buckets(point):
    counts = {point.positive.offset + i: count for i, count in enumerate(point.positive.bucket_counts) if count}
    check(sum(counts.values()) + point.zero_count == point.count, f"buckets and count differ: {point}")
    return counts


def at_quantile(point, quantile):
    """The bounds of the bucket with this quantile, in milliseconds."""
    rank, passed = max(1, math.ceil(quantile * point.count)), 0
    for index, count in sorted(buckets(point).items()):
        passed += count
        if passed >= rank:
            return tuple(2 ** ((index + i) / 2**point.scale) for i in (0, 1))
    raise AssertionError("no such quantile")


def compare(collector, figures, scenario):
    """The last point of every series with the result, exactly. Returns the attributes of the resource, and the last points by
    metric and part."""
    check(not collector.wrong, collector.wrong)
    last = last_points(collector.requests)
    resources = {resource for resource, _, _ in last}
    check(len(resources) == 1, resources)
    resource = dict(resources.pop())
    check(resource["service.name"] == "tidings-bench" and resource["service.version"] == figures["run"]["version"], resource)
    check(resource["service.instance.id"] == figures["run"]["id"], f"{resource} of run {figures['run']['id']}")
    check(resource["tidings.scenario"] == scenario, resource)
    exported = {(name, part): point for (_, name, part), (_, point) in last.items()}
    parts = dict(parts_of(figures))
    check(parts, "the result has no part")
    for title, part in parts.items():
        for name in COUNTERS:
            value = part.get(name)
            if isinstance(value, int):
                check((name, title) in exported, f"{name} of {title} was not exported")
                check(exported[name, title].as_int == value, f"{name} of {title}: {exported[name, title].as_int}, not {value}")
        for name in ("planned", "sent", "acknowledged", "delivered"):
            if (name, title) in exported and name not in part:
                check(exported[name, title].as_int == sum(part["series"][name]), f"{name} of {title} is not the sum of its series")
    return resource, exported, parts


def main():
    tap = Tap(f"opentelemetry-proto {importlib.metadata.version('opentelemetry-proto')}")
    folder = tempfile.TemporaryDirectory(prefix="tidings-otlp-", dir=os.environ.get("INTEROP_TMP"))

    def group():
        with Collector() as collector:
            code, said, figures, _ = bench([*GROUP, "--duration", "5s"], collector.url, folder.name)
        check(code == 0 and is_quiet(said), f"{code} {said}")
        resource, exported, parts = compare(collector, figures, "group")
        check("tidings.seed" not in resource, resource)
        check(len(collector.requests) >= 4, f"{len(collector.requests)} exports of 5 s")
        (title, part), = parts.items()
        check(part["sent"] == 1000 and part["delivered"] == part["expected"] > 0, part)
        growing = {point.as_int for request in collector.requests for (_, name, _), _, _, point in points(request) if name == "sent"}
        check(len(growing) >= 4, f"sent took only the values {sorted(growing)}")
        return exported, title, part
    run = tap.case("a run's last sums are the counters of its result, and grew every second", group)

    def latencies():
        exported, title, part = run
        point = exported["latency", title]
        check(point.count == part["delivered"], f"{point.count} latencies of {part['delivered']} deliveries")
        for name, quantile in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0)):
            low, high = at_quantile(point, quantile)
            # The result's histogram has three digits, that of the series two.
            check(low * 0.98 <= part["latency"][name] <= high * 1.02, f"{name}: {part['latency'][name]} ms between {low} and {high}")
        check(abs(point.sum / point.count / part["latency"]["mean"] - 1) < 0.02, f"mean {point.sum / point.count} ms")
        check(abs(point.max / part["latency"]["max"] - 1) < 0.02, f"max {point.max} ms")
    tap.case("the histogram has every delivery, and the percentiles of the result", latencies)

    def server():
        exported, _, part = run
        cores, size = exported["server_cores", None].as_double, exported["server_bytes", None].as_int
        check(any(abs(cores - sample) < 1e-9 for sample in part["samples"]["server_cores"] if sample is not None), cores)
        check(size in part["samples"]["server_bytes"], size)
    tap.case("the server's CPU and memory are samples of the result", server)

    def scenario():
        file = pathlib.Path(folder.name) / "two.toml"
        file.write_text(SCENARIO)
        with Collector() as collector:
            code, said, figures, _ = bench(["run", str(file), "--lag-max", "60s"], collector.url, folder.name)
        check(code == 0 and is_quiet(said), f"{code} {said}")
        resource, _, parts = compare(collector, figures, "two-at-once")
        check(resource["tidings.seed"] == "18446744073709551615", resource)
        check(set(parts) == {"first: group", "first: script", "second: group"}, set(parts))
        newest = {part for (_, _, part), *_ in points(collector.requests[-1]) if part}
        check(newest <= {"second: group"}, f"the last export has {newest}")
    tap.case("parts that run at once and after each other are apart, and those that are over go", scenario)

    whole = bench([*GROUP, "--duration", "2s"], None, folder.name)

    def shape(value):
        """The names in a document, without those that depend on what was measured."""
        if isinstance(value, dict):
            return {name: shape(inner) for name, inner in value.items() if name not in ("metrics", "doubts", "kernel")}
        return None

    def without(make, said_wanted):
        def run_it():
            with make() as where:
                code, said, figures, seconds = bench([*GROUP, "--duration", "2s"], getattr(where, "url", where), folder.name)
            check(code == whole[0] == 0, f"exit code {code}: {said}")
            lines = [line for line in said.splitlines() if line.startswith("--otlp")]
            check(len(lines) == 1 and said_wanted in lines[0] and " were not sent: " in lines[0], said)
            check(figures["run"]["verdict"] == whole[2]["run"]["verdict"] == "passed", figures["run"])
            check(shape(figures) == shape(whole[2]), "the result has other figures than one without a collector")
            for (_, part), (_, other) in zip(parts_of(figures), parts_of(whole[2]), strict=True):
                for name in COUNTERS:
                    check(part.get(name) == other.get(name), f"{name}: {part.get(name)}, without a collector {other.get(name)}")
            check(seconds < whole[3] + DELAY_SECONDS_MAX, f"{seconds:.1f} s, without a collector {whole[3]:.1f} s")
        return run_it
    for name, make, said in (
        ("is away", away, "onnection refused"),
        ("hangs", hanging, "timed out"),
        ("takes longer than an export may", lambda: Collector(delay=SECONDS_MAX), "timed out"),
        ("answers 503", lambda: Collector(status=503), "the collector answered 503"),
        ("refuses points", lambda: Collector(rejects=3), "the collector refused points: no such tenant"),
    ):
        tap.case(f"a collector that {name} changes nothing of the run, and is told of once", without(make, said))

    def refusals():
        for arguments, why in (
            ([*GROUP, "--otlp", "localhost:4318"], "begins with http:// or https://"),
            (["crash", "--otlp", "http://127.0.0.1:9"], "--otlp: this bench is no scenario"),
        ):
            ended = subprocess.run([os.environ["TIDINGS_BIN"], "bench", *arguments], capture_output=True, text=True, timeout=SECONDS_MAX)
            check(ended.returncode == 2 and why in ended.stderr, f"{arguments}: {ended.returncode} {ended.stderr}")
    tap.case("a URL that is none, and a bench that is no scenario, are wrong usage", refusals)
    folder.cleanup()
    tap.end()


if __name__ == "__main__":
    main()
