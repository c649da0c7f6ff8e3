#!/usr/bin/python3
"""Keeps deploy/ true to the program: its files parse and fit together, and the settings and metrics that they name exist.

    scripts/check-deploy.py                  what is in deploy/, against the sources
    scripts/check-deploy.py --metrics FILE   metrics against what a running server's /metrics says (labelled ones that
                                             have not counted yet are not in it)

Programs that know a format better (kubectl, promtool, haproxy, systemd-analyze) are asked where they are installed.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"

# PENDING: named by deploy/, and not yet in the program. Remove a line when the program has it; the check tells which.
PENDING_SETTINGS = set()
PENDING_METRICS = set()
# END OF PENDING

# Variables of deploy/ itself: the passwords from which urls are put together.
OWN_VARIABLES = {"TIDINGS_DB_PASSWORD"}
# Not settings in the file, but read by the program.
PROGRAM_VARIABLES = {"TIDINGS_CONFIG"}

problems = []


def expect(condition, problem):
    if not condition:
        problems.append(problem)


def read(path):
    return path.read_text(encoding="utf-8")


def files(*patterns):
    found = sorted({file for pattern in patterns for file in DEPLOY.rglob(pattern) if file.is_file()})
    assert found, f"nothing is {patterns}"
    return found


def name_of(path):
    return str(path.relative_to(ROOT))


# What the program has.


def settings():
    """The variables of all settings, from the sample that a test compares with the program's."""
    table, known = "", set()
    for line in read(ROOT / "tidings.sample.toml").splitlines():
        if match := re.fullmatch(r"\[(\w+)]", line):
            table = match[1] + "_"
        elif match := re.match(r"(?:# )?(\w+) = ", line):
            known.add(f"TIDINGS_{table}{match[1]}".upper())
    return known


SUFFIXES = {"Counter": ["_total"], "Gauge": [""], "Histogram": ["_bucket", "_sum", "_count"]}


def metrics_of_sources():
    """Every metric that is registered: `register("name", "help", value)`, a row of a table of such, or a line of their declaration."""
    known = set()
    for file in (ROOT / "crates").glob("*/src/**/*.rs"):
        text = read(file)
        if "metric" not in text.lower():
            continue
        types = dict(re.findall(r"(\w+): (?:Family<\w+, )?(Counter|Gauge|Histogram)\b", text))
        types.update(re.findall(r"let (\w+) = Family::<\w+, (Counter|Gauge|Histogram)>", text))
        for name, value in re.findall(r'(?:register|\()\(?\s*"([a-z][a-z_]+)",\s*(?:"[^"]+"|\w+),\s*([^)]*)', text):
            words = [word for word in re.findall(r"\w+", value) if word in types]
            # Where the type cannot be seen, any will do.
            suffixes = SUFFIXES[types[words[-1]]] if words else ["_info", *sum(SUFFIXES.values(), [])]
            known.update(f"tidings_{name}{suffix}" for suffix in suffixes)
        # A line of the declaration of all metrics: `field: Counter = "name", "help";`
        for kind, name in re.findall(r'\w+: (?:Family<\w+, )?(Counter|Gauge|Histogram)(?:<[^=]*>|>)? = "([a-z_]+)",', text):
            known.update(f"tidings_{name}{suffix}" for suffix in SUFFIXES[kind])
        for name in re.findall(r'encode_descriptor\("([a-z_]+)", \w+, Some\(&Unit::Seconds\)', text):
            known.update(f"tidings_{name}_seconds{suffix}" for suffix in sum(SUFFIXES.values(), []))
    return known


def metrics_of_output(text):
    known = set()
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)", text, re.MULTILINE):
        known.update(name + suffix for suffix in SUFFIXES[kind.capitalize()])
    return known


# What deploy/ says.


def check_formats():
    for file in files("*.yml", "*.yaml"):
        try:
            list(yaml.safe_load_all(read(file)))
        except yaml.YAMLError as error:
            problems.append(f"{name_of(file)}: {error}")
    for file in files("*.json"):
        try:
            json.loads(read(file))
        except ValueError as error:
            problems.append(f"{name_of(file)}: {error}")
    for file in files("*.sh"):
        shell = "bash" if read(file).startswith("#!/bin/bash") else "sh"
        run(f"{name_of(file)}", [shell, "-n", str(file)])
    for number, line in enumerate(read(DEPLOY / "sysctl.conf").splitlines(), 1):
        expect(re.fullmatch(r"#.*|\s*|[a-z0-9_.-]+ = [0-9 ]+", line), f"deploy/sysctl.conf:{number} is no setting: {line}")


