"""The page of conveniences names what the package has."""

from __future__ import annotations

import inspect
import keyword
import re
from typing import Any

from servers import ROOT

import fencepost
from fencepost import testing

PAGE = ROOT / "docs" / "reference" / "conveniences.md"


def names_of(thing: Any) -> set[str]:
    """Public members, and the parameters of those that can be called."""
    found = {name for name in dir(thing) if not name.startswith("_")}
    calls = [getattr(thing, name) for name in found]
    for call in calls:
        if inspect.isroutine(call) or inspect.isclass(call):
            found |= set(inspect.signature(call).parameters)
    return found


def test_the_page_of_conveniences_names_what_is_here() -> None:
    here, there = PAGE.read_text().split("\n## There\n")
    rows = [line.split("|")[1:-1] for line in here.splitlines() if line.startswith("| ")]
    at = [cell.strip() for cell in rows[0]].index("Python")
    texts = re.findall(r"`([^`]+)`", " ".join(row[at] for row in rows[2:]))
    with testing.FakeServer() as server, server.client() as client:
        request = client.lock("a")
        things = [fencepost, testing, client, request, request.acquire()]
        names = {"client", "fencepost"}.union(*(names_of(thing) for thing in things))
    words = {word for text in texts for word in re.findall(r"\b[a-zA-Z_]\w*", unquoted(text))}
    assert len(words) > 20
    assert {word for word in words - names if not keyword.iskeyword(word)} == set()
    # The second table has the rows of the first one, and no cell is left open.
    theirs = [line.split("|")[1:-1] for line in there.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows] == [row[0] for row in theirs]
    for row in [*rows[1:], *theirs[1:]]:
        assert all(cell.strip() for cell in row), row


def unquoted(text: str) -> str:
    return re.sub('"[^"]*"', "", text)
