//! Meaning of a failed call for the operation that it carried.

use redis_link::LinkError;

use crate::store::StoreError;

/// The error of an operation whose command was not answered as it should be.
///
/// Redis says most of its refusals before it begins with a script, or at the first write in one:
/// then nothing was done. `ERR` alone can come out of the middle of a script, such as where a key
/// that the script finds by itself is at another node of a cluster.
pub(crate) fn store_error(error: LinkError) -> StoreError {
    match error {
        LinkError::Down(reason) => StoreError::Unavailable(reason),
        LinkError::Unknown(reason) => StoreError::Unknown(reason),
        LinkError::Server { code, message } if code == "ERR" || code == "WRONGTYPE" => {
            StoreError::Unknown(format!("a script failed in Redis: {message}"))
        }
        LinkError::Server { code, message } if code == "FORMAT" => {
            StoreError::Unavailable(format!("{message}; nothing was changed"))
        }
        LinkError::Server { code, message } => StoreError::Unavailable(match elsewhere(&code) {
            Some(where_to) => format!("{where_to} ({code}): nothing was done, try again"),
            None => format!("Redis refuses to work: {code} {message}"),
        }),
    }
}

/// Explains a refusal that concerns the place, and passes: the same command is for another Redis,
/// or for this one a little later.
pub(crate) fn elsewhere(code: &str) -> Option<&'static str> {
    match code {
        "TRYAGAIN" | "ASK" => {
            Some("the slot of this namespace is on its way to another node of the cluster")
        }
        "MOVED" => Some("the slot of this namespace has moved to another node of the cluster"),
        "CLUSTERDOWN" => Some("the cluster does not serve the slot of this namespace now"),
        "READONLY" => Some("this Redis has become a replica: another one is the master now"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(code: &str, message: &str) -> StoreError {
        store_error(LinkError::Server { code: code.to_owned(), message: message.to_owned() })
    }

    #[test]
    fn what_came_before_the_script_changed_nothing() {
        for code in ["TRYAGAIN", "ASK", "MOVED", "CLUSTERDOWN", "READONLY"] {
            let StoreError::Unavailable(reason) = refusal(code, "7 a:1") else { panic!("{code}") };
            assert!(reason.contains("nothing was done") && reason.contains(code), "{reason}");
        }
        for code in ["OOM", "LOADING", "MISCONF", "NOREPLICAS", "NOAUTH", "NOPERM"] {
            assert!(matches!(refusal(code, "no"), StoreError::Unavailable(_)), "{code}");
        }
    }

    #[test]
    fn what_came_out_of_a_script_is_unknown() {
        let half = "Script attempted to access a non local key in a cluster node";
        for (code, message) in [("ERR", half), ("WRONGTYPE", "Operation against a key")] {
            assert!(matches!(refusal(code, message), StoreError::Unknown(_)), "{message}");
        }
    }
}
