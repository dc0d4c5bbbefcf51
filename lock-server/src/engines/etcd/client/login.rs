//! Login of the server at etcd.

use http::HeaderValue;
use prost::Message as _;
use tokio::sync::Mutex;

use super::REPLY_BYTES_MAX;
use super::channel::Member;
use super::verdict::{self, Raw, Verdict};
use crate::engines::etcd::wire::{Authenticate, Authenticated};

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
    token: Mutex<Option<HeaderValue>>,
}

impl Login {
    /// The token in force, or a new one; `refused` is one that etcd does not take any more.
    ///
    /// # Errors
    /// A verdict: user and password are wrong, or this member did not say.
    pub(super) async fn token(
        &self,
        member: &Member,
        user: &User,
        refused: Option<&HeaderValue>,
    ) -> Result<HeaderValue, Verdict> {
        // Requests that come while another one logs in wait for its token.
        let mut token = self.token.lock().await;
        if let Some(token) = token.as_ref().filter(|token| Some(*token) != refused) {
            return Ok(token.clone());
        }
        let fresh = fetch(member, user).await?;
        *token = Some(fresh.clone());
        Ok(fresh)
    }
}

async fn fetch(member: &Member, user: &User) -> Result<HeaderValue, Verdict> {
    let request = Authenticate { name: user.name.clone(), password: user.password.clone() };
    let path = "/etcdserverpb.Auth/Authenticate";
    match member.call(path, &request, None, REPLY_BYTES_MAX).await {
        Raw::Reply(reply) => token_of(&reply)
            .ok_or_else(|| Verdict::NotDone("it replies no token to a login".to_owned())),
        raw => Err(judge(raw, user)),
    }
}

fn token_of(reply: &[u8]) -> Option<HeaderValue> {
    let token = Authenticated::decode(reply).ok()?.token;
    let mut token = HeaderValue::from_str(&token).ok().filter(|token| !token.is_empty())?;
    token.set_sensitive(true);
    Some(token)
}

fn judge(raw: Raw, user: &User) -> Verdict {
    match verdict::from_raw(raw, Some(&user.name)) {
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
        // A login changes nothing, so whether it was done does not matter.
        Verdict::Unclear(reason) => Verdict::NotDone(reason),
        Verdict::LoginAgain => Verdict::NotDone("it does not reply to a login".to_owned()),
        other => other,
    }
}
