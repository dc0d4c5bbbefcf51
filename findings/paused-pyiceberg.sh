#!/usr/bin/env bash
# PyIceberg 0.12.0, pyarrow 26.0.1 (PyPI), SQLite as catalog, a table in a local folder with the row
# (1, first): A loads the table and stops itself (SIGSTOP) before its change, B changes the table, then
# A is resumed. A commit is compared with the snapshot that A loaded; one that lost is tried again.
#
# Seen                                      by default           commit.retry.num-retries=0
#   B overwrites, A appends (2, A)          commits              CommitFailedException
#   B and A upsert the new key 2            commits, key twice   CommitFailedException
#   B appends (2, B), A overwrites          ValidationException  CommitFailedException
#   A loads the table after it is resumed   commits              commits
#
# Fails if one of them differs.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
pip install --quiet --root-user-action ignore --target "$dir/py" 'pyiceberg[sql-sqlite]==0.12.0' \
  pyarrow==26.0.1 sqlalchemy==2.1.9 2>/dev/null
cat >table.py <<'PY'
import os
import signal
import sys

import pyarrow
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, ValidationException


def rows(key, owner):
    return pyarrow.table({"id": pyarrow.array([key], pyarrow.int64()), "owner": [owner]})


def catalog():
    here = os.getcwd()
    return SqlCatalog("example", uri=f"sqlite:///{here}/catalog.db", warehouse=f"file://{here}")


def change(table, how, who):
    if how == "append":
        table.append(rows(2, who))
    elif how == "overwrite":
        table.overwrite(rows(1, who))
    else:
        table.upsert(rows(2, who), join_cols=["id"])


if __name__ == "__main__":
    name, how, when = sys.argv[1:]
    if when == "late":
        os.kill(os.getpid(), signal.SIGSTOP)
    table = catalog().load_table(name)
    if when == "early":
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        change(table, how, "A")
        print("commits")
    except (CommitFailedException, ValidationException) as error:
        print(type(error).__name__)
PY
PYTHONPATH=$dir/py timeout 240 python3 -u - <<'PY'
import os
import signal
import subprocess
import sys

from table import catalog, change, rows

shop = catalog()
shop.create_namespace("shop")


def seen(name, by_b, how, when, retries):
    properties = {} if retries is None else {"commit.retry.num-retries": retries}
    shop.create_table(name, schema=rows(1, "").schema, properties=properties).append(rows(1, "first"))
    command = [sys.executable, "table.py", name, how, when]
    a = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert os.WIFSTOPPED(os.waitpid(a.pid, os.WUNTRACED)[1])
    change(catalog().load_table(name), by_b, "B")
    a.send_signal(signal.SIGCONT)
    said = a.communicate()[0].strip()
    table = shop.load_table(name).scan().to_arrow().to_pylist()
    print(f"retries {retries}, {when}: after B's {by_b} A's {how} {said}:",
          sorted(tuple(row.values()) for row in table))
    return said


FAILED = "CommitFailedException"
cases = (
    ("overwrite", "append", "early", "commits", FAILED),
    ("upsert", "upsert", "early", "commits", FAILED),
    ("append", "overwrite", "early", "ValidationException", FAILED),
    ("append", "overwrite", "late", "commits", "commits"),
)
for number, (by_b, how, when, *expected) in enumerate(cases):
    for retries, said in zip((None, "0"), expected):
        assert seen(f"shop.t{number}_{retries}", by_b, how, when, retries) == said
PY
