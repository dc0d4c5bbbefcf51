//! The leases that are held while a command runs: one lock by a lease of its own, or several by one
//! session.

use fence_client::clock::Moment;
use fence_client::timing::Window;
use fence_client::{Client, Error, Lease, LeaseSet, Session, SessionLease, Warnings};
use fence_protocol::wire::lock::LeaseReply;
use serde_json::json;

/// All that a command holds.
#[derive(Debug)]
pub(crate) enum Held {
    /// One lock.
    One(Box<Lease>),
    /// Several, under one heartbeat.
    Several(Box<Session>, LeaseSet),
}

impl From<Lease> for Held {
    fn from(lease: Lease) -> Self {
        Self::One(Box::new(lease))
    }
}

impl Held {
    /// Nothing, where all of it can be trusted now.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self {
            Self::One(lease) => lease.check(),
            Self::Several(session, leases) => session.check().and_then(|()| leases.check()),
        }
    }

    /// Waits until some of it cannot be trusted any more. Cancel-safe.
    pub(super) async fn lost(&self) {
        match self {
            Self::One(lease) => drop(lease.lost().await),
            Self::Several(_, leases) => drop(leases.lost().await),
        }
    }

    pub(super) fn window(&self) -> Window {
        match self {
            Self::One(lease) => lease.window(),
            Self::Several(session, _) => session.window(),
        }
    }

    fn deadline(&self) -> Moment {
        match self {
            Self::One(lease) => lease.deadline(),
            Self::Several(session, _) => session.deadline(),
        }
    }

    pub(super) fn report_progress(&self) {
        // One that comes too late changes nothing, and then the end of the lease is the next event.
        let _ = match self {
            Self::One(lease) => lease.report_progress(),
            Self::Several(session, _) => session.report_progress(),
        };
    }

    pub(super) fn warnings(&self) -> Warnings {
        match self {
            Self::One(lease) => lease.warnings(),
            Self::Several(session, _) => session.warnings(),
        }
    }

    /// Gives all of it back.
    pub(super) async fn give_back(self) -> Result<(), Error> {
        match self {
            Self::One(lease) => lease.release().await,
            Self::Several(session, leases) => {
                // One that was lost alone since the last heartbeat shows only here.
                let released = leases.release().await;
                let ended = session.end().await.map(drop);
                released.and(ended)
            }
        }
    }

    fn grants(&self) -> Vec<&LeaseReply> {
        match self {
            Self::One(lease) => vec![lease.grant()],
            Self::Several(_, leases) => leases.iter().map(SessionLease::grant).collect(),
        }
    }

    /// The locks, for people.
    pub(super) fn names(&self) -> String {
        let names: Vec<&str> = self.grants().iter().map(|grant| grant.lock.as_str()).collect();
        names.join(", ")
    }

    /// The locks with their tokens, for people.
    pub(super) fn tokens(&self) -> String {
        let each = |grant: &&LeaseReply| format!("{} with token {}", grant.lock, grant.token);
        self.grants().iter().map(each).collect::<Vec<_>>().join(", ")
    }

    /// The lost lock or session, as the beginning of a sentence.
    pub(super) fn lost_words(&self) -> String {
        let lost = match self {
            Self::Several(session, leases) if session.check().is_ok() => leases
                .iter()
                .filter(|lease| lease.check().is_err())
                .map(|lease| lease.lock().to_string())
                .collect::<Vec<_>>()
                .join(", "),
            _ => self.names(),
        };
        if lost.contains(", ") {
            format!("the leases on {lost} were lost")
        } else {
            format!("the lease on {lost} was lost")
        }
    }

    /// Environment variables of the command.
    pub(super) fn environment(&self, client: &Client) -> Vec<(&'static str, String)> {
        let grants = self.grants();
        let leases: Vec<_> = grants.iter().map(|grant| described(grant)).collect();
        let mut all = vec![
            ("FENCE_LEASES", json!(leases).to_string()),
            ("FENCE_DEADLINE_MS", self.deadline().ms().to_string()),
            // So that the command talks to the servers that this one talks to.
            ("FENCE_SERVER", client.lock_server().to_owned()),
            ("FENCE_GUARD", client.fenced_store().to_owned()),
            // Former name of the same.
            ("FENCE_STORE", client.fenced_store().to_owned()),
        ];
        all.extend(client.trace().map(|trace| ("TRACEPARENT", trace.to_string())));
        if let Some(first) = grants.first() {
            all.extend([
                ("FENCE_LOCK", first.lock.to_string()),
                ("FENCE_TOKEN", first.token.to_string()),
                ("FENCE_LEASE_ID", first.lease_id.to_string()),
                ("FENCE_HEADER", first.fencing_token.clone()),
            ]);
        }
        match self {
            Self::One(lease) => all.push(("FENCE_CREDENTIAL", lease.fencing_credential().into())),
            Self::Several(session, leases) => all.extend([
                ("FENCE_CREDENTIAL", leases.fencing_credential()),
                ("FENCE_SESSION_ID", session.id().to_string()),
            ]),
        }
        all
    }
}

fn described(grant: &LeaseReply) -> serde_json::Value {
    json!({
        "lock": grant.lock,
        "token": grant.token,
        "lease_id": grant.lease_id,
        "header": grant.fencing_token,
        "credential": grant.fencing_credential,
    })
}