def check_names(known_metrics):
    known_settings = settings()
    for file in sorted(DEPLOY.rglob("*")):
        if not file.is_file() or file.name == ".env":
            continue
        for name in set(re.findall(r"\bTIDINGS_[A-Z_]*[A-Z]\b", read(file))):
            known = known_settings | OWN_VARIABLES | PROGRAM_VARIABLES | PENDING_SETTINGS
            expect(name in known, f"{name_of(file)} names {name}, which is no setting")
    for file in [DEPLOY / "alerts.yml", *files("grafana/*.json"), *(ROOT / "docs").rglob("operations*.md"),
                 *(ROOT / "docs/operations").glob("*.md")]:
        text = read(file)
        expect(file.suffix != ".json" or "tidings_" in text, f"{name_of(file)} shows nothing of ours")
        # Prose speaks of a histogram by its bare name; `tidings_bus_*` and the names of volumes are none.
        known = known_metrics | PENDING_METRICS
        if file.suffix == ".md":
            known |= {name.removesuffix("_bucket") for name in known_metrics}
        for name in sorted(set(re.findall(r"\btidings_[a-z_]*[a-z]\b(?![-*])", text))):
            expect(name in known, f"{name_of(file)} names {name}, which is no metric")
    for name in sorted((PENDING_SETTINGS & known_settings) | (PENDING_METRICS & known_metrics)):
        print(f"scripts/check-deploy.py: {name} is there now; remove it from PENDING")


def check_compose_file(file):
    """One file by itself: its services fit together, and what it asks for is offered. Returns its services."""
    text = read(file)
    compose = yaml.safe_load(text)
    services = compose["services"]
    has_healthcheck = {name for name, service in services.items() if "healthcheck" in service}
    used = {"volumes": set(), "configs": set(), "networks": set()}
    for name, service in services.items():
        where = f"{name_of(file)}, {name}"
        image = service["image"]
        expect(image == "tidings" or re.search(r":v?\d", image), f"{where}: {image} has no version")
        for other, needs in service.get("depends_on", {}).items():
            condition = needs["condition"]
            expect(other in services, f"{where} depends on {other}, which is no service")
            expect(condition != "service_healthy" or other in has_healthcheck, f"{where}: {other} has no healthcheck")
            expect(condition != "service_completed_successfully" or services[other].get("restart") == "no",
                   f"{where}: {other} never completes")
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                expect((DEPLOY / source).exists(), f"{where}: there is no {source}")
            else:
                used["volumes"].add(source)
        used["configs"] |= {config["source"] for config in service.get("configs", [])}
        used["networks"] |= set(service.get("networks", []))
    for kind, names in used.items():
        declared = set(compose.get(kind, {}))
        expect(names == declared, f"{name_of(file)}: {kind} used and declared differ: {names ^ declared}")
    for config in compose.get("configs", {}).values():
        expect((DEPLOY / config["file"]).exists(), f"{name_of(file)}: there is no {config['file']}")
    asked = set(re.findall(r"(?<!\$)\$\{(\w+)", text))
    offered = set(re.findall(r"^(\w+)=", read(DEPLOY / ".env.example"), re.MULTILINE))
    expect(asked <= offered, f".env.example has no {sorted(asked - offered)}, which {name_of(file)} asks for")
    return services, offered - asked


def check_compose():
    check_compose_file(DEPLOY / "compose.single-server.yml")
    services, unused = check_compose_file(DEPLOY / "compose.yml")
    expect(not unused, f".env.example has {sorted(unused)}, for which compose.yml does not ask")
    # The image's own check, which the image of a release does not carry.
    checked = json.loads(re.search(r"^HEALTHCHECK .* CMD (.*)", read(DEPLOY / "Dockerfile"), re.MULTILINE)[1])
    for where, service, _ in servers():
        expect(service["healthcheck"]["test"] == ["CMD", *checked], f"{where} is not checked as the image says, by {checked}")

    prometheus = yaml.safe_load(read(DEPLOY / "prometheus.yml"))
    targets = [target for job in prometheus["scrape_configs"] for group in job["static_configs"] for target in group["targets"]]
    balanced = re.findall(r"^\s+server \w+ (\S+)", read(DEPLOY / "haproxy/haproxy.cfg"), re.MULTILINE)
    nodes = {name for name, service in services.items() if service["image"] == "tidings"}
    for what, addresses in [("prometheus.yml", targets), ("haproxy.cfg", balanced)]:
        hosts = {address.split(":")[0] for address in addresses}
        expect(hosts == nodes, f"{what} knows {sorted(hosts)}, the nodes are {sorted(nodes)}")
    advertised = {services[node]["environment"].get("TIDINGS_CLUSTER_ADVERTISE") for node in nodes}
    names = {services[node]["environment"].get("TIDINGS_CLUSTER_NAME") for node in nodes}
    expect(advertised == {f"http://{node}:8080" for node in nodes}, f"nodes advertise {advertised}")
    expect(len(names) == len(nodes), "two nodes have one name")


