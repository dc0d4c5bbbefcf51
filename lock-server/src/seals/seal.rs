//! Sealing one guard: its mark rises, and nothing below it is applied from then on.

use std::time::Duration;

use fence_protocol::wire::fence::{Guarantee, SealReply};
use fence_protocol::{Code, FENCING_GUARANTEE, FENCING_TOKEN, FencingToken, Problem, Token};

use crate::guards::{GuardUrl, http};

/// The pauses before a guard that is not ready is asked again; the last one repeats.
const PAUSES_MS: [u64; 4] = [25, 50, 100, 200];

/// Where the mark of a guard stands: nothing below the token that it was sealed with is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// At that token.
    At(Token),
    /// At a higher one, which the guard has seen before: it takes nothing with that token either.
    Above(Token),
}

impl Standing {
    /// The mark.
    pub(crate) fn mark(self) -> Token {
        match self {
            Self::At(mark) | Self::Above(mark) => mark,
        }
    }
}

/// What one answer means.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Sealed(Standing),
    /// Not now, perhaps soon.
    Later(String),
    /// Not like this.
    Refused(String),
}

/// Seals the guard at `url`. Sealing again with the same token and lease changes nothing, so an
/// answer that was lost, or says that the guard is not ready, is followed by another question.
///
/// # Errors
/// A sentence where it was not answered as sealed within `patience`. Its mark may have risen all the
/// same.
pub(super) async fn seal(
    client: &reqwest::Client,
    url: &GuardUrl,
    fence: &FencingToken,
    patience: Duration,
) -> Result<Standing, String> {
    let mut last = None;
    let asking = ask_until_sealed(client, url, fence, &mut last);
    let answer = tokio::time::timeout(patience, asking).await;
    answer.unwrap_or_else(|_| {
        let within_ms = patience.as_millis();
        Err(match last {
            Some(why) => format!("not sealed within {within_ms} ms: {why}"),
            None => format!("no answer within {within_ms} ms"),
        })
    })
}

async fn ask_until_sealed(
    client: &reqwest::Client,
    url: &GuardUrl,
    fence: &FencingToken,
    last: &mut Option<String>,
) -> Result<Standing, String> {
    let mut pauses = PAUSES_MS.into_iter().chain(std::iter::repeat(PAUSES_MS[3]));
    loop {
        match ask(client, url, fence).await {
            Answer::Sealed(standing) => return Ok(standing),
            Answer::Refused(why) => return Err(why),
            Answer::Later(why) => *last = Some(why),
        }
        tokio::time::sleep(Duration::from_millis(pauses.next().unwrap_or(PAUSES_MS[3]))).await;
    }
}

async fn ask(client: &reqwest::Client, url: &GuardUrl, fence: &FencingToken) -> Answer {
    // The bytes of a lock name may stand in a path as they are.
    let address = format!("{}/v1/fences/{}/seal", url.base(), fence.lock);
    let request = client.post(address).header(FENCING_TOKEN, fence.to_string());
    let reply = match request.send().await {
        Ok(reply) => reply,
        // Nobody is there: that is for an operator, and waiting would keep others from the lock.
        Err(error) if error.is_connect() => return Answer::Refused(http::causes(error)),
        Err(error) => return Answer::Later(http::causes(error)),
    };
    let status = reply.status().as_u16();
    let guarantee = reply.headers().get(FENCING_GUARANTEE).map(|value| value.as_bytes().to_vec());
    let observes = guarantee.as_deref() == Some(Guarantee::Observe.as_str().as_bytes());
    match http::body(reply).await {
        Ok(body) => judged(fence, status, observes, &body),
        Err(why) => Answer::Later(why),
    }
}

