//! Limits of HTTP/2, and its ends.

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use futures_util::future::join_all;
use service_kit::listener::{DrainReport, ListenOptions};
use tokio::sync::Semaphore;

use crate::frames::{
    END_HEADERS, END_STREAM, Http2Client, PREFACE, block, code, frame, kind, request,
};
use crate::harness::{SOON, in_time, start, start_with};
use crate::http2::{connect, ok, options, status};

async fn goodbye(client: &mut Http2Client) -> Option<u32> {
    in_time("a GOAWAY", client.next(kind::GOAWAY)).await.map(|frame| frame.code())
}

#[tokio::test]
async fn a_head_is_bounded() {
    let server = start(options()).await;
    let mut client = connect(&server).await;
    let long = "x".repeat(5000);
    let fields: Vec<_> = request("GET", "/hello").into_iter().chain([("x-a", &*long); 3]).collect();
    assert_eq!(client.exchange(1, &fields).await, ok("hello"));
    let fields: Vec<_> = request("GET", "/hello").into_iter().chain([("x-a", &*long); 4]).collect();
    // More than one frame holds.
    let bytes = block(&fields);
    let (first, rest) = bytes.split_at(16_000);
    client.send(kind::HEADERS, END_STREAM, 3, first).await;
    client.send(kind::CONTINUATION, END_HEADERS, 3, rest).await;
    assert_eq!(status(client.reply(3).await), Ok(431));
    let fields: Vec<_> = request("GET", "/hello").into_iter().chain([("x-a", "1"); 65]).collect();
    assert_eq!(status(client.exchange(5, &fields).await), Ok(431));
}

/// CVE-2024-27316: a head without an end.
#[tokio::test]
async fn an_endless_head_ends_the_connection() {
    let server = start(options()).await;
    for part in [&b""[..], &block(&[("x-a", "1")])] {
        let mut client = connect(&server).await;
        client.send(kind::HEADERS, END_STREAM, 1, &block(&request("GET", "/hello"))).await;
        let flood = frame(kind::CONTINUATION, 0, 1, part).repeat(10_000);
        client.bytes(&flood).await;
        let end = in_time("the end", client.next(kind::GOAWAY)).await.map(|frame| frame.code());
        assert!(matches!(end, Some(code::ENHANCE_YOUR_CALM) | None), "{end:?}");
    }
}

/// CVE-2023-44487: requests that are reset at once.
#[tokio::test]
async fn a_flood_of_resets_ends_the_connection() {
    let server = start(options()).await;
    let mut client = connect(&server).await;
    let mut flood = Vec::new();
    for stream in (1..2000).step_by(2) {
        let head = block(&request("GET", "/wait"));
        flood.extend(frame(kind::HEADERS, END_HEADERS | END_STREAM, stream, &head));
        flood.extend(frame(kind::RST_STREAM, 0, stream, &code::CANCEL.to_be_bytes()));
    }
    client.bytes(&flood).await;
    let end = in_time("the end", client.next(kind::GOAWAY)).await.map(|frame| frame.code());
    assert!(matches!(end, Some(code::ENHANCE_YOUR_CALM) | None), "{end:?}");
}

#[tokio::test]
async fn a_client_that_resets_all_that_it_began_is_cut() {
    let server = start(options()).await;
    let mut client = connect(&server).await;
    for stream in (1..).step_by(2).take(100) {
        client.request(stream, "GET", "/wait").await;
        in_time("the request", server.arrived.notified()).await;
        client.send(kind::RST_STREAM, 0, stream, &code::CANCEL.to_be_bytes()).await;
    }
    assert_eq!(goodbye(&mut client).await, Some(code::ENHANCE_YOUR_CALM));
}

#[tokio::test]
async fn a_client_that_lets_as_many_requests_end_may_reset_any_number() {
    let server = start(options()).await;
    let mut client = connect(&server).await;
    for stream in (1..).step_by(4).take(150) {
        client.request(stream, "GET", "/wait").await;
        in_time("the request", server.arrived.notified()).await;
        client.send(kind::RST_STREAM, 0, stream, &code::CANCEL.to_be_bytes()).await;
        assert_eq!(client.exchange(stream + 2, &request("GET", "/hello")).await, ok("hello"));
    }
}

#[tokio::test]
async fn a_flood_of_empty_frames_ends_the_connection() {
    let server = start(options()).await;
    let mut client = connect(&server).await;
    client.head(1, 0, &request("POST", "/bytes")).await;
    client.bytes(&frame(kind::DATA, 0, 1, &[]).repeat(10_000)).await;
    let end = goodbye(&mut client).await;
    assert!(matches!(end, Some(code::ENHANCE_YOUR_CALM) | None), "{end:?}");
}

