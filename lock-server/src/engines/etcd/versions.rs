//! Supported versions of etcd.

use super::client::EtcdClient;

/// The oldest etcd that is used.
const OLDEST: (u64, u64) = (3, 4);

/// # Errors
/// A sentence where etcd does not answer, or is too old.
pub(super) async fn check(client: &EtcdClient) -> Result<(), String> {
    let status = client.status().await.map_err(|error| error.to_string())?;
    judge(&status.version).map_err(|reason| format!("{}: {reason}", client.current_url()))
}

fn judge(version: &str) -> Result<(), String> {
    let (major, minor) = numbers(version);
    match (major, minor) {
        (Some(major), Some(minor)) if (major, minor) >= OLDEST => Ok(()),
        _ => Err(format!(
            "this etcd has version {version:?}; Fencepost needs {}.{} or later",
            OLDEST.0, OLDEST.1
        )),
    }
}

/// Its first two numbers, as far as it has them.
fn numbers(version: &str) -> (Option<u64>, Option<u64>) {
    let mut parts = version.split(['.', '-', '+']).map(|part| part.parse::<u64>().ok());
    let mut next = || parts.next().flatten();
    (next(), next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        for version in ["3.4.23", "3.5.0", "3.10.1", "4.0.0-rc.1"] {
            assert_eq!(judge(version), Ok(()), "{version}");
        }
        for version in ["3.3.27", "2.9.0", "", "etcd"] {
            assert!(judge(version).unwrap_err().contains(version));
        }
    }
}
