"""The guide works as it is written: its scripts are run, and what they print is compared."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from servers import PATIENCE_S, ROOT
from test_redis import RedisSite

GUIDE = ROOT / "docs" / "guides" / "python.md"
README = Path(__file__).resolve().parents[1] / "README.md"


def blocks(page: Path, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", page.read_text(), re.M | re.S)


def test_the_guide_does_what_it_says(tmp_path: Path) -> None:
    site = RedisSite(tmp_path)
    environment = {
        **os.environ,
        "FENCE_SERVER": site.server,
        "FENCE_GUARD": site.guard,
    }
    scripts = {}
    for text in blocks(GUIDE, "python"):
        name = text.splitlines()[0].removeprefix("# ")
        scripts[name] = text.replace("6380", str(site.port))
        (tmp_path / name).write_text(scripts[name])
    assert set(scripts) == {"first.py", "stale.py", "lost.py", "pool.py"}
    said = {}
    for text in blocks(GUIDE, "console"):
        command, _, output = text.partition("\n")
        if command.startswith("$ python "):
            said[command.split()[-1]] = output
    for name in scripts:
        done = subprocess.run(
            [sys.executable, tmp_path / name],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * PATIENCE_S,
        )
        assert done.returncode == 0, f"{name}: {done.stderr}"
        tokens = re.compile(r"\d{6,}|\b[123]\b(?= is|, t|$)|(?<=trusted for )\d+", re.M)
        # On a busy machine the grant takes seconds.
        for left in re.findall(r"trusted for (\d+)", done.stdout):
            assert 0 < int(left) <= 12, done.stdout
        assert tokens.sub("N", done.stdout) == tokens.sub("N", said.get(name, "")), name
    assert site.direct.get("orders/43") == b"2"
    site.stop()


def test_the_example_of_the_readme_runs(tmp_path: Path) -> None:
    from servers import Site

    site = Site()
    text = blocks(README, "python")[0]
    environment = {**os.environ, "FENCE_SERVER": site.server, "FENCE_GUARD": site.guard}
    done = subprocess.run(
        [sys.executable, "-c", text + "print(client.get('none'), lease.token)"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * PATIENCE_S,
    )
    assert "token-required" in done.stderr or done.returncode == 0, done.stderr
    site.stop()


def test_the_unit_test_of_the_readme_passes(tmp_path: Path) -> None:
    (tmp_path / "test_late.py").write_text(blocks(README, "python")[1])
    words = ["-q", "-p", "fencepost.pytest_plugin", "-p", "no:cacheprovider", tmp_path]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * PATIENCE_S,
    )
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout
