//! Rights of a client: the role that its session runs as, and the tokens that it needs for it.

use bytes::Bytes;
use fence_protocol::LockName;
use service_kit::login::Password;

use super::login::{Client, Early, write_all};
use super::refusal::{Refusal, sqlstate};
use super::registry::NotAdmitted;
use super::server::{ServerError, ServerLogin, ServerSession};
use super::startup::Startup;
use super::{Port, PortSettings, PortThread, frames};
use crate::fencing::FencingPolicy;
use crate::rules::{Protects, Resolved};
use crate::verdict::Fence;

/// The longest password message.
const PASSWORD_MAX: usize = 80 << 10;

/// Rights of a session: its tokens, and the role that it runs as.
pub(super) struct Admission {
    pub(super) fences: Vec<Fence>,
    login: ServerLogin,
}

/// Reads a client's credential, or the reader's password, which the server verifies.
pub(super) async fn authenticate(
    thread: &PortThread,
    client: &mut Client,
    startup: &Startup,
) -> Result<Admission, Early> {
    let is_reader = thread.port.settings.reader.as_deref() == Some(startup.user.as_str());
    match &startup.credential {
        Some(credential) => Ok(present(&thread.port, startup, credential)?),
        None if is_reader => {
            let password = Some(Password::from(password(client).await?.as_str()));
            let login = ServerLogin { user: startup.user.clone(), password };
            Ok(Admission { fences: Vec::new(), login })
        }
        None => Ok(present(&thread.port, startup, &password(client).await?)?),
    }
}

/// Checks the database's name. Names of this port are for those who were authenticated.
fn check_database(settings: &PortSettings, startup: &Startup) -> Result<(), Refusal> {
    let database = settings.upstream.database();
    if startup.database == database {
        return Ok(());
    }
    Err(Refusal::new(
        sqlstate::NO_DATABASE,
        format!("database \"{}\" is not served at this port", startup.database),
        format!("the port serves database \"{database}\" alone"),
        "Name that database, or ask for a guard before the other one.",
    ))
}

/// Verifies a credential, and chooses the role that it is good for.
pub(super) fn present(
    port: &Port,
    startup: &Startup,
    credential: &str,
) -> Result<Admission, Refusal> {
    let policy = &port.guard.fencing;
    let fences = policy.credential(credential.as_bytes());
    let mut fences = fences.map_err(|reject| Refusal::of_reject(&reject))?;
    check_database(&port.settings, startup)?;
    let writers = writers(&port.settings, startup)?;
    let mut needed = Vec::new();
    for writer in writers {
        let lock = lock_of(policy, &resource(&port.settings, writer))?;
        if lock.as_ref().is_none_or(|lock| fences.iter().any(|fence| fence.lock == *lock)) {
            fences.sort_by(|one, two| one.lock.cmp(&two.lock));
            return Ok(Admission { fences, login: writer.clone() });
        }
        needed.extend(lock);
    }
    let [held, needed] = [fences.into_iter().map(|fence| fence.lock).collect(), needed].map(
        |locks: Vec<LockName>| locks.iter().map(LockName::as_str).collect::<Vec<_>>().join(", "),
    );
    Err(Refusal::new(
        sqlstate::WRONG_LOCK,
        format!("database \"{}\" needs a token of lock {needed}", startup.database),
        format!("the credential is of lock {held}; nothing was executed"),
        "Acquire that lock, and connect with its token.",
    ))
}

/// Returns the roles that a client may run as: of several the one that it names as user, or for a
/// reader any.
fn writers<'a>(
    settings: &'a PortSettings,
    startup: &Startup,
) -> Result<&'a [ServerLogin], Refusal> {
    let writers = &settings.writers;
    if writers.len() == 1 || settings.reader.as_ref() == Some(&startup.user) {
        return Ok(writers);
    }
    let named = writers.iter().position(|writer| writer.user == startup.user);
    named.map(|at| &writers[at..=at]).ok_or_else(|| {
        let names: Vec<&str> = writers.iter().map(|writer| writer.user.as_str()).collect();
        Refusal::new(
            sqlstate::NOT_AUTHORIZED,
            format!("user \"{}\" is none of this port", startup.user),
            "nothing was executed",
            format!("Connect as one of {}.", names.join(", ")),
        )
    })
}

