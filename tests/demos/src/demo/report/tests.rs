use super::super::record::{Dot, Span, SpanKind};
use super::*;

const NASTY: &str = "<script>alert(\"1\")</script> & 'x'\u{1b}[31m";

fn record(ok: bool) -> Record {
    let mut story = Story::new("guarded", "with tokens", &["lock-server", NASTY, "document"]);
    let event = |at_ms, kind| Event {
        at_ms,
        lane: NASTY.to_owned(),
        kind,
        text: NASTY.to_owned(),
        token: Some(4),
        status: None,
    };
    story.ok = ok;
    story.verdict = NASTY.to_owned();
    story.events =
        vec![event(3, Kind::Granted), event(1500, Kind::Refused), event(1500, Kind::Lost)];
    story.spans = vec![Span {
        lane: NASTY.to_owned(),
        kind: SpanKind::Stall,
        from_ms: 3,
        to_ms: 1500,
        label: NASTY.to_owned(),
    }];
    story.notes = vec![NASTY.to_owned()];
    story.dots = vec![Dot { lane: NASTY.to_owned(), at_ms: 700 }];
    Record {
        demo: "gc-stall",
        store: NASTY.to_owned(),
        title: "A title",
        explanation: "What happens.",
        ok,
        stories: vec![story],
    }
}

#[test]
fn whatever_a_server_says_stays_text() {
    let page = page(&record(true));
    assert!(!page.contains("<script"), "{page}");
    assert!(!page.contains('\u{1b}'));
    assert!(page.contains("&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt; &amp; &#39;x&#39;"));
}

#[test]
fn the_page_needs_nothing_from_elsewhere() {
    let page = page(&record(true));
    for outside in ["src=", "href=", "@import", "http://", "https://", "url(http"] {
        assert!(!page.contains(outside), "{outside}");
    }
}

/// The holder of a lease is refused right after its grant: redis-amnesia without the lock server.
#[test]
fn a_lease_label_and_a_refusal_do_not_overlap() {
    let mut record = record(true);
    let story = &mut record.stories[0];
    story.spans[0].kind = SpanKind::Lease;
    story.spans[0].label = "token 59769668645001".to_owned();
    story.events[1].at_ms = 4;
    story.events[1].status = Some(412);
    let page = page(&record);
    let x = |class: &str| -> f64 {
        let (_, rest) = page.split_once(&format!("<text class=\"{class}\" x=\"")).unwrap();
        rest.split('"').next().unwrap().parse().unwrap()
    };
    let label = x("label lease-label");
    let remark = x("remark refused");
    assert!(label > remark + 10.0, "the label is at {label}, the refusal at {remark}");
}

#[test]
fn tags_are_balanced() {
    let page = page(&record(true));
    for tag in ["svg", "g", "text", "section", "table", "tr", "td", "p", "div", "main", "defs"] {
        let opened =
            page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
    }
}

#[test]
fn a_story_that_went_wrong_says_so() {
    assert!(page(&record(false)).contains("Not as expected"));
    assert!(!page(&record(true)).contains("Not as expected"));
}

#[test]
fn a_story_that_broke_off_at_its_start_has_a_page_too() {
    let mut record = record(false);
    record.stories = vec![Story::new("unguarded", "nothing yet", &[])];
    assert!(page(&record).contains("</svg>"));
}
