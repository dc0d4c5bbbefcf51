//! HTTP threads.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use service_kit::http::HostNames;
use service_kit::listener::{self, Exposure, ListenOptions};
use service_kit::{Kit, http};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::harness::{
    Client, OPTIONS, SOON, THREADS, get_request, in_time, patient, start_kit, start_with,
};

fn thread_name() -> String {
    std::thread::current().name().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn connections_are_spread_and_each_stays_on_its_thread() {
    let routes = Router::new().route("/thread", get(async || thread_name()));
    let server = start_with(patient(), routes).await;
    let mut clients = Vec::new();
    let mut connections: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..3 * THREADS {
        let mut client = server.connect().await;
        let thread = client.request(&get_request("/thread")).await.body;
        assert!(thread.starts_with("http-"), "{thread}");
        *connections.entry(thread.clone()).or_default() += 1;
        clients.push((client, thread));
    }
    assert_eq!(connections.into_values().collect::<Vec<_>>(), [3; THREADS]);
    for (client, thread) in &mut clients {
        assert_eq!(client.request(&get_request("/thread")).await.body, *thread);
    }
}

#[tokio::test]
async fn a_request_that_was_abandoned_is_finished_before_its_thread_ends() {
    let arrived = Arc::new(Notify::new());
    let finished = Arc::new(Notify::new());
    let kit = Kit::new("test-service");
    let work = {
        let arrived = arrived.clone();
        let finished = finished.clone();
        let tasks = kit.tasks.clone();
        async move || {
            tasks
                .finish(async move {
                    arrived.notify_one();
                    // A timer of the thread's own.
                    tokio::time::sleep(SOON).await;
                    finished.notify_one();
                })
                .await;
        }
    };
    let routes = Router::new().route("/work", get(work));
    let server = start_kit(patient(), routes, kit).await;
    let mut client = server.connect().await;
    client.send(&get_request("/work")).await;
    in_time("the request", arrived.notified()).await;
    drop(client);
    server.kit.tasks.begin_shutdown();
    in_time("the end of the drain", server.serving).await.unwrap();
    assert!(server.kit.tasks.drained(SOON * 100).await, "the work has ended");
    in_time("the work", finished.notified()).await;
}

#[tokio::test]
async fn without_threads_connections_are_served_by_the_callers_runtime() {
    let kit = Kit::new("test-service");
    let routes = Router::new().route("/thread", get(async || thread_name()));
    let router = http::finish(routes, &kit, OPTIONS, &HostNames::default());
    let listener =
        listener::bind("127.0.0.1:0".parse().unwrap(), &Exposure::default()).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let options = ListenOptions::default();
    let serving = listener::serve(listener, router, options, kit.tasks.clone());
    let serving = tokio::runtime::Handle::current().spawn(serving);
    let stream = TcpStream::connect(addr).await.unwrap();
    let mut client = Client::new(stream);
    assert_eq!(client.request(&get_request("/thread")).await.body, thread_name());
    kit.tasks.begin_shutdown();
    in_time("the end of the drain", serving).await.unwrap();
}