/// The database, or one role's part of it.
fn resource(settings: &PortSettings, writer: &ServerLogin) -> String {
    let database = settings.upstream.database();
    match settings.writers.len() {
        1 => database.to_owned(),
        _ => format!("{database}/{}", writer.user),
    }
}

/// Returns the lock that protects a resource, by the rules; `None` if it is open.
fn lock_of(policy: &FencingPolicy, resource: &str) -> Result<Option<LockName>, Refusal> {
    let refuse = |why: String| {
        let hint = "Ask an operator for a rule that names the database's lock.";
        Refusal::new(sqlstate::WRONG_LOCK, why, "nothing was executed", hint)
    };
    let mut scratch = String::new();
    let resolved = policy.rules.resolve(resource.as_bytes(), &mut scratch);
    let Resolved { protection, .. } = resolved.map_err(|error| refuse(error.to_string()))?;
    match protection {
        Protects::Lock(name) => {
            LockName::new(name).map(Some).map_err(|error| refuse(error.to_string()))
        }
        Protects::Open => Ok(None),
        Protects::Deny => Err(refuse(format!("\"{resource}\" is denied by the rules"))),
    }
}

/// Asks for the password, and reads it.
async fn password(client: &mut Client) -> Result<String, Early> {
    // AuthenticationCleartextPassword: the client is on this machine, or speaks TLS.
    write_all(&client.writer, b"R\0\0\0\x08\0\0\0\x03").await?;
    let frame: Bytes = client.frame(PASSWORD_MAX).await?;
    let text = frame.get(frames::HEADER..).and_then(|body| body.strip_suffix(&[0]));
    let text = text.filter(|_| frame[0] == b'p').and_then(|text| std::str::from_utf8(text).ok());
    match text {
        Some("") => Err(Refusal::new(
            sqlstate::TOKEN_REQUIRED,
            "no token was sent",
            "nothing was executed",
            "Send the fencing_credential that the lock server gave as the password.",
        )
        .into()),
        Some(text) => Ok(text.to_owned()),
        None => Err(Refusal::protocol("expected a password").into()),
    }
}

/// Opens the session at the server, and registers it there under each token.
pub(super) async fn open(
    thread: &PortThread,
    admission: &Admission,
    startup: &Startup,
) -> Result<ServerSession, Early> {
    match open_once(thread, admission, startup).await {
        // The session was one to a former primary: its successor is known by now.
        Err(Unopened::OtherServer(_)) => {}
        Err(Unopened::Server(ServerError::Broken(_)))
            if thread.port.settings.upstream.target.addresses().len() > 1 =>
        {
            thread.registry.find_primary().await;
        }
        opened => return opened.map_err(|unopened| unopened.refusal().into()),
    }
    let opened = open_once(thread, admission, startup).await;
    opened.map_err(|unopened| unopened.refusal().into())
}

/// Failure to open a session.
enum Unopened {
    Server(ServerError),
    Refused(Refusal),
    OtherServer(Refusal),
}

impl From<ServerError> for Unopened {
    fn from(error: ServerError) -> Self {
        Self::Server(error)
    }
}

impl Unopened {
    fn refusal(self) -> Refusal {
        match self {
            Self::Server(error) => Refusal::unreachable(&error),
            Self::Refused(refusal) | Self::OtherServer(refusal) => refusal,
        }
    }
}

async fn open_once(
    thread: &PortThread,
    admission: &Admission,
    startup: &Startup,
) -> Result<ServerSession, Unopened> {
    let Admission { fences, login } = admission;
    let upstream = &thread.port.settings.upstream;
    let mut parameters = vec![("database", upstream.database())];
    parameters.extend(startup.settings.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    let mut server = upstream.open(login, &parameters).await?;
    if fences.is_empty() {
        // The server has verified the reader's password.
        check_database(&thread.port.settings, startup).map_err(Unopened::Refused)?;
        return Ok(server);
    }
    let server_start = server.server_start().await?;
    for fence in fences {
        let Err(refused) = thread.registry.admit(fence, server.pid, &server_start).await else {
            continue;
        };
        let refusal = refused.refusal(fence);
        if refused == NotAdmitted::OtherServer {
            return Err(Unopened::OtherServer(refusal));
        }
        thread.port.record_refusal(fence, &refused, &refusal);
        return Err(Unopened::Refused(refusal));
    }
    Ok(server)
}
