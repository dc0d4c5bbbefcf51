//! Next steps in the words of this crate: those of the servers name headers and fields of HTTP.

use fence_protocol::{Code, Problem};

/// The problem with its next step for a program that uses this crate.
pub(super) fn described(problem: &Problem) -> String {
    let Problem { detail, code, hint, .. } = problem;
    let own = own_hint(*code).filter(|_| hint == code.hint());
    let hint = own.unwrap_or(hint).replace("after Retry-After", "later");
    let hint = hint.replace("at least Retry-After", "then try again");
    format!("{detail} ({code}): {hint}")
}

fn own_hint(code: Code) -> Option<&'static str> {
    Some(match code {
        Code::MalformedToken => "Use the fencing token of the grant unchanged.",
        Code::Unauthorized => {
            "Give the client a token of the access file (ClientBuilder::auth, FENCE_AUTH_FILE)."
        }
        Code::BadSignature => {
            "Use a token of this guard's lock server; both servers need the same key file."
        }
        Code::LockHeld => "Try again later, or wait in the queue (LockRequest::wait).",
        Code::LeaseLost => "Stop the work that the lease protected; acquire again.",
        Code::LeaseIdConflict => "Acquire again.",
        Code::TokenRequired => "Acquire the lock that the detail names, and use its lease.",
        Code::OpIdReused => "Use a fresh op_id for every operation, and retry it unchanged.",
        Code::NotFound | Code::MethodNotAllowed | Code::UnsupportedMediaType => {
            "Check the addresses: another program or an older server may run there."
        }
        Code::MisdirectedRequest => {
            "Name the server by an address, localhost, or one of its --host-name."
        }
        Code::GuardUnsealed => "Try again later; an operator must check the guards in the detail.",
        Code::OutcomeUnknown => "Read the state before you repeat it.",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_next_step_names_a_header_or_a_field() {
        for &code in Code::ALL {
            let text = described(&Problem::new(code, "x"));
            for word in
                ["Retry-After", "_ms", "Authorization", "lease_id", "header", "-Key", "GET "]
            {
                let is_lane = code == Code::QuarantineConflict && word == "GET ";
                assert!(is_lane || !text.contains(word), "{code}: {word} in {text:?}");
            }
        }
        let own = Problem::new(Code::LeaseLost, "x").hint("Check the lock.");
        assert_eq!(described(&own), "x (lease-lost): Check the lock.");
    }
}