/// Answers to them that the client does not read wait in the socket alone.
#[tokio::test]
async fn a_flood_of_pings_that_are_not_read_ends_the_connection() {
    let server = start(ListenOptions { write_timeout: SOON, ..options() }).await;
    let client = connect(&server).await;
    let pings = frame(kind::PING, 0, 0, &[0; 8]).repeat(10_000);
    in_time("the end of the flood", client.flood(&pings)).await;
}

#[tokio::test]
async fn requests_beyond_the_limit_of_a_connection_are_refused() {
    let server = start(options()).await;
    let mut client = connect(&server).await;
    for stream in (1..=201).step_by(2) {
        client.request(stream, "GET", "/wait").await;
    }
    assert_eq!(client.reply(201).await, Err(Some(code::REFUSED_STREAM)));
    client.send(kind::RST_STREAM, 0, 1, &code::CANCEL.to_be_bytes()).await;
    assert_eq!(client.exchange(203, &request("GET", "/hello")).await, ok("hello"));
}

/// A connection has one permit for its first request; each further one takes one of the listener's.
#[tokio::test]
async fn requests_count_in_the_budget_of_connections() {
    let server = start(ListenOptions { max_connections: 3, ..options() }).await;
    let mut client = connect(&server).await;
    for stream in [1, 3] {
        client.request(stream, "GET", "/wait").await;
        in_time("the request", server.arrived.notified()).await;
    }
    // The accept loop itself holds the last permit while it waits for a connection.
    let refused = client.exchange(7, &request("GET", "/hello")).await;
    assert_eq!(refused, Err(Some(code::REFUSED_STREAM)));
    client.send(kind::RST_STREAM, 0, 3, &code::CANCEL.to_be_bytes()).await;
    // The permit comes back once the server has seen the end of stream 3.
    let mut streams = (9..).step_by(2);
    let served = in_time("a permit", async {
        loop {
            let stream = streams.next().unwrap();
            let reply = client.exchange(stream, &request("GET", "/hello")).await;
            if reply != Err(Some(code::REFUSED_STREAM)) {
                break reply;
            }
        }
    });
    assert_eq!(served.await, ok("hello"));
}

#[tokio::test]
async fn a_window_that_stays_closed_costs_the_client_its_reply() {
    let server = start(ListenOptions { write_timeout: SOON, ..options() }).await;
    // SETTINGS_INITIAL_WINDOW_SIZE.
    let mut client = Http2Client::connect(server.addr, &[(4, 2)]).await;
    client.request(1, "GET", "/hello").await;
    assert_eq!(client.reply(1).await, Err(Some(code::CANCEL)));
    client.head(3, END_STREAM, &request("GET", "/hello")).await;
    client.send(kind::WINDOW_UPDATE, 0, 3, &100_u32.to_be_bytes()).await;
    assert_eq!(client.reply(3).await, ok("hello"), "the connection continues");
}

#[tokio::test]
async fn a_slow_body_is_answered_408_on_its_stream() {
    let server = start(ListenOptions { body_timeout: SOON, ..options() }).await;
    let mut client = connect(&server).await;
    client.head(1, 0, &request("POST", "/bytes")).await;
    client.send(kind::DATA, 0, 1, b"123").await;
    assert_eq!(status(client.reply(1).await), Ok(408));
    assert_eq!(client.exchange(3, &request("GET", "/hello")).await, ok("hello"));
}

#[tokio::test]
async fn half_a_preface_is_cut() {
    let server = start(ListenOptions { header_timeout: SOON, ..options() }).await;
    for part in [&b""[..], b"PRI * HTTP"] {
        let mut client = Http2Client::silent(server.addr).await;
        client.bytes(part).await;
        assert!(client.frame().await.is_none_or(|frame| frame.stream != 0), "it was served");
    }
}

/// Pings are no requests: a connection rests though it sends them.
#[tokio::test]
async fn a_resting_connection_ends_with_a_goodbye() {
    let server = start(ListenOptions { idle_timeout: SOON, ..options() }).await;
    let mut client = connect(&server).await;
    assert_eq!(client.exchange(1, &request("GET", "/hello")).await, ok("hello"));
    let goodbye = in_time("a GOAWAY", async {
        loop {
            client.send(kind::PING, 0, 0, &[1; 8]).await;
            match client.frame().await {
                Some(frame) if frame.kind == kind::GOAWAY => break frame.code(),
                Some(_) => tokio::time::sleep(SOON / 100).await,
                None => panic!("it ended without a GOAWAY"),
            }
        }
    });
    assert_eq!(goodbye.await, code::NO_ERROR);
    // The client confirms nothing, and the connection ends all the same.
    assert_eq!(client.next(kind::DATA).await, None);
}

