"""The programs under test, started on free ports, and a proxy that spoils replies."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import tempfile
from pathlib import Path
from typing import IO, Sequence

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(os.environ.get("FENCE_BIN") or ROOT / "target" / "debug")


class Program:
    """A server of the repository, and its address."""

    def __init__(self, name: str, *args: str) -> None:
        self.log: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [BIN / name, *args], stdout=subprocess.PIPE, stderr=self.log, text=True
        )
        self.urls: list[str] = []
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = re.search(r"listening on (http://\S+)", line)
        if found is None:
            self.log.seek(0)
            raise RuntimeError(f"{name}: {line}{self.log.read()}")
        self.url = found.group(1)

    def lines(self) -> str:
        """What the program has logged so far."""
        self.log.seek(0)
        return self.log.read()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        self.log.close()


class Site:
    """A lock server and a guard with one key file, in memory."""

    def __init__(self, guard: Sequence[str] = ("--store", "memory:")) -> None:
        self.folder = tempfile.TemporaryDirectory()
        keys = Path(self.folder.name) / "keys.txt"
        keys.write_text(f"k1:{secrets.token_hex(32)}\n")
        common = ["--listen", "127.0.0.1:0", "--token-key-file", str(keys)]
        self.programs = [Program("lock-server", *common, "--store", "memory:")]
        self.programs.append(Program("fenced-store", *common, *guard))
        self.server, self.guard = (program.url for program in self.programs)

    def stop(self) -> None:
        for program in self.programs:
            program.stop()
        self.folder.cleanup()
