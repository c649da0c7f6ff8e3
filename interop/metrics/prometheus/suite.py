"""`/metrics` read by the parsers of `prometheus_client`: the text format and OpenMetrics, by what `Accept` asks for;
and counters that move as messages and pushes are sent."""

import importlib.metadata
import os
import pathlib
import sys
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from harness.api import api  # noqa: E402
from harness.server import Server  # noqa: E402
from harness.tap import Tap  # noqa: E402
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open_metrics  # noqa: E402
from prometheus_client.parser import text_string_to_metric_families as read_text  # noqa: E402

# What Prometheus 2.5x and 3 ask with.
PROMETHEUS = ("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
              "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.4,*/*;q=0.2")
TEXT, OPEN = "text/plain", "application/openmetrics-text"
PATIENCE_S = 30


def check(condition, why=""):
    if not condition:
        raise AssertionError(why)


def fetch(url, accept=None):
    """Media type, its version, and the families by name."""
    headers = {"Accept": accept} if accept else {}
    with urllib.request.urlopen(urllib.request.Request(url + "/metrics", headers=headers), timeout=60) as answer:
        media_type, text = answer.headers, answer.read().decode()
    kind, version = media_type.get_content_type(), media_type.get_param("version")
    read = read_open_metrics if kind == OPEN else read_text
    families = {}
    for family in read(text):
        check(family.name not in families, f"the family {family.name} comes twice")
        families[family.name] = family
    return kind, version, families


def value(families, name, **labels):
    """The sum of all samples of this name that have these labels."""
    samples = [s for family in families.values() for s in family.samples if s.name == name]
    check(samples, f"no sample {name}")
    return sum(s.value for s in samples if labels.items() <= s.labels.items())


def described(families):
    check(len(families) > 30, f"only {len(families)} families")
    for family in families.values():
        check(family.documentation.strip(), f"{family.name} has no HELP")
        check(family.type in ("counter", "gauge", "histogram", "summary", "info"), f"{family.name} is of type {family.type}")
        check(family.name.startswith(("tidings_", "process_")), f"{family.name} has no prefix")
        for sample in family.samples:
            if family.type == "counter":
                check(sample.name.endswith(("_total", "_created")), f"the counter {sample.name} does not end in _total")
                check(sample.value >= 0, sample)
            if family.type == "gauge":
                check(not sample.name.endswith("_total"), f"the gauge {sample.name} ends in _total")


def histograms(families):
    seen = 0
    for family in families.values():
        if family.type != "histogram":
            continue
        seen += 1
        rows = {}
        for s in family.samples:
            key = tuple(sorted((k, v) for k, v in s.labels.items() if k != "le"))
            rows.setdefault(key, []).append(s)
        for samples in rows.values():
            buckets = [(float(s.labels["le"]), s.value) for s in samples if s.name.endswith("_bucket")]
            check(buckets and buckets == sorted(buckets), f"{family.name}: buckets do not ascend")
            check([n for _, n in buckets] == sorted(n for _, n in buckets), f"{family.name}: buckets are not cumulative")
            check(buckets[-1][0] == float("inf"), f"{family.name}: the last bucket is not +Inf")
            count = [s.value for s in samples if s.name.endswith("_count")]
            check(count == [buckets[-1][1]], f"{family.name}: {count} counted, {buckets[-1][1]} in +Inf")
    check(seen, "no histogram")


def names(families):
    """Families as both formats have them: an info of OpenMetrics is a gauge in the text."""
    def same(family):
        return (family.name + "_info", "gauge") if family.type == "info" else (family.name, family.type)
    return sorted((*same(family), tuple(sorted({s.name for s in family.samples}))) for family in families.values())