def check_kubernetes():
    folder = DEPLOY / "kubernetes"
    resources = [folder / name for name in yaml.safe_load(read(folder / "kustomization.yaml"))["resources"]]
    for resource in resources:
        expect(resource.exists(), f"kustomization.yaml: there is no {resource.name}")
    documents = [document for file in sorted(folder.glob("*.yaml")) for document in yaml.safe_load_all(read(file))]
    by_kind = {}
    for document in documents:
        expect({"apiVersion", "kind"} <= set(document), f"deploy/kubernetes: not a resource: {document}")
        by_kind.setdefault(document["kind"], []).append(document)
    secret = {key for document in by_kind["Secret"] for key in document["stringData"]}
    templates = [document["spec"]["template"] for kind in ("StatefulSet", "Job") for document in by_kind[kind]]
    labels = [template["metadata"]["labels"] for template in templates]
    ports = {port["name"] for template in templates for container in template["spec"]["containers"]
             for port in container.get("ports", [])}

    def selects(selector):
        return any(selector.items() <= label.items() for label in labels)

    for kind in ("Service", "NetworkPolicy", "PodDisruptionBudget", "StatefulSet"):
        for document in by_kind[kind]:
            spec, where = document["spec"], f"deploy/kubernetes, {kind} {document['metadata']['name']}"
            selector = spec.get("selector") or spec.get("podSelector")
            expect(selects(selector.get("matchLabels", selector)), f"{where} selects nothing")
            if kind == "Service":
                for port in spec["ports"]:
                    target = port.get("targetPort", port["port"])
                    expect(isinstance(target, int) or target in ports, f"{where}: no container has a port {target}")
    services = {document["metadata"]["name"] for document in by_kind["Service"]}
    for document in by_kind["StatefulSet"]:
        expect(document["spec"]["serviceName"] in services, f"deploy/kubernetes: no Service {document['spec']['serviceName']}")
    for key in re.findall(r"secretKeyRef: \{ name: tidings, key: (\w+)", "".join(map(read, folder.glob("*.yaml")))):
        expect(key in secret, f"secret.example.yaml has no {key}")

    node = next(d for d in by_kind["StatefulSet"] if d["metadata"]["name"] == "tidings")["spec"]["template"]["spec"]
    drain = int(next(d for d in by_kind["ConfigMap"])["data"]["TIDINGS_DRAIN_DEADLINE_MS"]) / 1000
    waits = int(node["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    # The server ends a stop that is late by itself after five seconds.
    expect(node["terminationGracePeriodSeconds"] > waits + drain + 5, "a pod is killed before it has drained")


# What a server that stands alone does without.
OF_CLUSTER = {"TIDINGS_LINK_LISTEN", "TIDINGS_STORE_URL", "TIDINGS_CLUSTER_REDIS", "TIDINGS_CLUSTER_SECRET"}


def servers():
    """Every server that a compose file starts: where, its service, and whether it is a node of a cluster."""
    for file in files("compose*.yml"):
        for name, service in yaml.safe_load(read(file))["services"].items():
            if service["image"] == "tidings":
                yield f"{name_of(file)}, {name}", service, file.name == "compose.yml"


def port_of(address):
    return int(address.rsplit(":", 1)[1])


def check_ports():
    """Every port at which a node listens is declared, and whoever needs it is let in."""
    needed = {"TIDINGS_HTTP_LISTEN", "TIDINGS_MIOP_LISTEN", "TIDINGS_LINK_LISTEN"}
    assert needed <= settings(), "the settings of listeners have other names"
    dockerfile = read(DEPLOY / "Dockerfile")
    exposed = {int(port) for line in re.findall(r"^EXPOSE (.*)", dockerfile, re.MULTILINE) for port in line.split()}
    of_image = dict(re.findall(r"\b(TIDINGS_\w+_LISTEN)=(\S+)", dockerfile))
    for where, service, is_node in servers():
        listens = of_image | {key: value for key, value in service["environment"].items() if key.endswith("_LISTEN")}
        missing = (needed if is_node else needed - OF_CLUSTER) - set(listens)
        expect(not missing, f"{where} has no fixed {sorted(missing)}")
        for setting, address in listens.items():
            expect(port_of(address) in exposed, f"deploy/Dockerfile does not EXPOSE the port of {setting}, {address}")

    documents = [document for file in sorted((DEPLOY / "kubernetes").glob("*.yaml")) for document in yaml.safe_load_all(read(file))]
    pods = [document["spec"]["template"] for document in documents if document["kind"] in ("StatefulSet", "Job")]
    for document in documents:
        if document["kind"] != "NetworkPolicy":
            continue
        where = f"deploy/kubernetes, NetworkPolicy {document['metadata']['name']}"
        selected = document["spec"]["podSelector"]["matchLabels"]
        ports = {port["name"]: port["containerPort"] for pod in pods if selected.items() <= pod["metadata"]["labels"].items()
                 for container in pod["spec"]["containers"] for port in container.get("ports", [])}
        let_in = set()
        for rule in document["spec"]["ingress"]:
            for port in (entry["port"] for entry in rule["ports"]):
                expect(port in ports or port in ports.values(), f"{where} names {port}, at which no pod of it listens")
                let_in.add(ports.get(port, port))
                expect(port != "link" or rule.get("from"), f"{where} lets anybody in at link")
        for name, port in ports.items():
            expect(port in let_in, f"{where} lets nobody in at {name}, {port}")
        if document["metadata"]["name"] == "tidings":
            given = next(d for d in documents if d["kind"] == "ConfigMap")["data"]
            listens = {key: port_of(value) for key, value in given.items() if key.endswith("_LISTEN")}
            expect(needed <= set(listens), f"deploy/kubernetes/settings.yaml has no fixed {sorted(needed - set(listens))}")
            expect(set(listens.values()) == set(ports.values()),
                   f"nodes listen at {sorted(listens.values())}, their pods have the ports {sorted(ports.values())}")
    documented = read(ROOT / "docs/operations.md")
    for port in sorted(exposed):
        expect(re.search(rf"^\| .*\b{port}\b", documented, re.MULTILINE), f"the table of ports in docs/operations.md has no {port}")


# What is secret, or has a password in it, and is not a setting of its own where it is unset.
SECRET_NAMES = re.compile(r"TIDINGS_(?:\w+_)?(?:SECRET|API_KEY|TOKEN_KEY)|TIDINGS_STORE_URL|TIDINGS_CLUSTER_REDIS")
# Unset: that of the cluster.
SECRETS_THAT_FOLLOW = {"TIDINGS_LINK_SECRET"}


def check_secrets():
    """Whoever installs by these files finds a place for every secret, and no secret in a place for what is none."""
    secrets = {name for name in settings() if SECRET_NAMES.fullmatch(name)} - SECRETS_THAT_FOLLOW
    assert {"TIDINGS_API_KEY", "TIDINGS_WEBHOOK_SECRET", "TIDINGS_CLUSTER_SECRET"} <= secrets, f"the settings are read wrongly: {secrets}"

    for where, service, is_node in servers():
        missing = (secrets if is_node else secrets - OF_CLUSTER) - set(service["environment"])
        expect(not missing, f"{where} is not given {sorted(missing)}")
        for secret in secrets & set(service["environment"]):
            expect("${" in service["environment"][secret], f"{where}: {secret} is written out")

    documents = [document for file in sorted((DEPLOY / "kubernetes").glob("*.yaml")) for document in yaml.safe_load_all(read(file))]
    offered = {key for document in documents if document["kind"] == "Secret" for key in document["stringData"]}
    expect(secrets <= offered, f"secret.example.yaml has no {sorted(secrets - offered)}")
    for document in documents:
        if document["kind"] == "ConfigMap":
            named = secrets & set(document.get("data", {}))
            expect(not named, f"deploy/kubernetes, ConfigMap {document['metadata']['name']} holds {sorted(named)}, which is secret")
        if document["kind"] == "StatefulSet" and document["metadata"]["name"] == "tidings":
            given = {entry["name"]: entry for container in document["spec"]["template"]["spec"]["containers"] for entry in container["env"]}
            for secret in sorted(secrets):
                source = given.get(secret, {}).get("valueFrom", {}).get("secretKeyRef", {})
                expect(source.get("key") == secret, f"deploy/kubernetes/nodes.yaml does not carry {secret} from the Secret")

    names = set(re.findall(r"^(?:# )?(TIDINGS_\w+)=", read(DEPLOY / "systemd/tidings.env.example"), re.MULTILINE))
    expect(secrets <= names, f"deploy/systemd/tidings.env.example has no {sorted(secrets - names)}")


def check_release():
    """The image is built by the compiler of rust-toolchain.toml, and workflows call what is there."""
    channel = re.search(r'^channel = "(.+)"', read(ROOT / "rust-toolchain.toml"), re.MULTILINE)[1]
    dockerfile = read(DEPLOY / "Dockerfile")
    expect(f"FROM rust:{channel}-" in dockerfile and f"RUSTUP_TOOLCHAIN={channel}" in dockerfile, f"deploy/Dockerfile is not for Rust {channel}")
    # scripts/package-image.sh makes this stage for every architecture, so nothing in it is run.
    last = dockerfile[dockerfile.rindex("\nFROM debian:"):]
    expect(not re.search(r"^RUN ", last, re.MULTILINE), "the last stage of deploy/Dockerfile runs a command")
    verbs = set(re.findall(r"^([a-z-]+):", read(ROOT / "Makefile"), re.MULTILINE))
    for file in sorted((ROOT / ".github/workflows").glob("*.yml")):
        for job in yaml.safe_load(read(file))["jobs"].values():
            image = job.get("container", {}).get("image", f"rust:{channel}-")
            expect(image.startswith(f"rust:{channel}-"), f"{name_of(file)} runs in {image}, rust-toolchain.toml names {channel}")
            for command in (line.split() for step in job["steps"] for line in step.get("run", "").splitlines()):
                expect(command[0] != "make" or command[1] in verbs, f"{name_of(file)}: there is no verb {command[1:2]}")
                expect("/" not in command[0] or (ROOT / command[0]).exists(), f"{name_of(file)}: there is no {command[0]}")


def check_links():
    for file in [ROOT / "docs/operations.md", *(ROOT / "docs/operations").glob("*.md")]:
        for link in re.findall(r"]\(([^)#:]+)(?:#[^)]*)?\)", read(file)):
            expect((file.parent / link).exists(), f"{name_of(file)} links to {link}, which is not there")


def run(what, command, complaint=None):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    said = done.stdout + done.stderr
    expect(done.returncode == 0 and not (complaint and complaint in said), f"{what}: {said}")


def check_with_programs():
    if kubectl := shutil.which("kubectl"):
        run("kubectl kustomize", [kubectl, "kustomize", str(DEPLOY / "kubernetes")])
    if promtool := shutil.which("promtool"):
        run("promtool", [promtool, "check", "config", str(DEPLOY / "prometheus.yml")])
        run("promtool", [promtool, "test", "rules", str(DEPLOY / "alerts_test.yml")])
        panels = json.loads(read(DEPLOY / "grafana/tidings.json"))["panels"]
        asked = [target["expr"] for panel in panels for target in panel.get("targets", [])]
        asked = [text.replace("$__rate_interval", "1m").replace("$instance", ".*") for text in asked]
        rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(asked)]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "panels.yml"
            file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}), encoding="utf-8")
            run("the dashboard's questions", [promtool, "check", "rules", str(file)])
    if haproxy := shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin"):
        run("haproxy", [haproxy, "-c", "-f", str(DEPLOY / "haproxy/haproxy.cfg")])
    if systemd := shutil.which("systemd-analyze"):
        with tempfile.TemporaryDirectory() as folder:
            unit = Path(folder) / "tidings.service"
            text = read(DEPLOY / "systemd/tidings.service")
            # The program need not be installed.
            unit.write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", text), encoding="utf-8")
            # What it ignores it only tells.
            run("systemd-analyze", [systemd, "verify", str(unit)], complaint="tidings.service")


def main():
    known_metrics = metrics_of_sources()
    if sys.argv[1:2] == ["--metrics"]:
        known_metrics = metrics_of_output(read(Path(sys.argv[2])))
    assert len(known_metrics) > 50 and len(settings()) > 50, "the sources are read wrongly"
    check_formats()
    check_names(known_metrics)
    check_compose()
    check_kubernetes()
    check_ports()
    check_secrets()
    check_release()
    check_links()
    check_with_programs()
    for problem in problems:
        print(f"scripts/check-deploy.py: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