/// What an answer means. Only words that a guard says for this very lock count as sealed.
fn judged(fence: &FencingToken, status: u16, observes: bool, body: &[u8]) -> Answer {
    if observes {
        return Answer::Refused("it only observes: it refuses nothing".to_owned());
    }
    if status == 200 {
        return match serde_json::from_slice::<SealReply>(body) {
            Ok(reply) if reply.lock == fence.lock && reply.mark == fence.token => {
                Answer::Sealed(Standing::At(reply.mark))
            }
            _ => Answer::Refused("what it answers is not what a guard says".to_owned()),
        };
    }
    let problem = serde_json::from_slice::<Problem>(body).ok();
    let mark: Option<Token> = problem.as_ref().and_then(|problem| problem.extension("mark"));
    let said = match &problem {
        Some(problem) => format!("it answers {status} {}: {}", problem.code, problem.detail),
        None => format!("it answers {status}; is it a guard of this version?"),
    };
    match (problem.map(|problem| problem.code), mark) {
        (Some(Code::StaleToken), Some(mark)) if mark > fence.token => {
            Answer::Sealed(Standing::Above(mark))
        }
        (Some(Code::Unauthorized | Code::Forbidden), _) => Answer::Refused(format!(
            "{said}; the bearer token of --guard-auth-file needs the right \"write *\" there"
        )),
        (Some(_), _) if matches!(status, 500..=599) && status != 501 => Answer::Later(said),
        _ => Answer::Refused(said),
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

    fn judge(status: u16, body: &Value) -> Answer {
        let fence = FencingToken {
            token: token(34),
            lock: LockName::new("orders/42").unwrap(),
            lease: LeaseId::new(uuid::Uuid::from_u128(7)).unwrap(),
            namespace: Namespace::default(),
            signature: None,
        };
        judged(&fence, status, false, body.to_string().as_bytes())
    }

    fn problem(code: Code, mark: Option<u64>) -> Answer {
        let problem = Problem::new(code, "why");
        let problem = mark.into_iter().fold(problem, |problem, mark| problem.with("mark", mark));
        judge(code.status(), &serde_json::to_value(problem).unwrap())
    }

    #[test]
    fn only_the_mark_of_this_lock_counts_as_sealed() {
        let sealed = json!({"lock": "orders/42", "mark": 34});
        assert_eq!(judge(200, &sealed), Answer::Sealed(Standing::At(token(34))));
        for other in [
            json!({"lock": "orders/43", "mark": 34}),
            json!({"lock": "orders/42", "mark": 33}),
            // A guard that takes it lifts its mark to it and no further.
            json!({"lock": "orders/42", "mark": 35}),
            json!({"lock": "orders/42"}),
            json!("ok"),
        ] {
            assert!(matches!(judge(200, &other), Answer::Refused(_)), "{other}");
        }
    }

    #[test]
    fn a_higher_mark_is_believed_and_a_lower_one_is_not() {
        let above = Answer::Sealed(Standing::Above(token(35)));
        assert_eq!(problem(Code::StaleToken, Some(35)), above);
        for mark in [None, Some(34), Some(33)] {
            assert!(matches!(problem(Code::StaleToken, mark), Answer::Refused(_)), "{mark:?}");
        }
        assert!(matches!(problem(Code::TokenCollision, Some(35)), Answer::Refused(_)));
    }

    #[test]
    fn what_may_pass_is_asked_again_and_mistakes_are_not() {
        for code in
            [Code::Draining, Code::Quarantined, Code::StoreUnavailable, Code::OutcomeUnknown]
        {
            assert!(matches!(problem(code, None), Answer::Later(_)), "{code}");
        }
        for code in [Code::BadSignature, Code::Forbidden, Code::WrongLock, Code::NotOffered] {
            assert!(matches!(problem(code, None), Answer::Refused(_)), "{code}");
        }
        assert!(matches!(judge(503, &json!("<html>")), Answer::Refused(_)));
        let Answer::Refused(why) = problem(Code::Forbidden, None) else { panic!("not refused") };
        assert!(why.contains("\"write *\""), "{why}");
    }

    #[test]
    fn a_guard_that_only_observes_is_never_sealed() {
        let fence_token =
            "34;lock=\"a\";lease=\"67e55044-10b1-426f-9247-bb680e5fe0c8\";ns=\"default\"";
        let fence: FencingToken = fence_token.parse().unwrap();
        let body = br#"{"lock":"a","mark":34}"#;
        assert!(matches!(judged(&fence, 200, false, body), Answer::Sealed(_)));
        assert!(matches!(judged(&fence, 200, true, body), Answer::Refused(_)));
    }
}
