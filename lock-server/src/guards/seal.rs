//! Seals one guard: its mark rises, and it refuses every lower token from then on.

use std::time::Duration;

use fence_protocol::wire::fence::{Guarantee, SealReply};
use fence_protocol::{Code, FENCING_GUARANTEE, FENCING_TOKEN, FencingToken, Problem, Token};
use service_kit::tls::{ServerUrl, TlsOptions};
use service_kit::trace;

use crate::guards::http::{self, GuardClient};

/// Pauses between retries to a guard that is not ready, in milliseconds; the last one repeats.
const PAUSES_MS: [u64; 4] = [25, 50, 100, 200];

/// Mark of a guard after a seal: it refuses every token below the one that it was sealed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SealedMark {
    /// The mark is that token.
    At(Token),
    /// The mark is a higher token, which the guard has seen before: it refuses that token too.
    Above(Token),
}

impl SealedMark {
    /// Mark of the guard after the seal.
    pub(crate) fn mark(self) -> Token {
        match self {
            Self::At(mark) | Self::Above(mark) => mark,
        }
    }
}

/// Outcome of one request.
#[derive(Debug, PartialEq, Eq)]
enum SealAttempt {
    Sealed(SealedMark),
    /// The guard is not ready: retry.
    Later(String),
    /// A retry would not help.
    Refused(String),
}

/// Seals the guard at `url`. Sealing is idempotent, so it is retried if a reply is lost or says
/// that the guard is not ready.
///
/// # Errors
/// A sentence if the guard did not confirm the seal within `patience`. Its mark may have risen all
/// the same.
pub(crate) async fn seal(
    client: &GuardClient,
    url: &ServerUrl,
    fence: &FencingToken,
    patience: Duration,
) -> Result<SealedMark, String> {
    let mut last = None;
    let sealing = retry_until_sealed(client, url, fence, &mut last);
    let outcome = tokio::time::timeout(patience, sealing).await;
    outcome.unwrap_or_else(|_| {
        let within_ms = patience.as_millis();
        Err(match last {
            Some(why) => format!("not sealed within {within_ms} ms: {why}"),
            None => format!("no reply within {within_ms} ms"),
        })
    })
}

async fn retry_until_sealed(
    client: &GuardClient,
    url: &ServerUrl,
    fence: &FencingToken,
    last: &mut Option<String>,
) -> Result<SealedMark, String> {
    let mut pauses = PAUSES_MS.into_iter().chain(std::iter::repeat(PAUSES_MS[3]));
    loop {
        match try_seal(client, url, fence).await {
            SealAttempt::Sealed(standing) => return Ok(standing),
            SealAttempt::Refused(why) => return Err(why),
            SealAttempt::Later(why) => *last = Some(why),
        }
        tokio::time::sleep(Duration::from_millis(pauses.next().unwrap_or(PAUSES_MS[3]))).await;
    }
}

async fn try_seal(client: &GuardClient, url: &ServerUrl, fence: &FencingToken) -> SealAttempt {
    // The bytes of a lock name may stand in a path as they are.
    let path = format!("/v1/fences/{}/seal", fence.lock);
    let request = client.post(url, &path).header(FENCING_TOKEN, fence.to_string());
    let request = match trace::header() {
        Some(context) => request.header(trace::HEADER, context),
        None => request,
    };
    let reply = match request.send().await {
        Ok(reply) => reply,
        // No process listens, or not with these certificates: an operator has to act, and waiting
        // would block the lock.
        Err(error) if error.is_connect() || TlsOptions::is_client_refused(&error) => {
            return SealAttempt::Refused(client.causes(url, error));
        }
        Err(error) => return SealAttempt::Later(client.causes(url, error)),
    };
    let status = reply.status().as_u16();
    let guarantee = reply.headers().get(FENCING_GUARANTEE).map(|value| value.as_bytes().to_vec());
    let observes = guarantee.as_deref() == Some(Guarantee::Observe.as_str().as_bytes());
    match http::body(reply).await {
        Ok(body) => classify(fence, status, observes, &body),
        Err(why) => SealAttempt::Later(why),
    }
}