#[tokio::test]
async fn an_unfinished_head_is_no_request() {
    let server = start(ListenOptions { idle_timeout: SOON, ..options() }).await;
    let mut client = connect(&server).await;
    client.send(kind::HEADERS, END_STREAM, 1, &block(&request("GET", "/hello"))).await;
    assert_eq!(client.next(kind::HEADERS).await, None);
}

/// A head whose end does not come, in every form.
fn unfinished_heads() -> [Vec<u8>; 4] {
    let bytes = block(&request("GET", "/hello"));
    let whole = frame(kind::HEADERS, END_HEADERS | END_STREAM, 3, &bytes);
    let open = frame(kind::HEADERS, END_STREAM, 3, &bytes);
    let continued = [&open[..], &frame(kind::CONTINUATION, 0, 3, &[])].concat();
    [whole[..4].to_vec(), whole[..whole.len() - 1].to_vec(), open, continued]
}

#[tokio::test]
async fn an_unfinished_head_ends_the_connection_in_the_time_for_heads() {
    let all = unfinished_heads().map(|part| async move {
        let server = start(ListenOptions { header_timeout: SOON, ..options() }).await;
        // Behind a request in flight: the head keeps its client from sending anything else.
        let mut client = connect(&server).await;
        client.request(1, "GET", "/wait").await;
        in_time("the request", server.arrived.notified()).await;
        client.bytes(&part).await;
        assert_eq!(goodbye(&mut client).await, Some(code::ENHANCE_YOUR_CALM), "{part:?}");
        assert_eq!(client.frame().await, None);
        // With the preface, in one piece.
        let mut client = Http2Client::silent(server.addr).await;
        let settings = frame(kind::SETTINGS, 0, 0, &[]);
        client.bytes(&[PREFACE, &settings[..], &part[..]].concat()).await;
        assert_eq!(goodbye(&mut client).await, Some(code::ENHANCE_YOUR_CALM), "{part:?}");
    });
    join_all(all).await;
}

/// Bytes that arrive one by one earn no time.
#[tokio::test]
async fn a_head_that_trickles_is_cut() {
    let server = start(ListenOptions { header_timeout: SOON, ..options() }).await;
    let mut client = connect(&server).await;
    client.send(kind::HEADERS, 0, 1, &block(&request("GET", "/hello"))).await;
    let long = frame(kind::CONTINUATION, 0, 1, &block(&[("x", &"a".repeat(8000))]));
    let mut bytes = long.iter();
    let end = in_time("a GOAWAY", async {
        loop {
            client.bytes(&[*bytes.next().expect("it is cut before its end")]).await;
            tokio::select! {
                frame = client.next(kind::GOAWAY) => break frame,
                () = tokio::time::sleep(SOON / 10) => {}
            }
        }
    });
    // The end may be a reset, because the client has sent more.
    let code = end.await.map(|frame| frame.code());
    assert!(matches!(code, Some(code::ENHANCE_YOUR_CALM) | None), "{code:?}");
}

/// Neither rest nor an earlier head counts as a part of a head.
#[tokio::test]
async fn each_head_has_the_whole_time() {
    let server = start(ListenOptions { header_timeout: SOON, ..options() }).await;
    let bytes = block(&request("GET", "/hello"));
    let ping = frame(kind::PING, 0, 0, &[1; 8]);
    in_time("a head in time", async {
        loop {
            // The wait for the rest of the preface is timed too.
            let mut client = Http2Client::silent(server.addr).await;
            client.bytes(&PREFACE[..9]).await;
            assert_eq!(server.get("/hello").await.status, 200, "the server has had its turn");
            client.bytes(&[&PREFACE[9..], &frame(kind::SETTINGS, 0, 0, &[])].concat()).await;
            let mut is_served = true;
            for stream in [1, 3] {
                // Longer than the time for a head: another connection is cut for its own.
                let mut other = Http2Client::silent(server.addr).await;
                assert_eq!(other.next(kind::GOAWAY).await, None);
                // The reply to the PING shows that the bytes behind it have been read.
                let part = frame(kind::HEADERS, END_STREAM, stream, &bytes);
                client.bytes(&[&ping[..], &part].concat()).await;
                is_served &= client.next(kind::PING).await.is_some();
                client.send(kind::CONTINUATION, END_HEADERS, stream, &[]).await;
                is_served &= client.reply(stream).await == ok("hello");
            }
            // A busy machine may take as long for the parts of one head.
            if is_served {
                break;
            }
        }
    })
    .await;
}

