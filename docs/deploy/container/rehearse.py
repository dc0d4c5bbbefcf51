"""Runs the services of compose.yaml without a container engine, as root, and awaits the demo's end.

    unshare --mount --net target/tools/bin/python docs/deploy/container/rehearse.py PROGRAMS

Every service is a process with its command, variables and health check; the names of the network
are those of this namespace's loopback, and secrets are where compose puts them.
"""

import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

import yaml

HERE = pathlib.Path(__file__).parent
PATIENCE_SECONDS = 60


def words(command: str | list[str]) -> list[str]:
    return shlex.split(command) if isinstance(command, str) else command


class Service:
    def __init__(self, name: str, spec: dict, programs: pathlib.Path, folder: pathlib.Path):
        self.name, self.spec, self.programs = name, spec, programs
        self.program = spec.get("build", {}).get("target")
        self.environment = {"PATH": os.environ["PATH"], **spec.get("environment", {})}
        self.folder = folder / name
        self.folder.mkdir()
        self.process: subprocess.Popen | None = None

    def argv(self, command: list[str]) -> list[str]:
        """The command, with the image's programs taken from the folder of programs."""
        programs = {f"/usr/bin/{name}": str(self.programs / name) for name in os.listdir(self.programs)}
        return [programs.get(word, word) for word in command]

    def start(self) -> None:
        command = words(self.spec.get("command", []))
        entry = [f"/usr/bin/{self.program}"] if self.program else []
        self.process = subprocess.Popen(self.argv(entry + command), env=self.environment, cwd=self.folder)

    def is_healthy(self) -> bool:
        test = self.spec.get("healthcheck", {}).get("test", ["CMD", f"/usr/bin/{self.program}", "health"])
        check = self.argv(test[1:])
        return subprocess.run(check, env=self.environment, capture_output=True, check=False).returncode == 0

    def await_health(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.is_healthy():
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"{self.name} did not become healthy (exit code {self.process.poll()})")
            time.sleep(0.1)


def prepare(names: list[str], secrets: dict) -> None:
    """Names, secrets and addresses, for this namespace alone."""
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    hosts = pathlib.Path(tempfile.mkstemp()[1])
    hosts.write_text("127.0.0.1 localhost " + " ".join(names) + "\n")
    subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)
    hosts.unlink()
    subprocess.run(["mount", "-t", "tmpfs", "run", "/run"], check=True)
    folder = pathlib.Path("/run/secrets")
    folder.mkdir()
    for name in secrets:
        (folder / name).write_text(f"k1:{os.urandom(32).hex()}\n")


def main() -> None:
    compose = yaml.safe_load((HERE / "compose.yaml").read_text())
    prepare(list(compose["services"]), compose["secrets"])
    folder = pathlib.Path(tempfile.mkdtemp())
    programs = pathlib.Path(sys.argv[1]).resolve()
    services = {name: Service(name, spec, programs, folder) for name, spec in compose["services"].items()}
    started: list[Service] = []
    try:
        # The file lists a service behind those that it depends on.
        for service in services.values():
            for needed in service.spec.get("depends_on", {}):
                services[needed].await_health()
            service.start()
            started.append(service)
        code = services["demo"].process.wait(PATIENCE_SECONDS)
    finally:
        for service in reversed(started):
            service.process.terminate()
            service.process.wait(PATIENCE_SECONDS)
        shutil.rmtree(folder)
    if code != 0:
        sys.exit(f"the demo ended with {code}")
    print("the services of compose.yaml work together")


main()