/// Classifies a reply. Only a guard's reply for this very lock counts as sealed.
fn classify(fence: &FencingToken, status: u16, observes: bool, body: &[u8]) -> SealAttempt {
    if observes {
        return SealAttempt::Refused("it only observes: it refuses nothing".to_owned());
    }
    if status == 200 {
        return match serde_json::from_slice::<SealReply>(body) {
            Ok(reply) if reply.lock == fence.lock && reply.mark == fence.token => {
                SealAttempt::Sealed(SealedMark::At(reply.mark))
            }
            _ => SealAttempt::Refused("its reply is not one of a guard".to_owned()),
        };
    }
    let problem = serde_json::from_slice::<Problem>(body).ok();
    let mark: Option<Token> = problem.as_ref().and_then(|problem| problem.extension("mark"));
    let said = match &problem {
        Some(problem) => format!("it replies {status} {}: {}", problem.code, problem.detail),
        None => format!("it replies {status}; is it a guard of this version?"),
    };
    match (problem.map(|problem| problem.code), mark) {
        (Some(Code::StaleToken), Some(mark)) if mark > fence.token => {
            SealAttempt::Sealed(SealedMark::Above(mark))
        }
        (Some(Code::Unauthorized | Code::Forbidden), _) => SealAttempt::Refused(format!(
            "{said}; the bearer token of --guard-auth-file needs the right \"write *\" there"
        )),
        (Some(_), _) if matches!(status, 500..=599) && status != 501 => SealAttempt::Later(said),
        _ => SealAttempt::Refused(said),
    }
}

#[cfg(test)]
mod tests {
    use fence_protocol::{LeaseId, LockName, Namespace};
    use serde_json::{Value, json};

    use super::*;

    fn token(number: u64) -> Token {
        Token::new(number).unwrap()
    }

    fn judge(status: u16, body: &Value) -> SealAttempt {
        let fence = FencingToken {
            token: token(34),
            lock: LockName::new("orders/42").unwrap(),
            lease: LeaseId::new(uuid::Uuid::from_u128(7)).unwrap(),
            namespace: Namespace::default(),
            signature: None,
        };
        classify(&fence, status, false, body.to_string().as_bytes())
    }

    fn problem(code: Code, mark: Option<u64>) -> SealAttempt {
        let problem = Problem::new(code, "why");
        let problem = mark.into_iter().fold(problem, |problem, mark| problem.with("mark", mark));
        judge(code.status(), &serde_json::to_value(problem).unwrap())
    }

    #[test]
    fn only_the_mark_of_this_lock_counts_as_sealed() {
        let sealed = json!({"lock": "orders/42", "mark": 34});
        assert_eq!(judge(200, &sealed), SealAttempt::Sealed(SealedMark::At(token(34))));
        for other in [
            json!({"lock": "orders/43", "mark": 34}),
            json!({"lock": "orders/42", "mark": 33}),
            // A guard that takes it lifts its mark to it and no further.
            json!({"lock": "orders/42", "mark": 35}),
            json!({"lock": "orders/42"}),
            json!("ok"),
        ] {
            assert!(matches!(judge(200, &other), SealAttempt::Refused(_)), "{other}");
        }
    }

    #[test]
    fn a_higher_mark_is_accepted_and_a_lower_one_is_not() {
        let above = SealAttempt::Sealed(SealedMark::Above(token(35)));
        assert_eq!(problem(Code::StaleToken, Some(35)), above);
        for mark in [None, Some(34), Some(33)] {
            assert!(matches!(problem(Code::StaleToken, mark), SealAttempt::Refused(_)), "{mark:?}");
        }
        assert!(matches!(problem(Code::TokenCollision, Some(35)), SealAttempt::Refused(_)));
    }

    #[test]
    fn temporary_problems_are_retried_and_mistakes_are_not() {
        for code in
            [Code::Draining, Code::Quarantined, Code::StoreUnavailable, Code::OutcomeUnknown]
        {
            assert!(matches!(problem(code, None), SealAttempt::Later(_)), "{code}");
        }
        for code in [Code::BadSignature, Code::Forbidden, Code::WrongLock, Code::NotOffered] {
            assert!(matches!(problem(code, None), SealAttempt::Refused(_)), "{code}");
        }
        assert!(matches!(judge(503, &json!("<html>")), SealAttempt::Refused(_)));
        let SealAttempt::Refused(why) = problem(Code::Forbidden, None) else {
            panic!("not refused")
        };
        assert!(why.contains("\"write *\""), "{why}");
    }

    #[test]
    fn a_guard_that_only_observes_is_never_sealed() {
        let fence_token =
            "34;lock=\"a\";lease=\"67e55044-10b1-426f-9247-bb680e5fe0c8\";ns=\"default\"";
        let fence: FencingToken = fence_token.parse().unwrap();
        let body = br#"{"lock":"a","mark":34}"#;
        assert!(matches!(classify(&fence, 200, false, body), SealAttempt::Sealed(_)));
        assert!(matches!(classify(&fence, 200, true, body), SealAttempt::Refused(_)));
    }
}
