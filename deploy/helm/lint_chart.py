"""Lints the chart, renders it with the values of `ci/`, and validates what it renders: CHART FOLDER.

Below FOLDER it writes, for each file of values, the executor.toml that the chart makes of it, with the files and
folders that it names, so that `a2g-executor config check` can check it. Exit code 1 if anything is wrong, with a line
for each problem.
"""

import pathlib
import shutil
import sys

import helm_python

try:
    import kubernetes_validate
except ImportError:
    kubernetes_validate = None

# The oldest version that Chart.yaml accepts, and the newest one that the validator knows.
KUBERNETES = ["1.30", kubernetes_validate.latest_version()] if kubernetes_validate else []
# Kinds of other projects, for which the validator has no schema.
WITHOUT_SCHEMA = {"ScaledObject"}
RELEASE = {"name": "prod", "namespace": "agents"}
# Folders of a pod, which are made below FOLDER instead.
POD_FOLDERS = [
    "/run/a2g-executor",
    "/usr/share/a2g-executor",
    "/var/lib/a2g-tools",
    "/var/lib/a2g-executor",
    "/var/cache/a2g-executor",
    "/mnt/",
]
# Values that have to be refused, with a part of the message.
REFUSED = [
    ({"replica": 3}, "additional properties 'replica' not allowed"),
    ({"fleet": {"enabled": False}}, "several nodes need fleet.enabled"),
    ({"fleet": {"enabled": False}, "replicas": 1, "autoscaling": {"enabled": True}}, "several nodes need"),
    ({"fleet": {"replaces": ["x"]}}, "does not match pattern"),
    ({"tools": {"volume": {"emptyDir": {}}, "remote": [{"tool": f"oci://a/b@sha256:{'0' * 64}"}]}}, "not both"),
    ({"tools": {"remote": [{"tool": "oci://registry/greet:latest"}]}}, "does not match pattern"),
    ({"server": {"tls": {"certificate": "server.pem"}}}, "server.tls.certificate needs server.tls.key"),
    ({"toml": {"sections": "[server]\nlisten = 'x'"}}, "repeats a section"),
]

problems = []


def render(chart, values, **release):
    """The rendered objects, as a list of (template, object)."""
    chart.validate_schema(values)
    manifests = chart.render(values, **RELEASE, **release)
    files = [(name, text) for name, text in manifests.items() if name.endswith(".yaml")]
    objects = [(name, helm_python.values_from_yaml(part)) for name, text in files for part in text.split("\n---\n")]
    return [(name, value) for name, value in objects if value]


def check_jobs(chart):
    """A Job cannot be changed, so each upgrade that runs one again gives it another name."""
    upgrades = [{}, *({"fleet": {"init": True}, "image": {"tag": tag}} for tag in ["1", "2"])]
    jobs = [
        [value["metadata"]["name"] for _, value in render(chart, values, is_upgrade=True) if value["kind"] == "Job"]
        for values in upgrades
    ]
    if [len(names) for names in jobs] != [0, 1, 1] or jobs[1] == jobs[2]:
        problems.append(f"upgrades without a Job, with one and with another one have the Jobs {jobs}")


def lint(chart_folder, case, values):
    report = helm_python.lint(chart_folder, values, strict=True, kube_version="v1.30.0")
    for message in report["messages"]:
        # Severity 1 is information.
        if message["severity"] > 1:
            problems.append(f"helm lint, {case}: {message['path']}: {message['error']}")


def validate(case, template, value):
    if value["kind"] in WITHOUT_SCHEMA:
        return
    for version in KUBERNETES:
        try:
            kubernetes_validate.validate(value, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            path = ".".join(str(part) for part in error.path)
            problems.append(f"kubernetes-validate {version}, {case}: {template}: {path}: {error.message}")
        except (kubernetes_validate.SchemaNotFoundError, kubernetes_validate.InvalidSchemaError) as error:
            problems.append(f"kubernetes-validate {version}, {case}: {template}: {error.message}")


def write_configuration(folder, text):
    """Writes executor.toml with everything that it names, for `config check`."""
    for pod_folder in POD_FOLDERS:
        text = text.replace(f'"{pod_folder}', f'"{folder}{pod_folder}')
    for quoted in text.split('"'):
        path = pathlib.Path(quoted)
        if quoted.startswith(f"{folder}/run/a2g-executor/secrets/"):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.write_text("0" * 64 if path.suffix == ".key" else "")
            path.chmod(0o600)
        elif quoted.endswith(("/catalog", "/a2g-executor/tools")) or quoted.startswith(f"{folder}/mnt/"):
            path.mkdir(parents=True)
    (folder / "executor.toml").write_text(text)


def main(chart_folder, folder):
    shutil.rmtree(folder, ignore_errors=True)
    cases = {"defaults": {}}
    for file in sorted((pathlib.Path(chart_folder) / "ci").glob("*-values.yaml")):
        cases[file.name.removesuffix("-values.yaml")] = helm_python.values_from_yaml(file.read_text())
    with helm_python.Chart.load(chart_folder) as chart:
        for case, values in cases.items():
            lint(chart_folder, case, values)
            try:
                objects = render(chart, values)
            except helm_python.HelmError as error:
                problems.append(f"helm template, {case}: {error}")
                continue
            for template, value in objects:
                validate(case, template, value)
            configuration = next(value for _, value in objects if value["kind"] == "ConfigMap")
            (folder / case).mkdir(parents=True)
            write_configuration(folder / case, configuration["data"]["executor.toml"])
        check_jobs(chart)
        for values, expected in REFUSED:
            try:
                render(chart, values)
                problems.append(f"{values} is accepted, and should be refused with: {expected}")
            except helm_python.HelmError as error:
                if expected not in str(error):
                    problems.append(f"{values} is refused with `{error}`, not with: {expected}")
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    return 1 if problems else 0


sys.exit(main(sys.argv[1], pathlib.Path(sys.argv[2]).resolve()))
