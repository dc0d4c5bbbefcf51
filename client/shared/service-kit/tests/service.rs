//! The service kit over real sockets: limits, problems, ids and draining as a client sees them.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

#[path = "service/drain.rs"]
mod drain;
#[expect(unreachable_pub, dead_code, reason = "it is a part of the harness too, which uses all")]
#[path = "../../../../tests/src/http2_frames.rs"]
mod frames;
#[path = "service/harness.rs"]
mod harness;
#[path = "service/http2.rs"]
mod http2;
#[path = "service/http2_limits.rs"]
mod http2_limits;
#[path = "service/limits.rs"]
mod limits;
#[path = "service/problems.rs"]
mod problems;
#[path = "service/routes.rs"]
mod routes;
#[path = "service/threads.rs"]
mod threads;
