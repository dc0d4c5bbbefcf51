//! An ordinary PostgreSQL driver: it knows nothing of fencing, and finds its token in the password.
//!
//! A read begins a transaction, and the write after it ends it: between them it is open.

use fence_client::protocol::wire::lock::LeaseReply;
use fence_client::tasks;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_postgres::config::Host;
use tokio_postgres::{Client, Config, Error, NoTls, SimpleQueryMessage};

use crate::demo::orders::{Answer, ErrorReply};
use crate::process::PATIENCE;

/// Documents in rows of one PostgreSQL, or of the guard's port before it.
#[derive(Debug)]
pub(in crate::demo) struct Rows {
    url: String,
    open: Option<Session>,
}

#[derive(Debug)]
struct Session {
    /// Credential that it logged in with: one session a lease.
    credential: Option<String>,
    client: Client,
    /// Ends with the server's last words.
    connection: JoinHandle<Option<ErrorReply>>,
    is_in_transaction: bool,
}

impl Rows {
    pub(super) fn new(url: String) -> Self {
        Self { url, open: None }
    }

    pub(super) async fn get(
        &mut self,
        key: &str,
        lease: Option<&LeaseReply>,
    ) -> Result<Answer, String> {
        let sql = format!("SELECT document FROM accounts WHERE key = {}", literal(key));
        let (rows, answer) = self.send(&sql, "SELECT", lease).await?;
        let document = rows.iter().find_map(|row| match row {
            SimpleQueryMessage::Row(row) => serde_json::from_str(row.get(0)?).ok(),
            _ => None,
        });
        Ok(Answer { document, ..answer })
    }

    pub(super) async fn put(
        &mut self,
        key: &str,
        lease: Option<&LeaseReply>,
        document: &str,
    ) -> Result<Answer, String> {
        let sql = format!(
            "INSERT INTO accounts VALUES ({}, {}) \
             ON CONFLICT (key) DO UPDATE SET document = excluded.document; COMMIT",
            literal(key),
            literal(document)
        );
        self.send(&sql, "COMMIT", lease).await.map(|(_, answer)| answer)
    }

    async fn send(
        &mut self,
        sql: &str,
        done: &str,
        lease: Option<&LeaseReply>,
    ) -> Result<(Vec<SimpleQueryMessage>, Answer), String> {
        let credential = lease.map(|lease| lease.fencing_credential.clone());
        let mut session = match self.open.take() {
            Some(session) if session.credential == credential => session,
            _ => {
                let connected = tokio::time::timeout(PATIENCE, connect(&self.url, credential));
                connected.await.map_err(|_| "no session in time".to_owned())??
            }
        };
        let begin = if session.is_in_transaction { "" } else { "BEGIN; " };
        match session.client.simple_query(&format!("{begin}{sql}")).await {
            Ok(rows) => {
                session.is_in_transaction = done != "COMMIT";
                self.open = Some(session);
                Ok((rows, Answer { done: Some(done.to_owned()), ..Answer::default() }))
            }
            Err(error) => {
                let reply = match error_reply(&error) {
                    Some(reply) => Some(reply),
                    None => session.connection.await.ok().flatten(),
                };
                let reply = reply.ok_or_else(|| format!("no reply: {error}"))?;
                Ok((Vec::new(), Answer { error: Some(reply), ..Answer::default() }))
            }
        }
    }
}

async fn connect(url: &str, credential: Option<String>) -> Result<Session, String> {
    let failed = |error: Error| match error_reply(&error) {
        Some(ErrorReply { code, text }) => format!("no session: {text} ({code})"),
        None => format!("no session: {error}"),
    };
    let mut config: Config = url.parse().map_err(failed)?;
    if let Some(credential) = &credential {
        config.user("fence").password(credential);
    }
    let (Some(Host::Tcp(host)), Some(port)) =
        (config.get_hosts().first(), config.get_ports().first())
    else {
        return Err("the URL has no host and port".to_owned());
    };
    let stream = TcpStream::connect((host.trim_matches(['[', ']']), *port));
    let stream = stream.await.map_err(|error| format!("no connection: {error}"))?;
    let (client, connection) = config.connect_raw(stream, NoTls).await.map_err(failed)?;
    let connection =
        tasks::spawn(async move { connection.await.err().as_ref().and_then(error_reply) });
    Ok(Session { credential, client, connection, is_in_transaction: false })
}

/// Error of the server; `None` if there was no reply.
fn error_reply(error: &Error) -> Option<ErrorReply> {
    let server = error.as_db_error()?;
    let detail = server.detail().map(|detail| format!(" ({detail})")).unwrap_or_default();
    let text = format!("{}{detail}", server.message());
    Some(ErrorReply { code: server.code().code().to_owned(), text })
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