/// The end of a head and the beginning of the next one arrive together.
#[tokio::test]
async fn a_head_behind_another_has_the_whole_time() {
    let server = start(ListenOptions { header_timeout: SOON, ..options() }).await;
    let begin =
        |stream| frame(kind::HEADERS, END_STREAM, stream, &block(&request("GET", "/hello")));
    let end = |stream| frame(kind::CONTINUATION, END_HEADERS, stream, &[]);
    let served = in_time("the last head", async {
        loop {
            let mut client = connect(&server).await;
            client.bytes(&begin(1)).await;
            for stream in [1, 3, 5, 7, 9] {
                // All of them together take longer than one may.
                tokio::time::sleep(SOON / 4).await;
                client.bytes(&[end(stream), begin(stream + 2)].concat()).await;
            }
            client.bytes(&end(11)).await;
            let reply = client.reply(11).await;
            // A busy machine may take as long for one of them.
            if reply.is_ok() {
                break reply;
            }
        }
    });
    assert_eq!(served.await, ok("hello"));
}

#[tokio::test]
async fn half_a_frame_of_a_body_is_no_head() {
    let server = start(ListenOptions { header_timeout: SOON, ..options() }).await;
    let mut client = connect(&server).await;
    client.head(1, 0, &request("POST", "/bytes")).await;
    let data = frame(kind::DATA, END_STREAM, 1, b"12345");
    let (first, rest) = data.split_at(11);
    client.bytes(&[&frame(kind::PING, 0, 0, &[1; 8]), first].concat()).await;
    assert!(client.next(kind::PING).await.is_some(), "the bytes have been read");
    let mut other = connect(&server).await;
    other.send(kind::HEADERS, 0, 1, &[]).await;
    assert_eq!(goodbye(&mut other).await, Some(code::ENHANCE_YOUR_CALM));
    client.bytes(rest).await;
    assert_eq!(client.reply(1).await, ok("5"));
}

#[tokio::test]
async fn requests_in_flight_are_finished_at_shutdown_and_no_others_begin() {
    let gate = Arc::new(Semaphore::new(0));
    let wait = gate.clone();
    let gated = async move || wait.acquire().await.map(|_| "done").unwrap();
    let server = start_with(options(), Router::new().route("/gated", get(gated))).await;
    let mut resting = connect(&server).await;
    assert_eq!(resting.exchange(1, &request("GET", "/hello")).await, ok("hello"));
    let mut client = connect(&server).await;
    client.request(1, "GET", "/gated").await;
    assert_eq!(client.exchange(3, &request("GET", "/hello")).await, ok("hello"));
    server.kit.tasks.begin_shutdown();
    assert_eq!(goodbye(&mut resting).await, Some(code::NO_ERROR));
    assert_eq!(resting.next(kind::DATA).await, None, "it confirmed nothing");
    assert_eq!(goodbye(&mut client).await, Some(code::NO_ERROR));
    // Confirms that nothing more is sent: the reply to the PING behind the first GOAWAY.
    let ping = in_time("a PING", client.next(kind::PING)).await.unwrap();
    client.send(kind::PING, 1, 0, &ping.payload).await;
    let last = in_time("the last stream", client.next(kind::GOAWAY)).await.unwrap();
    assert_eq!(last.payload[..4], 3_u32.to_be_bytes());
    client.request(5, "GET", "/hello").await;
    gate.add_permits(1);
    assert_eq!(client.reply(1).await, ok("done"));
    assert_eq!(client.next(kind::HEADERS).await, None, "stream 5 began after the last");
    let report = in_time("the end of the drain", server.serving).await.unwrap();
    assert_eq!(report, DrainReport { open: report.open, cut: 0 });
}

#[tokio::test]
async fn what_is_not_done_at_the_deadline_of_a_drain_is_cut() {
    let server = start(ListenOptions { drain_deadline: SOON, ..options() }).await;
    let mut client = connect(&server).await;
    client.request(1, "GET", "/wait").await;
    in_time("the request", server.arrived.notified()).await;
    server.kit.tasks.begin_shutdown();
    assert_eq!(client.next(kind::HEADERS).await, None, "the gate was never opened");
    let report = in_time("the end of the drain", server.serving).await.unwrap();
    assert_eq!(report, DrainReport { open: 1, cut: 1 });
    assert!(server.kit.tasks.drained(SOON * 60).await, "the connection's task has ended");
}
