#!/usr/bin/env bash
# deltalake 1.6.6, pyarrow 26.0.1 (PyPI), a table in a local folder with the row (1, first): A loads the
# table and stops itself (SIGSTOP) before its change, B changes the table, then A is resumed. A commit
# is compared with the version that A loaded.
#
# Seen, A's change after B's append of (2, B)        after B's overwrite with (1, B)
#   append of (2, A)     commits: key 2 twice        CommitFailedError
#   overwrite, (1, A)    commits: (1, A), (2, B)     CommitFailedError
#   update of row 1      commits                     CommitFailedError
#   merge of (2, A)      CommitFailedError           CommitFailedError
# A that loads the table after it is resumed commits all of them.
#
# Fails if one of them differs.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
pip install --quiet --root-user-action ignore --target "$dir/py" deltalake==1.6.6 pyarrow==26.0.1 2>/dev/null
cat >table.py <<'PY'
import os
import signal
import sys

import pyarrow
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError


def rows(*values):
    return pyarrow.table({"id": [key for key, _ in values], "owner": [owner for _, owner in values]})


def change(table, how, who):
    if how == "append":
        write_deltalake(table, rows((2, who)), mode="append")
    elif how == "overwrite":
        write_deltalake(table, rows((1, who)), mode="overwrite")
    elif how == "merge":
        merger = table.merge(rows((2, who)), "a.id = b.id", source_alias="a", target_alias="b")
        merger.when_matched_update_all().when_not_matched_insert_all().execute()
    else:
        table.update(predicate="id = 1", new_values={"owner": who})


if __name__ == "__main__":
    folder, how, when = sys.argv[1:]
    if when == "late":
        os.kill(os.getpid(), signal.SIGSTOP)
    table = DeltaTable(folder)
    if when == "early":
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        change(table, how, "A")
        print("commits")
    except CommitFailedError as error:
        print(type(error).__name__)
PY
PYTHONPATH=$dir/py timeout 120 python3 -u - <<'PY'
import os
import signal
import subprocess
import sys

from table import DeltaTable, change, rows, write_deltalake


def seen(name, how, by_b, when):
    write_deltalake(name, rows((1, "first")))
    command = [sys.executable, "table.py", name, how, when]
    a = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert os.WIFSTOPPED(os.waitpid(a.pid, os.WUNTRACED)[1])
    change(DeltaTable(name), by_b, "B")
    a.send_signal(signal.SIGCONT)
    said = a.communicate()[0].strip()
    table = DeltaTable(name).to_pyarrow_table().to_pylist()
    print(f"{when}: after B's {by_b} A's {how} {said}: {sorted(tuple(row.values()) for row in table)}")
    return said


for how in ("append", "overwrite", "update", "merge"):
    refused = how == "merge"
    assert seen(f"{how}-1", how, "append", "early") == ("CommitFailedError" if refused else "commits")
    assert seen(f"{how}-2", how, "overwrite", "early") == "CommitFailedError"
    assert seen(f"{how}-3", how, "overwrite", "late") == "commits"
PY
