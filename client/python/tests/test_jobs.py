"""The jobs of the guide: an attempt that was paused past its lease does not write over the next."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg
import pytest
from servers import BIN, PATIENCE_S, ROOT, until
from test_guide import blocks
from test_redis import RedisSite, free_port

from fencepost import Client

GUIDE = ROOT / "docs" / "guides" / "jobs.md"
#: The work of the guide's jobs: the first attempt pauses its process, as a suspended machine does.
SHOP = """
import os
import signal

def bill(order):
    who = os.environ["WHO"]
    if who == "first":
        open("paused", "w").write(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
    return f"paid by the {who} attempt"
"""


class JobSite(RedisSite):
    """Servers, a Redis as broker, and the modules of the guide in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ["--allow-unfenced-reads"])
        self.jobs = folder
        #: Where the jobs find their PostgreSQL.
        self.database: dict[str, str] = {}
        self.client = Client(self.server, self.guard, owner="operator", environment={})
        for text in blocks(GUIDE, "python"):
            if text.startswith("# "):
                name = text.splitlines()[0].removeprefix("# ")
                (folder / name).write_text(text.replace("ttl=15", "ttl=3"))
        (folder / "shop.py").write_text(SHOP)

    def start(self, who: str, *args: str) -> subprocess.Popen[str]:
        broker = f"redis://127.0.0.1:{self.broker_port}/0"
        settings = {"FENCE_SERVER": self.server, "FENCE_GUARD": self.guard, "BROKER": broker}
        settings.update(self.database)
        return subprocess.Popen(
            [sys.executable, "-m", *args],
            env={**os.environ, **settings, "WHO": who},
            cwd=self.jobs,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def paused(self) -> int:
        """The process of the first attempt, once it is paused."""
        path = self.jobs / "paused"
        until("the first attempt", lambda: path.exists() and path.read_text())
        process = int(path.read_text())
        state = Path(f"/proc/{process}/stat")
        until("its pause", lambda: state.read_text().rsplit(")", 1)[1].split()[0] == "T")
        return process

    def body(self, key: str) -> bytes:
        found = self.client.get(key)
        return b"" if found is None else found.body

    def stop(self) -> None:
        self.client.close()
        super().stop()


class PostgresJobSite(JobSite):
    """The same with a PostgreSQL, which has the SQL pack on the table ``orders``."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.programs_folder = max(Path("/usr/lib/postgresql").glob("*/bin"))
        self.data = tempfile.TemporaryDirectory()
        if os.getuid() == 0:
            shutil.chown(self.data.name, "postgres")
        data = ["-D", f"{self.data.name}/data"]
        self._postgres("initdb", *data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
        while not self._is_listening(free_port(), data):
            pass
        self._prepare()

    def _postgres(self, program: str, *args: str) -> bool:
        """PostgreSQL refuses to run as root."""
        user = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
        command = [*user, str(self.programs_folder / program), *args]
        done = subprocess.run(command, cwd="/", stdout=subprocess.DEVNULL, check=False)
        return done.returncode == 0

    def _is_listening(self, port: int, data: Sequence[str]) -> bool:
        self.database = {"PGHOST": "127.0.0.1", "PGPORT": str(port), "PGDATABASE": "postgres"}
        options = f"-p {port} -k {self.data.name} -c fsync=off"
        log = f"{self.data.name}/log"
        return self._postgres("pg_ctl", *data, "-w", "-l", log, "-o", options, "start")

    def _prepare(self) -> None:
        with self.connect("postgres") as superuser:
            superuser.execute("create table orders (id text primary key, receipt text)")
            superuser.execute("insert into orders values ('42')")
            superuser.execute("create role app login")
            superuser.execute("grant all on orders to app")
            superuser.execute("grant create on schema public to app")
        url = f"postgres://postgres@127.0.0.1:{self.database['PGPORT']}/postgres"
        pack = ["postgres", "install", "--database", url, "--table", "orders"]
        pack += ["--lock", "orders/{id}", "--client", "app"]
        keys = ["--token-key-file", f"{self.folder.name}/keys.txt"]
        subprocess.run([BIN / "fenced-store", *keys, *pack], stdout=subprocess.DEVNULL, check=True)
        self.database["PGUSER"] = "app"

    def connect(self, user: str) -> psycopg.Connection[tuple[str]]:
        port = int(self.database["PGPORT"])
        return psycopg.connect(
            host="127.0.0.1", port=port, user=user, dbname="postgres", autocommit=True
        )

    def receipt(self) -> str | None:
        with self.connect("app") as app:
            row = app.execute("select receipt from orders where id = '42'").fetchone()
        return row[0] if row else None

    def stop(self) -> None:
        self._postgres("pg_ctl", "-D", f"{self.data.name}/data", "-m", "immediate", "stop")
        self.data.cleanup()
        super().stop()


@pytest.fixture
def postgres_site(tmp_path: Path) -> Iterator[PostgresJobSite]:
    site = PostgresJobSite(tmp_path)
    yield site
    site.stop()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[JobSite]:
    site = JobSite(tmp_path)
    yield site
    site.stop()


def test_a_paused_attempt_of_an_rq_job_does_not_write_over_the_next(site: JobSite) -> None:
    from redis import Redis
    from rq import Queue

    url = f"redis://127.0.0.1:{site.broker_port}/0"
    queue = Queue(connection=Redis.from_url(url))
    worker = ["rq.cli", "worker", "--burst", "--url", url]
    late = queue.enqueue("rq_jobs.pay", "42")
    first = site.start("first", *worker)
    process = site.paused()
    again = queue.enqueue("rq_jobs.pay", "42")
    output, _ = site.start("second", *worker).communicate(timeout=PATIENCE_S)
    assert again.get_status() == "finished", output
    os.kill(process, signal.SIGCONT)
    output, _ = first.communicate(timeout=PATIENCE_S)
    result = late.latest_result()
    assert result is not None and "LeaseLost" in (result.exc_string or ""), output
    assert site.body("orders/42") == b"paid by the second attempt"


def test_a_paused_attempt_of_a_celery_task_does_not_write_over_the_next(site: JobSite) -> None:
    options = ["-A", "celery_jobs", "worker", "--concurrency=1", "--prefetch-multiplier=1"]
    options += ["--without-mingle", "--without-gossip", "--without-heartbeat", "--loglevel=info"]
    send = ["celery", "-A", "celery_jobs", "call", "celery_jobs.pay", "--args", '["42"]']
    assert site.start("operator", *send).wait(PATIENCE_S) == 0
    first = site.start("first", "celery", *options, "-n", "first")
    process = site.paused()
    second = site.start("second", "celery", *options, "-n", "second")
    assert site.start("operator", *send).wait(PATIENCE_S) == 0
    until("the second attempt", lambda: site.body("orders/42"))
    os.kill(process, signal.SIGCONT)
    assert first.stdout is not None
    # The line of the task's end; on a busy machine the test's own limit ends it.
    ended = next(line for line in first.stdout if "raised" in line or "succeeded" in line)
    assert "LeaseLost" in ended, ended
    assert site.body("orders/42") == b"paid by the second attempt"
    for worker in (first, second):
        worker.terminate()
        worker.communicate(timeout=PATIENCE_S)


def test_a_paused_attempt_of_procrastinate_does_not_write_over_the_next(
    postgres_site: PostgresJobSite,
) -> None:
    site = postgres_site
    run = ["procrastinate", "--app=procrastinate_jobs.app"]
    assert site.start("operator", *run, "schema", "--apply").wait(PATIENCE_S) == 0
    send = [*run, "defer", "pay", '{"order": "42"}']
    assert site.start("operator", *send).wait(PATIENCE_S) == 0
    first = site.start("first", *run, "worker", "--one-shot")
    process = site.paused()
    assert site.start("operator", *send).wait(PATIENCE_S) == 0
    output, _ = site.start("second", *run, "worker", "--one-shot").communicate(timeout=PATIENCE_S)
    assert site.receipt() == "paid by the second attempt", output
    os.kill(process, signal.SIGCONT)
    output, _ = first.communicate(timeout=PATIENCE_S)
    # PostgreSQL refused it, by its token.
    assert "fence.enter" in output, output
    assert site.receipt() == "paid by the second attempt"
