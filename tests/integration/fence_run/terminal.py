"""Plays a person at a terminal: python3 terminal.py LIMIT_S STEP... -- COMMAND...

expect:TEXT      waits until the terminal shows it, after what was expected before
send:TEXT        types it
state:FILE:ONE   waits until the process whose id is in FILE is in this state of /proc (T: stopped; gone)
interrupt:FILE   types Ctrl-C each second until the process whose id is in FILE is gone
hangup:          closes the terminal
Exit: the command's, 1 where something never came, with what the terminal showed.
"""
import os
import pty
import select
import signal
import sys
import time

limit = float(sys.argv[1])
split = sys.argv.index("--")
steps, command = sys.argv[2:split], sys.argv[split + 1:]
pid, terminal = pty.fork()
if pid == 0:
    # What started the tests may ignore them, as nohup does.
    for each in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(each, signal.SIG_DFL)
    os.execvp(command[0], command)
shown, seen = "", 0


def read(seconds):
    """Takes what the terminal shows now; the command's output must not stand still meanwhile."""
    global shown
    if terminal is not None and select.select([terminal], [], [], seconds)[0]:
        try:
            shown += os.read(terminal, 65536).decode(errors="replace")
        except OSError:
            time.sleep(seconds)
    elif terminal is None:
        time.sleep(seconds)


def await_that(step, holds):
    end = time.monotonic() + limit
    while not holds():
        if time.monotonic() > end:
            sys.exit(f"{step!r} never came; the terminal showed:\n{shown}")
        read(0.02)


def state_of(file):
    try:
        with open(file) as text, open(f"/proc/{int(text.read())}/stat") as stat:
            return stat.read().rsplit(") ", 1)[1][0]
    except (FileNotFoundError, ProcessLookupError):
        return "gone"
    except ValueError:
        return ""


for step in steps:
    kind, _, text = step.partition(":")
    if kind == "expect":
        await_that(step, lambda: shown.find(text, seen) >= 0)
        seen = shown.index(text, seen) + len(text)
    elif kind == "send":
        os.write(terminal, text.encode())
    elif kind == "state":
        file, _, wanted = text.partition(":")
        await_that(step, lambda: state_of(file) == wanted)
    elif kind == "interrupt":
        next_at = 0
        def is_interrupted():
            global next_at
            if time.monotonic() >= next_at:
                os.write(terminal, b"\x03")
                next_at = time.monotonic() + 1
            return state_of(text) == "gone"
        await_that(step, is_interrupted)
    elif kind == "hangup":
        os.close(terminal)
        terminal = None
ended = (0, 0)
def is_over():
    global ended
    ended = os.waitpid(pid, os.WNOHANG)
    return ended[0] != 0
await_that("the end", is_over)
print(shown)
sys.exit(os.waitstatus_to_exitcode(ended[1]) % 256)
