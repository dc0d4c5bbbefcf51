//! What several members that do not agree come to.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use serde_json::Value;

use super::*;

const PATH: &str = "/v3/kv/txn";
/// What every request says.
const BODY: &str = "{}";
const REFUSES: &str = r#"{"error":"x","code":5,"message":"etcdserver: requested lease not found"}"#;
const IS_FULL: &str =
    r#"{"error":"x","code":8,"message":"etcdserver: mvcc: database space exceeded"}"#;

/// A member that gives everybody this answer; none is one that takes requests and says nothing.
fn member(answer: Option<(u16, &'static str)>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serve = move || {
        let mut silent = Vec::new();
        for client in listener.incoming().map_while(Result::ok) {
            match answer {
                Some(answer) => say(client, answer),
                None => silent.push(client),
            }
        }
    };
    std::thread::Builder::new().name("member".to_owned()).spawn(serve).unwrap();
    address
}

fn say(mut client: TcpStream, (status, body): (u16, &str)) {
    let (mut request, mut piece) = (Vec::new(), [0; 4096]);
    while !request.ends_with(BODY.as_bytes()) {
        match client.read(&mut piece) {
            Ok(count) if count > 0 => request.extend_from_slice(&piece[..count]),
            _ => return,
        }
    }
    let length = body.len();
    let head = format!("HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-length: {length}\r\n");
    let _ = write!(client, "{head}\r\n{body}");
}

async fn asked(members: &[String], effect: Effect) -> (Gateway, Result<Value, GatewayError>) {
    service_kit::tls::install_crypto();
    let target = format!("etcd://{}", members.join(",")).parse().unwrap();
    let (connect, reply) = (Duration::from_secs(5), Duration::from_millis(300));
    let gateway = Gateway::new(&target, &StoreLogin::default(), connect, reply).unwrap();
    let outcome = gateway.call(PATH, BODY, effect).await;
    (gateway, outcome)
}

#[tokio::test]
async fn what_one_member_refuses_another_may_have_done() {
    let members = [member(None), member(Some((404, REFUSES)))];
    let (gateway, outcome) = asked(&members, Effect::Compared).await;
    assert!(matches!(&outcome, Err(GatewayError::Unknown(why)) if why.contains("lease not found")));
    // The next request does not wait for the silent one again.
    assert_eq!(gateway.current(), 1);
    let again: Result<Value, _> = gateway.call(PATH, BODY, Effect::Compared).await;
    assert!(again.unwrap_err().is_no_lease());
    let (_, harmless) = asked(&members, Effect::Harmless).await;
    assert!(harmless.unwrap_err().is_no_lease());
}

/// etcd says so of what it did, too, where the quota was passed meanwhile.
#[tokio::test]
async fn a_full_etcd_may_have_done_what_it_refuses() {
    let members = [member(Some((429, IS_FULL)))];
    let (_, outcome) = asked(&members, Effect::Compared).await;
    assert!(matches!(&outcome, Err(GatewayError::Full(why)) if why.contains("NOSPACE")));
    let members = [member(None), member(Some((429, IS_FULL)))];
    let (_, outcome) = asked(&members, Effect::Compared).await;
    assert!(matches!(&outcome, Err(GatewayError::Unknown(why)) if why.contains("NOSPACE")));
    let (_, harmless) = asked(&members, Effect::Harmless).await;
    assert!(matches!(harmless, Err(GatewayError::Down(why)) if why.contains("NOSPACE")));
}
