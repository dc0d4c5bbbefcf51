"""Lints the chart, writes ../kubernetes/fencepost.yaml from it, and shows that wrong values are refused.

Needs the Python package helm-python-sdk (Helm's own library). With --check the file is compared.
"""

import pathlib
import sys

import helm_python as helm

HERE = pathlib.Path(__file__).parent
CHART = HERE / "fencepost"
PLAIN = HERE.parent / "kubernetes" / "fencepost.yaml"
HEAD = "# The chart with its default values, by docs/deploy/helm/render.py.\n"

# A wrong value, and the value's place in the error.
WRONG = [
    ({"lockServer": {"replicas": "two"}}, "/lockServer/replicas"),
    ({"insecureListen": "yes"}, "/insecureListen"),
    ({"store": "embedded:/data"}, "/store"),
    ({"networkPolicy": {"storePorts": [65536]}}, "/networkPolicy/storePorts/0"),
    ({"guard": {"settings": {"rule": {"a": "b"}}}}, "/guard/settings/rule"),
    ({"imagee": {}}, "imagee"),
]

# Values that a cluster may have.
RIGHT = [
    {"insecureListen": True, "guard": {"enabled": False}},
    {
        "store": "rediss://redis:6380",
        "secrets": {"storePassword": "redis"},
        "lockServer": {"settings": {"ttl-max": "5m", "max-locks": 2000000}},
        "networkPolicy": {"enabled": False},
    },
]


def render(chart: helm.Chart, values: dict | None = None) -> str:
    rendered = chart.render(values, name="fencepost", namespace="fencepost")
    manifests = sorted((path, text) for path, text in rendered.items() if path.endswith(".yaml"))
    return HEAD + "".join(f"---\n{text.strip()}\n" for _, text in manifests if text.strip())


def main() -> None:
    report = helm.lint(CHART, strict=True)
    problems = [message for message in report["messages"] if message["severity"] > 1]
    if problems or report["errors"]:
        sys.exit(f"helm lint: {problems} {report['errors']}")
    with helm.Chart.load(CHART) as chart:
        for values, place in WRONG:
            try:
                render(chart, values)
            except helm.HelmValuesError as error:
                lines = [line for line in str(error).splitlines() if line.startswith("- ")]
                if len(lines) != 1 or place not in lines[0]:
                    sys.exit(f"{values}: the error is not one about {place}: {error}")
            else:
                sys.exit(f"{values}: no error")
        variants = [render(chart, values) for values in RIGHT]
        plain = render(chart)
    if "--check" not in sys.argv:
        PLAIN.write_text(plain)
    elif PLAIN.read_text() != plain:
        sys.exit(f"{PLAIN} is not what the chart renders: run docs/deploy/helm/render.py")
    # Variants go to stdout, for a validator.
    print("---\n".join(variants))


main()
