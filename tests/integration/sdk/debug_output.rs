//! Debug output of the SDK's types: no credential is in a log.

use std::collections::BTreeMap;
use std::fmt::Debug;

use fence_client::{BearerToken, Client, HandedToken, TlsOptions};
use fence_tests::key_file::KeyFile;
use fence_tests::servers::Setup;
use fence_tests::wait::soon;

use super::LONG;

const LIB: &str = include_str!("../../../client/src/lib.rs");
const BEARER: &str = "a-bearer-token-that-is-secret";

/// Exports of the crate that are no types with a value to show: traits, functions, constants, other
/// crates; and enums and names without a part that is secret.
const OTHERS: [&str; 10] = [
    "ErrorKind",
    "Fence",
    "LostReason",
    "MAX_LOCKS",
    "NoTakeover",
    "TlsSettingNames",
    "WaitObserver",
    "Warning",
    "in_trace",
    "protocol",
];

/// Names after `pub use` in the crate's root.
fn exported() -> Vec<&'static str> {
    let lines = LIB.lines().filter_map(|line| line.strip_prefix("pub use "));
    let lists = lines.filter_map(|line| line.rsplit("::").next());
    let names = lists.flat_map(|list| list.trim_matches(['{', '}', ';']).split(", "));
    names.filter_map(|name| name.rsplit(' ').next()).collect()
}

#[derive(Default)]
struct Shown(BTreeMap<String, String>);

impl Shown {
    fn add<T: Debug>(&mut self, value: &T) {
        let name = std::any::type_name::<T>();
        let name = name.split('<').next().unwrap_or_default();
        let name = name.rsplit(':').next().unwrap_or_default();
        self.0.insert(name.to_owned(), format!("{value:?} {value:#?}"));
    }

    /// Every exported type is there, and none shows a part of these tokens and credentials.
    fn check(&self, secrets: &[String]) {
        let signatures = secrets.iter().filter_map(|secret| secret.split("sig=:").nth(1));
        let signatures: Vec<_> = signatures.map(|rest| &rest[..32]).collect();
        assert_eq!(signatures.len(), secrets.len() - 1, "all but the credential: {secrets:?}");
        for (name, text) in &self.0 {
            assert!(!text.contains("fc1_") && !text.contains(BEARER), "{name}: {text}");
            assert!(!signatures.iter().any(|part| text.contains(part)), "{name}: {text}");
        }
        for name in exported() {
            let is_shown = self.0.contains_key(name);
            assert!(is_shown != OTHERS.contains(&name), "add {name} to this test");
        }
    }
}

/// Every public type that is made from a lease, a session or a bearer token, in one program.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_type_shows_a_credential() {
    let keys = KeyFile::new("k1", 7);
    let locks = Setup::lock_server("memory:").keys(&keys.path()).start().await;
    let guard = Setup::fenced_store("memory:").keys(&keys.path()).start().await;
    let mut shown = Shown::default();
    let auth = BearerToken::new(BEARER).unwrap();
    shown.add(&auth);
    let builder = Client::builder().lock_server(&locks.base).fenced_store(&guard.base).owner("me");
    let builder = builder.auth(auth);
    shown.add(&builder);
    let client = builder.build().unwrap();
    shown.add(&client);
    shown.add(&TlsOptions::default());
    shown.add(client.locks());
    shown.add(client.objects());
    shown.add(client.sessions());
    let request = client.lock("a").ttl(LONG);
    shown.add(&request);
    let old = request.acquire().await.unwrap();
    let mut secrets = vec![old.fencing_token().to_owned(), old.fencing_credential().to_owned()];
    shown.add(&old);
    shown.add(old.grant());
    shown.add(&old.warnings());
    shown.add(&HandedToken::new(old.fencing_token()).unwrap());
    let put = client.objects().put(&old, "a", "x");
    shown.add(&put);
    shown.add(&put.await.unwrap());
    shown.add(&client.objects().get(&old, "a").await.unwrap().unwrap());
    let events = client.events("");
    shown.add(&events);
    let mut stream = events.open().await.unwrap();
    shown.add(&stream);
    let handed = HandedToken::new(old.fencing_token()).unwrap();
    old.release().await.unwrap();
    shown.add(&soon("an event", stream.next()).await.unwrap());
    let new = client.lock("a").ttl(LONG).acquire().await.unwrap();
    client.objects().put(&new, "a", "y").await.unwrap();
    shown.add(&client.objects().put(&handed, "a", "late").await.unwrap_err());

    let reentrant = client.lock("b").ttl(LONG).reentrant();
    shown.add(&reentrant);
    let entry = reentrant.enter().await.unwrap();
    secrets.push(entry.fencing_token().to_owned());
    shown.add(&entry);
    let election = client.election("c");
    shown.add(&election);
    let leadership = election.campaign().await.unwrap();
    secrets.push(leadership.fencing_token().to_owned());
    shown.add(&leadership);
    shown.add(&election.leader().await.unwrap().unwrap());
    let mut observer = election.observe().await.unwrap();
    shown.add(&observer);
    shown.add(&soon("a leader", observer.next()).await.unwrap());
    let sessions = client.session().ttl(LONG);
    shown.add(&sessions);
    let session = sessions.begin().await.unwrap();
    shown.add(&session);
    let locks = session.group().exclusive("d").shared("e");
    shown.add(&locks);
    let leases = locks.acquire_all().await.unwrap();
    secrets.extend(leases.iter().map(|lease| lease.fencing_token().to_owned()));
    shown.add(&leases);
    shown.add(leases.iter().next().unwrap());

    shown.check(&secrets);
}