def main():
    tap = Tap(f"prometheus_client {importlib.metadata.version('prometheus_client')}")
    url = os.environ["TIDINGS_URL"]

    def formats():
        for accept, wanted in (
            (None, (TEXT, "0.0.4")), ("*/*", (TEXT, "0.0.4")), ("text/plain", (TEXT, "0.0.4")),
            ("text/plain;version=0.0.4;q=1,*/*;q=0.1", (TEXT, "0.0.4")),
            (PROMETHEUS, (OPEN, "1.0.0")), ("application/openmetrics-text; version=1.0.0; charset=utf-8", (OPEN, "1.0.0")),
        ):
            kind, version, _ = fetch(url, accept)
            check((kind, version) == wanted, f"{accept}: answered with {kind} {version}")
    tap.case("the format is the one that Accept asks for", formats)

    for name, accept in (("text", None), ("OpenMetrics", PROMETHEUS)):
        tap.case(f"{name}: every family has HELP, TYPE and a prefix, counters end in _total", lambda: described(fetch(url, accept)[2]))
        tap.case(f"{name}: histograms are cumulative, end in +Inf, and their counts agree", lambda: histograms(fetch(url, accept)[2]))
    tap.case("both formats name the same families and samples", lambda: check(
        (a := names(fetch(url)[2])) == (b := names(fetch(url, PROMETHEUS)[2])), f"{set(a) ^ set(b)}"))

    secret = "the secret of core and gateway"
    with Server(settings={"link.secret": secret, "link.listen": "127.0.0.1:0"}) as core:
        attach = {"role": "gateway", "link.to": core.listeners["link"], "link.secret": secret, "link.metrics_listen": "127.0.0.1:0"}
        with Server(settings=attach) as gateway:
            url_of_gateway = "http://" + gateway.listeners["metrics"]

            def of_a_gateway():
                for accept, wanted in ((None, (TEXT, "0.0.4")), (PROMETHEUS, (OPEN, "1.0.0"))):
                    kind, version, families = fetch(url_of_gateway, accept)
                    check((kind, version) == wanted, f"{accept}: answered with {kind} {version}")
                    described(families)
                    histograms(families)
            tap.case("a gateway's metrics in both formats", of_a_gateway)

    # Counters of a server that nobody else uses.
    with Server() as server:
        def call(method, path, body):
            return api(method, path, body, url=server.url)

        def moved(name, before, by, **labels):
            end = time.monotonic() + PATIENCE_S
            while (now := value(fetch(server.url)[2], name, **labels)) != before + by:
                check(time.monotonic() < end, f"{name} {labels} went from {before} to {now}, not by {by}")
                time.sleep(0.02)

        call("PUT", "/v1/users", {"users": [{"id": "ada"}, {"id": "ben"}]})
        call("POST", "/v1/conversations", {"id": "g", "kind": "group", "owner": "ada", "members": ["ben"]})

        def send(number, **to):
            call("POST", "/v1/messages", {"from": "ada", "client_msg_id": f"{number}", "body": {"text": "x"}, **to})

        def sends():
            before = fetch(server.url)[2]
            for i in range(7):
                send(f"g{i}", conversation="g")
            for i in range(5):
                send(f"d{i}", to="ben")
            send("d0", to="ben")
            moved("tidings_lane_entries_total", value(before, "tidings_lane_entries_total", lane="group"), 7, lane="group")
            moved("tidings_lane_entries_total", value(before, "tidings_lane_entries_total", lane="direct"), 5, lane="direct")
            moved("tidings_duplicate_sends_total", value(before, "tidings_duplicate_sends_total"), 1)
        tap.case("7 messages to a group, 5 direct ones and a retry are counted as that", sends)

        def pushes():
            before = fetch(server.url)[2]
            for i in range(3):
                call("POST", "/v1/push", {"to": {"users": ["ben"]}, "type": "text", "body": i})
            moved("tidings_pushes_accepted_total", value(before, "tidings_pushes_accepted_total"), 3)
        tap.case("3 pushes are counted as accepted", pushes)

        def never_back():
            first, second = fetch(server.url)[2], fetch(server.url)[2]
            for family in first.values():
                if family.type == "counter":
                    for s in family.samples:
                        after = [t.value for t in second[family.name].samples if (t.name, t.labels) == (s.name, s.labels)]
                        check(after and after[0] >= s.value, f"{s.name} {s.labels} went from {s.value} to {after}")
        tap.case("no counter goes back or away", never_back)
    tap.end()


if __name__ == "__main__":
    main()
