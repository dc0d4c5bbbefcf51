//! Shutting down.

use service_kit::listener::{DrainReport, ListenOptions};
use tokio::net::TcpStream;

use crate::harness::{SOON, get_request, in_time, patient, start};

#[tokio::test]
async fn a_request_in_flight_is_finished_and_then_the_server_stops() {
    let server = start(patient()).await;
    let mut resting = server.connect().await;
    assert_eq!(resting.request(&get_request("/hello")).await.status, 200);
    let mut waiting = server.connect().await;
    waiting.send(&get_request("/wait")).await;
    in_time("the request", server.arrived.notified()).await;

    server.kit.tasks.begin_shutdown();
    assert_eq!(resting.closed().await, "", "a resting connection is closed at once");
    in_time("closing the port", async {
        while TcpStream::connect(server.addr).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(!server.serving.is_finished(), "a request is in flight");

    server.gate.notify_one();
    let reply = waiting.reply().await;
    assert_eq!((reply.status, reply.body.as_str()), (200, "done"));
    assert_eq!(waiting.closed().await, "", "it was the last request of its connection");
    let report = in_time("the end of the drain", server.serving).await.unwrap();
    assert_eq!(report, DrainReport { open: report.open, cut: 0 });
    assert!(report.open >= 1, "{report:?}");
    assert!(server.kit.tasks.drained(SOON * 60).await, "no connection is left");
}

#[tokio::test]
async fn what_is_not_done_at_the_deadline_is_cut() {
    let server = start(ListenOptions { drain_deadline: SOON, ..patient() }).await;
    let mut waiting = server.connect().await;
    waiting.send(&get_request("/wait")).await;
    in_time("the request", server.arrived.notified()).await;
    server.kit.tasks.begin_shutdown();
    assert_eq!(waiting.closed().await, "", "the gate was never opened");
    let report = in_time("the end of the drain", server.serving).await.unwrap();
    assert_eq!(report, DrainReport { open: 1, cut: 1 });
    assert!(server.kit.tasks.drained(SOON * 60).await, "the connection's task has ended");
}
