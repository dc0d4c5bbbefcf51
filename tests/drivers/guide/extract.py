"""Writes the programs that a guide shows to files.

    extract.py PAGE FOLDER LOCK_SERVER_PORT GUARD_PORT

A block whose first line is a comment with the name of a file, `# lease.py` or `// lease.mjs`, becomes
that file. The ports of the page, 7420 and 6380, become those given.
"""

import re
import sys
from pathlib import Path


def main(page, folder, lock_server_port, guard_port):
    text = Path(page).read_text(encoding="utf-8")
    for block in re.findall(r"^```\w+\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        name = re.match(r"(?:#|//) (\S+\.\w+)\n", block)
        if name:
            ports = {"7420": lock_server_port, "6380": guard_port}
            program = re.sub(r"\b(?:7420|6380)\b", lambda port: ports[port[0]], block)
            Path(folder, name[1]).write_text(program, encoding="utf-8")


main(*sys.argv[1:])
