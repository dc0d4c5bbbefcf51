"""The pure rules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fencepost import (
    Contended,
    Invalid,
    LeaseLost,
    OutcomeUnknown,
    Stale,
    Unavailable,
    clock,
    errors,
    settings,
    timing,
    token,
    validation,
    wording,
)
from fencepost.attempts import SentChange
from fencepost.clock import Reading
from fencepost.errors import Problem
from fencepost.events import Parser
from fencepost.limits import Hold, Limits
from fencepost.locks import Grant
from fencepost.plan import AcquireStep, LockOptions, Plan
from fencepost.timing import Window
from fencepost.transport import NoReply, NotSent, Refused, Unusable
from fencepost.trust import Trust, WorkEnd

REFERENCE = Path(__file__).resolve().parents[3] / "docs" / "reference"


def problem(code: str, status: int = 503, retryable: bool = False, **members: object) -> Problem:
    return Problem(status, code, "detail", "hint", retryable, members)


def test_a_window_counts_in_whole_milliseconds() -> None:
    window = Window.of(1000, 15_000)
    assert window.renew_at_ms == 6_000
    assert window.deadline_ms == 13_000
    assert window.kill_by_ms == 15_250
    assert window.expires_at_ms == 16_000
    assert window.is_live(12_999) and not window.is_live(13_000)
    assert not window.is_worn(7_000) and window.is_worn(7_001)
    assert Window.of(5, 86_400_001).expires_at_ms == 86_400_005
    assert Window.of(0, 90_000, requested_ms=1_000).deadline_ms == 800


def test_pauses_double_with_half_of_jitter() -> None:
    assert [timing.pause_ms(1, random) for random in (0, 25, 26)] == [25, 50, 25]
    assert timing.pause_ms(6, 500) == 1000
    assert timing.pause_ms(60, 501) == 500


def test_every_code_of_the_servers_has_a_class_that_agrees_on_retries() -> None:
    page = (REFERENCE / "errors.md").read_text()
    listed = re.findall(r"^- `([a-z-]+)` \((\d+)\):", page, re.M)
    (retryable,) = re.findall(r"^Retryable: (.*)$", page, re.M)
    assert len(listed) > 30
    for code, status in listed:
        assert errors.is_known(code), code
        kind = errors.class_of(problem(code, int(status)))
        may_retry = issubclass(kind, (Contended, Unavailable, OutcomeUnknown))
        assert may_retry == (f"`{code}`" in retryable), code


def test_no_error_speaks_of_http() -> None:
    page = (REFERENCE / "errors.md").read_text()
    listed = re.findall(r"^- `([a-z-]+)` \((\d+)\): (.*)$", page, re.M)
    assert len(listed) > 30
    for code, status, hint in listed:
        detail = "no Authorization header; PUT a: its Idempotency-Key named another operation"
        error = errors.from_problem("put a", Problem(int(status), code, detail, hint, False), None)
        for text in (str(error), error.hint, error.detail):
            assert text and not any(word in text for word in wording.HTTP_WORDS), text
    own = Problem(403, "forbidden", "detail", "Ask for the right write.", False)
    assert errors.from_problem("put a", own, None).hint == own.hint


def test_a_held_lock_says_by_whom_and_how_long_was_waited() -> None:
    holder = {"owner": "w1", "token": 7, "expires_in_ms": 59_990, "held_ms": 10}
    sent = Problem(423, "lock-held", "d", "h", True, {"holder": holder, "queue_length": 2})
    error = errors.contended("acquire a", sent, 60.0, 30.04)
    text = "acquire a: w1 holds it with token 7 for another 60.0 s unless it is renewed; 2 more in"
    assert str(error) == f"{text} the queue; waited 30.0 s (lock-held): h"
    assert error.waited == 30.04 and error.retry_after == 60.0
    several = Problem(423, "lock-held", "d", "h", True, {"holder": holder, "lock": "b"})
    assert "w1 holds b with" in str(errors.contended("acquire a, b", several, None, 0))
    assert "no wait was asked for" in str(errors.contended("acquire a", several, None, 0))
    newer = Problem(423, "new-word", "because", "h", True, {"holder": {"owner": 1}})
    assert "because" in str(errors.from_problem("acquire a", newer, None))


def test_a_value_that_is_no_object_body_is_named() -> None:
    for value in ("ü", "ü".encode(), bytearray("ü".encode()), memoryview("ü".encode())):
        assert validation.body(value) == "ü".encode()
    for wrong, kind in (({"x": 1}, "dict"), (5, "int"), (None, "NoneType"), (["a"], "list")):
        with pytest.raises(Invalid, match=f"type {kind}; write bytes or str"):
            validation.body(wrong)
    with pytest.raises(Invalid, match="UTF-8"):
        validation.body("\ud800")


def test_an_unknown_code_goes_by_its_status() -> None:
    for status, kind in ((423, Contended), (410, LeaseLost), (429, Unavailable), (404, Invalid)):
        assert errors.class_of(problem("new-word", status)) is kind
    stale = errors.from_problem("put a", problem("token-collision", 409, mark=7), None)
    assert isinstance(stale, Stale) and stale.stale and stale.mark == 7 and not stale.retryable


def test_the_vectors_of_the_reference_hold() -> None:
    page = (REFERENCE / "fencing-token.md").read_text()
    pairs = re.findall(r"^(\d+;lock=.*)\n(fc1_\S+)$", page, re.M)
    assert len(pairs) == 2
    for header, credential in pairs:
        assert str(token.parse(header)) == header
        assert token.credential_of(header) == credential
    (joined,) = re.findall(r"^(fc1_\S+\.fc1_\S+)$", page, re.M)
    assert token.join(header for header, _ in pairs) == joined


@pytest.mark.parametrize(
    "header",
    [
        "",
        "0;lock=a",
        '-1;lock="a";lease="67e55044-10b1-426f-9247-bb680e5fe0c8"',
        '34.0;lock="a";lease="67e55044-10b1-426f-9247-bb680e5fe0c8"',
        '1000000000000000;lock="a";lease="67e55044-10b1-426f-9247-bb680e5fe0c8"',
        '34;lease="67e55044-10b1-426f-9247-bb680e5fe0c8"',
        '34;lock="a";lease="abc"',
        '34;lock="a";lease="67e55044-10b1-426f-9247-bb680e5fe0c8";x=1',
        '34;lock="a";lock="a";lease="67e55044-10b1-426f-9247-bb680e5fe0c8"',
        '34;lock="a/../b";lease="67e55044-10b1-426f-9247-bb680e5fe0c8"',
        '34;lock="a";lease="67e55044-10b1-426f-9247-bb680e5fe0c8";kid="k1"',
        '34;lock="a";lease="67e55044-10b1-426f-9247-bb680e5fe0c8";kid="k";sig=:AAAA:',
    ],
)
def test_a_malformed_header_is_refused_and_not_repeated(header: str) -> None:
    with pytest.raises(Invalid) as refused:
        token.parse(header)
    assert not header or header not in str(refused.value)


def options(**changes: object) -> LockOptions:
    return LockOptions.checked(**{"name": "a", "ttl": 15, "wait": 0, **changes})  # type: ignore


@pytest.mark.parametrize(
    "changes",
    [
        *[{"name": name} for name in ("", "/a", "a/", "a//b", ".", "a/../b", "a b", "ä", "a\n", 7)],
        {"name": "a" * 257},
        *[{"ttl": ttl} for ttl in (0, -1, 0.0001, 86_401, float("nan"), float("inf"), "15", True)],
        *[{"wait": wait} for wait in (-1, 604_801, float("inf"), "5")],
        *[{"mode": "permit", "size": size} for size in (0, 1025, None, 1.5, True)],
        {"mode": "shared", "size": 2},
        {"mode": "other"},
        {"mode": "shared", "takeover": True},
        {"takeover_of": "x"},
        {"metadata": "x" * 5000},
        {"metadata": object()},
        {"metadata": float("nan")},
        {"min_token": 0},
        {"max_hold": 1, "warn_before": 1},
        {"progress_within": 0},
    ],
)
def test_values_out_of_range_are_refused_before_anything_is_sent(
    changes: dict[str, object],
) -> None:
    with pytest.raises(Invalid):
        options(**changes)


def test_texts_and_names_of_operations_are_bounded() -> None:
    with pytest.raises(Invalid, match="UTF-8"):
        validation.metadata({"a": "\ud800"})
    for bad in ("", "a" * 257, "a\n", "\x85", "\ud800"):
        with pytest.raises(Invalid):
            validation.text("owner", bad)
    for bad in ("", "a b", "a" * 129, 'a"'):
        with pytest.raises(Invalid):
            validation.op_id(bad)


def test_an_acquire_is_repeated_while_its_outcome_is_unknown() -> None:
    plan = Plan(0, 0, 5_000)
    assert plan.after(NoReply("x"), 100, 0) == AcquireStep("retry", 25)
    assert plan.after(NotSent("x"), 100, 0) == AcquireStep("retry", 50)
    busy = Refused(problem("store-unavailable", 503, True), 2.0)
    assert plan.after(busy, 100, 0) == AcquireStep("retry", 2_000)
    assert plan.after(NoReply("x"), 4_999, 0) == AcquireStep("fail")
    assert plan.after(Refused(problem("lease-lost", 410), None), 0, 0) == AcquireStep("restart")
    held = Refused(problem("lock-held", 423, True), 1.0)
    assert Plan(0, 0, 5_000).after(held, 0, 0).action == "fail", "a wait of zero is one answer"
    assert Plan(0, 1_000, 5_000).after(held, 0, 0).action == "retry"
    newer = Refused(problem("held-otherwise", 423, True), None)
    assert Plan(0, 0, 5_000).after(newer, 0, 0).action == "fail"


def test_an_unknown_outcome_stays_unknown_when_a_retry_fails() -> None:
    sent = SentChange()
    sent.record(NoReply("first"))
    assert isinstance(sent.error("put a", NotSent("gone")), OutcomeUnknown)
    stale = sent.error("put a", Refused(problem("stale-token", 412, mark=9), None))
    assert stale.stale and stale.outcome == "unknown"
    sent = SentChange()
    sent.record(NotSent("first"))
    assert isinstance(sent.error("put a", NotSent("gone")), Unavailable)


def test_limits_end_a_lease_and_warn_once_of_each_end() -> None:
    limits = Limits(progress_within_ms=500, max_hold_ms=3_000, warn_before_ms=100)
    hold = Hold.begin(limits, Reading(0, 0))
    window = Window.of(0, 15_000)
    assert hold.next_end(window, Reading(0, 0))[0] == 500
    slept = Reading(10_000, 9_000)
    assert hold.next_end(window, slept) == (3_000, errors.LostReason("held-too-long", None, 3_000))
    hold = hold.progress(Reading(2_900, 0))
    warning = hold.warn_at(window, Reading(2_900, 0), set())
    assert warning is not None and warning[0] == 2_900
    later = hold.warn_at(window, Reading(2_900, 0), {warning[1]})
    assert later is not None and later[1][1].word == "no-progress"


def test_only_a_late_end_or_a_retried_release_excuses(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = [0]
    monkeypatch.setattr(clock, "now_ms", lambda: moment[0])
    trust = Trust("a", Window(0, 3_000), Limits())
    end, too_late = WorkEnd(trust), WorkEnd(trust, is_live=False)

    def excuses(work_end: WorkEnd, code: str, reason: str, at_ms: int, is_retry: bool) -> bool:
        moment[0] = at_ms
        refusal = errors.from_problem("release a", problem(code, 410, reason=reason), None)
        refusal.stated_outcome = "unknown" if is_retry else None
        return work_end.excuses(refusal)

    by_time = [
        ("lease-lost", "expired"),
        ("lease-lost", "session-ended"),
        ("session-ended", "expired"),
        ("session-ended", "blocked"),
    ]
    # The server has forgotten what the first attempt did.
    forgotten = [("lease-lost", "superseded"), ("session-unknown", "")]
    by_others = [("lease-lost", "revoked"), ("lease-lost", "released"), ("session-ended", "ended")]
    for code, reason in by_time:
        assert excuses(end, code, reason, 2_400, is_retry=False)
        assert not excuses(end, code, reason, 2_399, is_retry=False)
    for code, reason in [*by_time, *forgotten]:
        assert excuses(end, code, reason, 0, is_retry=True)
        assert not excuses(too_late, code, reason, 2_400, is_retry=True)
    for code, reason in [*forgotten, *by_others]:
        assert not excuses(end, code, reason, 2_400, is_retry=False)


def test_settings_come_from_arguments_then_variables_then_the_file(tmp_path: Path) -> None:
    file = tmp_path / "fence.toml"
    file.write_text(
        'server = "http://127.0.0.1:1"\nguard = "http://127.0.0.1:2"\nowner = "file"\nlog = "a"\n'
    )
    variables = {"FENCE_CONFIG": str(file), "FENCE_OWNER": "variable", "FENCE_GUARD": ""}
    read = settings.read({}, settings.Variables(variables))
    assert (read.server, read.guard, read.owner) == (
        "http://127.0.0.1:1",
        "http://127.0.0.1:2",
        "variable",
    )
    assert settings.read({"owner": "argument"}, settings.Variables(variables)).owner == "argument"
    assert settings.read({}, settings.Variables({})).owner.count(":") == 1


def test_a_wrong_setting_is_one_clear_error(tmp_path: Path) -> None:
    file = tmp_path / "fence.toml"
    file.write_text('sever = "http://127.0.0.1:1"\n')
    cases = {
        "unknown key 'sever'": {"FENCE_CONFIG": str(file)},
        "plain HTTP to another machine": {"FENCE_SERVER": "http://locks.example:7420"},
        "must begin with http": {"FENCE_SERVER": "ftp://locks.example"},
        "neither credentials": {"FENCE_SERVER": "https://me:secret@locks.example"},
        "must be true or false": {"FENCE_INSECURE_HTTP": "yes"},
        "No such file": {"FENCE_AUTH_FILE": str(tmp_path / "none")},
        "belong together": {"FENCE_SERVER": "https://a", "FENCE_CLIENT_CERT": "c.pem"},
        "cannot be used": {"FENCE_CA_FILE": str(file)},
    }
    for text, variables in cases.items():
        with pytest.raises(Invalid, match=re.escape(text)) as refused:
            settings.read({}, settings.Variables(variables))
        assert "secret" not in str(refused.value)
    plain = {"FENCE_SERVER": "http://locks.example:7420", "FENCE_INSECURE_HTTP": "true"}
    assert settings.read({}, settings.Variables(plain)).server == "http://locks.example:7420"


def test_events_are_cut_from_a_stream_in_any_pieces() -> None:
    stream = b'id: 7-1\nevent: granted\ndata: {"kind":"granted","lock":"a"}\n\n: keep-alive\n\n'
    parser = Parser()
    events = [event for at in range(len(stream)) for event in parser.push(stream[at : at + 1])]
    assert [(event.kind, event.lock, event.id) for event in events] == [("granted", "a", "7-1")]
    with pytest.raises(errors.InternalError):
        Parser().push(b"data: <html>\n\n")
    with pytest.raises(errors.InternalError):
        Parser().push(b"x" * 70_000)


@pytest.mark.parametrize(
    "changes",
    [
        {"token": True},
        {"token": 0},
        {"token": -1},
        {"token": 10**15},
        {"token": "7"},
        {"token": 7.5},
        {"ttl_ms": -1},
        {"ttl_ms": 1e999},
        {"ttl_ms": "60000"},
    ],
)
def test_a_grant_of_wrong_types_is_refused(changes: dict[str, object]) -> None:
    reply = {"lock": "a", "lease_id": "b", "token": 7, "ttl_ms": 60_000, "owner": "c"}
    reply |= {"fencing_token": "d", "fencing_credential": "e"}
    assert Grant.of(reply, "a", "b").token == 7
    with pytest.raises(Unusable):
        Grant.of({**reply, **changes}, "a", "b")
