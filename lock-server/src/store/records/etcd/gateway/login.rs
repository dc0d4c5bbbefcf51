//! Who the server is to etcd.

use serde::Deserialize;
use serde_json::json;
use tokio::sync::Mutex;

use super::verdict::{self, Verdict};
use super::{Endpoints, Raw};

/// A user of etcd. Its password is never printed.
#[derive(Clone)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) password: String,
}

impl std::fmt::Debug for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("User").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The token that etcd gave for user and password. It ends by itself after some minutes.
#[derive(Debug, Default)]
pub(super) struct Login {
    token: Mutex<Option<String>>,
}

#[derive(Deserialize)]
struct Authenticated {
    token: String,
}

impl Login {
    /// The token in force, or a new one; `refused` is one that etcd does not take any more.
    ///
    /// # Errors
    /// A verdict: user and password are wrong, or this member did not say.
    pub(super) async fn token(
        &self,
        endpoints: &Endpoints,
        endpoint: usize,
        user: &User,
        refused: Option<&str>,
    ) -> Result<String, Verdict> {
        // Whoever comes while another fetches a token waits for that one.
        let mut token = self.token.lock().await;
        if let Some(token) = token.as_ref().filter(|token| Some(token.as_str()) != refused) {
            return Ok(token.clone());
        }
        let fresh = fetch(endpoints, endpoint, user).await?;
        *token = Some(fresh.clone());
        Ok(fresh)
    }
}

async fn fetch(endpoints: &Endpoints, endpoint: usize, user: &User) -> Result<String, Verdict> {
    let body = json!({ "name": user.name, "password": user.password }).to_string();
    match endpoints.post(endpoint, "/v3/auth/authenticate", &body, None).await {
        Raw::Reply { status: 200, body } => serde_json::from_slice::<Authenticated>(&body)
            .map(|reply| reply.token)
            .map_err(|_| Verdict::NotDone("it answers no token to a login".to_owned())),
        Raw::Reply { status, body } => Err(judge(status, &body, user)),
        // A login changes nothing, so whether it was done does not matter.
        Raw::NotSent(reason) | Raw::NoAnswer(reason) => Err(Verdict::NotDone(reason)),
    }
}

fn judge(status: u16, body: &[u8], user: &User) -> Verdict {
    match verdict::judge(status, body, Some(&user.name)) {
        Verdict::Refused { message, .. } if message.contains("authentication is not enabled") => {
            Verdict::Closed(format!(
                "etcd knows no users (authentication is not enabled), and this server would log \
                 in as {}; enable it, or leave out the user",
                user.name
            ))
        }
        Verdict::Refused { message, .. } if message.contains("authentication failed") => {
            Verdict::Closed(format!(
                "etcd does not let {} in: there is no such user, or its password is another one",
                user.name
            ))
        }
        Verdict::Refused { message, .. } => {
            Verdict::Closed(format!("etcd does not let {} in: {message}", user.name))
        }
        Verdict::LoginAgain | Verdict::Unclear(_) => {
            Verdict::NotDone("it does not answer a login".to_owned())
        }
        other => other,
    }
}
