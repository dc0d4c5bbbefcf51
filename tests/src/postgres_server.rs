//! A real PostgreSQL for one test.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Pid;
use tempfile::TempDir;

use crate::certificates::Certificates;
use crate::postgres_client::{PostgresClient, frame};
use crate::postgres_database::Database;
use crate::process::{Process, command};
use crate::redis_clock::OwnClock;
use crate::wait::{patience, until, until_true};
use crate::{engines, ports};

/// Folder of the programs of each version, in Debian.
const PROGRAMS: &str = "/usr/lib/postgresql";
/// The user that the server runs as where the tests run as root, which PostgreSQL refuses.
pub(crate) const USER: &str = "postgres";

/// A PostgreSQL of its own: own port, own data folder, gone when dropped. Its superuser is
/// `postgres`, without a password from this machine.
#[derive(Debug)]
pub struct Postgres {
    database: Database,
    folder: TempDir,
    programs: PathBuf,
    options: Vec<(String, String)>,
    environment: Vec<(&'static str, String)>,
    process: Process,
}

impl Postgres {
    /// One that keeps nothing through a crash of the machine (`fsync=off`), as most tests need it:
    /// a kill of the process loses nothing all the same.
    pub async fn start() -> Self {
        Self::with(&[]).await
    }

    /// One with other settings: `[("fsync", "on")]`.
    pub async fn with(options: &[(&str, &str)]) -> Self {
        let programs = server_programs();
        Self::started(copy_of_template(&programs), programs, options, Vec::new()).await
    }

    /// One of another version, of `tests/engines`: `postgres-18`.
    ///
    /// # Panics
    /// If it cannot be installed.
    pub async fn newer(engine: &str, options: &[(&str, &str)]) -> Self {
        let programs = readable(&engines::installed(engine));
        Self::started(copy_of_template(&programs), programs, options, Vec::new()).await
    }

    /// Debian's, whichever version the tests run on: its other programs (`pg_dump`) serve no newer
    /// one.
    ///
    /// # Panics
    /// If Debian's package is not installed.
    pub async fn of_debian() -> Self {
        let programs = programs().expect("the Debian package postgresql").to_owned();
        Self::started(copy_of_template(&programs), programs, &[], Vec::new()).await
    }

    /// One that goes by a clock that the test sets.
    pub async fn with_clock(clock: &OwnClock) -> Self {
        clock.open_to_all();
        let programs = server_programs();
        let environment = clock.environment().to_vec();
        Self::started(copy_of_template(&programs), programs, &[], environment).await
    }

    /// Writes a file into the data folder for the next start: `pg_hba.conf`, a certificate.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn write(&self, name: &str, text: &str) {
        let path = self.data().join(name);
        std::fs::write(&path, text).expect("a file of PostgreSQL");
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&path, mode).expect("its mode");
        own(&path);
    }

    /// Speaks TLS from the next start on, and verifies the certificates of clients.
    pub fn speak_tls(&mut self, certificates: &Certificates) {
        for name in ["server.pem", "server.key", "ca.pem"] {
            self.write(name, &certificates.read(name));
        }
        let files = [
            ("ssl_cert_file", "server.pem"),
            ("ssl_key_file", "server.key"),
            ("ssl_ca_file", "ca.pem"),
        ];
        self.set(&files);
        self.set(&[("ssl", "on")]);
    }

    /// One on a copy of another's data folder, as it is at this moment: a restored backup. The
    /// other one must not be running.
    ///
    /// # Panics
    /// If it runs.
    pub async fn copy_of(other: &mut Self, options: &[(&str, &str)]) -> Self {
        assert!(!other.process.is_running(), "a running server's folder is no backup");
        let folder = new_folder();
        copy(&other.data(), &folder.path().join("data"));
        Self::started(folder, other.programs.clone(), options, Vec::new()).await
    }

    /// A streaming replica of `primary`, which [`promote`](Self::promote) makes a primary.
    ///
    /// # Panics
    /// If the copy cannot be made.
    pub async fn replica_of(primary: &Self, name: &str) -> Self {
        let folder = new_folder();
        let data = folder.path().join("data");
        // pg_basebackup copies a server of its own version alone. A file that goes meanwhile is in
        // the log that the replica reads from there on.
        let copied =
            format!("\\! cp -a {} {} 2> /dev/null", primary.data().display(), data.display());
        let label = primary
            .script(&[
                "DO $$BEGIN PERFORM pg_backup_start('replica', true); END$$",
                &copied,
                "SELECT labelfile FROM pg_backup_stop(false)",
            ])
            .await;
        let _ = std::fs::remove_file(data.join("postmaster.pid"));
        for (name, text) in
            [("backup_label", format!("{label}\n")), ("standby.signal", String::new())]
        {
            std::fs::write(data.join(name), text).expect("a file of the replica");
            own(&data.join(name));
        }
        let from =
            format!("host=127.0.0.1 port={} user={USER} application_name={name}", primary.port());
        let options = [("primary_conninfo", &*format!("'{from}'")), ("hot_standby", "on")];
        Self::started(folder, primary.programs.clone(), &options, Vec::new()).await
    }

    async fn started(
        folder: TempDir,
        programs: PathBuf,
        options: &[(&str, &str)],
        environment: Vec<(&'static str, String)>,
    ) -> Self {
        let port = ports::unused();
        let options: Vec<(String, String)> =
            options.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let process = spawn(&programs, port, &folder, &options, &environment);
        let database = Database::at(port, USER);
        let mut server = Self { database, folder, programs, options, environment, process };
        server.ready().await;
        server
    }

    /// The data folder.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// The postmaster, to stop and continue it; its back ends are processes of their own, see
    /// [`pause`](Self::pause).
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// SIGSTOP to the postmaster and every back end.
    pub fn pause(&self) {
        // Paused, it begins no back end that is not in the list.
        self.process.pause();
        for child in self.children() {
            // One may have ended by itself meanwhile.
            let child = child.parse().ok().and_then(Pid::from_raw);
            let _ = child.map(crate::process::pause);
        }
    }

    /// SIGCONT to the postmaster and every back end.
    pub fn resume(&self) {
        self.signal_all("-CONT");
    }

    /// SIGKILL to every process of the server at once: a crash. All of them are gone afterwards: a
    /// back end that still has the shared memory keeps the next server from starting.
    ///
    /// # Panics
    /// If one of them lives on.
    pub fn kill(&mut self) {
        // Paused, it begins no back end that is not in the list.
        if self.process.is_running() {
            // It may end by itself meanwhile.
            let _ = crate::process::pause(self.process.id());
        }
        let children = self.children();
        self.signal_all("-KILL");
        self.process.kill();
        let began = Instant::now();
        while children.iter().any(|pid| is_alive(pid)) {
            assert!(began.elapsed() < patience(), "a back end of {children:?} survives SIGKILL");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sets settings for every start from now on.
    pub fn set(&mut self, options: &[(&str, &str)]) {
        for (name, value) in options {
            self.options.retain(|(known, _)| known != name);
            self.options.push(((*name).to_owned(), (*value).to_owned()));
        }
    }

    /// Starts it again on the same port and folder, and waits until it answers.
    pub async fn start_again(&mut self) {
        if self.process.is_running() {
            self.kill();
        }
        self.process =
            spawn(&self.programs, self.port(), &self.folder, &self.options, &self.environment);
        self.ready().await;
    }

    /// Ends it in its fast mode (sessions are ended, nothing is lost).
    pub async fn stop(&mut self) {
        self.process.signal(rustix::process::Signal::INT);
        self.process.ended().await;
    }

    /// Ends it in its fast mode, and starts it again.
    pub async fn restart(&mut self) {
        self.stop().await;
        self.start_again().await;
    }

    /// Lets every commit wait for a replica that does not exist, until
    /// [`release_commits`](Self::release_commits). Returns the session of the first.
    ///
    /// # Panics
    /// If a session cannot be opened.
    pub async fn hold_commits(&self) -> PostgresClient {
        let hold = "ALTER SYSTEM SET synchronous_standby_names = 'absent'";
        self.script(&[hold, "SELECT pg_reload_conf()"]).await;
        let client = PostgresClient::log_in(&self.address(), USER, USER, "").await;
        let mut client = client.expect("a session");
        let pid = client.key.0;
        let waits =
            format!("SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = {pid}");
        loop {
            let statement = b"SELECT pg_logical_emit_message(true, 'a', 'b')\0";
            client.send(&frame(b'Q', statement)).await;
            let waiting =
                until_true("a commit to wait", || async { self.sql(&waits).await == "t" });
            tokio::select! {
                // The setting has not reached all processes.
                rows = client.rows() => drop(rows.expect("a commit")),
                () = waiting => return client,
            }
        }
    }

    /// Ends what [`hold_commits`](Self::hold_commits) began.
    pub async fn release_commits(&self) {
        let release = "ALTER SYSTEM RESET synchronous_standby_names";
        self.script(&[release, "SELECT pg_reload_conf()"]).await;
    }

    /// Makes a replica a primary, on a new timeline.
    pub async fn promote(&self) {
        self.sql("SELECT pg_promote(true, 60)").await;
    }

    /// Waits for its own line, of a replica, too: `ready to accept read-only connections`.
    async fn ready(&mut self) {
        until("PostgreSQL to accept connections", || {
            assert!(self.process.is_running(), "PostgreSQL ended\n{}", self.process.tail());
            let log = self.process.stderr();
            async move { log.contains(" is ready to accept ").then_some(()) }
        })
        .await;
    }

    /// Process ids of the back ends. They are in sessions of their own, and children of the
    /// postmaster.
    fn children(&self) -> Vec<String> {
        let parent = self.process.pid();
        let listed = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
        listed.unwrap_or_default().split_whitespace().map(str::to_owned).collect()
    }

    fn signal_all(&self, signal: &str) {
        let pids = std::iter::once(self.process.pid().to_string()).chain(self.children());
        let status = Command::new("kill").arg(signal).args(pids).stderr(Stdio::null()).status();
        // A back end may have ended by itself meanwhile.
        let _ = status.expect("kill");
    }
}

/// Its database `postgres`.
impl Deref for Postgres {
    type Target = Database;

    fn deref(&self) -> &Database {
        &self.database
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if self.process.is_running() {
            self.signal_all("-KILL");
        }
        // A killed server leaves its segment of shared memory, and a machine has 4096.
        let file = std::fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        let segment = file.lines().nth(6).and_then(|line| line.split_whitespace().nth(1));
        if let Some(id) = segment {
            let _ = Command::new("ipcrm").args(["-m", id]).stderr(Stdio::null()).status();
        }
    }
}

/// Returns `false` once it has ended, also where no parent has collected it, or where its id is
/// another program's.
fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let Some((name, rest)) = stat.rsplit_once(") ") else { return false };
    name.ends_with("(postgres") && !rest.starts_with(['Z', 'X'])
}

/// Folder with the programs of the newest PostgreSQL that Debian installed, if one is.
pub(crate) fn programs() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || {
        let versions = std::fs::read_dir(PROGRAMS).ok()?.flatten();
        let folders = versions.map(|entry| entry.path().join("bin"));
        folders.filter(|folder| folder.join("postgres").exists()).max()
    };
    FOLDER.get_or_init(find).as_deref()
}

/// The folder of the programs that a server is started from.
fn server_programs() -> PathBuf {
    match engines::postgres() {
        Some(folder) => readable(&folder),
        None => programs().expect("the Debian package postgresql").to_owned(),
    }
}

/// Returns the folder of programs, or a copy's if its own is closed to the server's user.
fn readable(folder: &Path) -> PathBuf {
    static COPIES: Mutex<BTreeMap<PathBuf, PathBuf>> = Mutex::new(BTreeMap::new());
    let is_open = |folder: &Path| {
        let mode = std::fs::metadata(folder).expect("a folder").permissions().mode();
        mode & 0o1 != 0
    };
    if !rustix::process::geteuid().is_root() || folder.ancestors().all(is_open) {
        return folder.to_owned();
    }
    let mut copies = COPIES.lock().unwrap_or_else(PoisonError::into_inner);
    let copied = copies.entry(folder.to_owned()).or_insert_with(|| {
        // On the disk: nothing removes it.
        let new = TempDir::new().expect("a folder for PostgreSQL").keep();
        own(&new);
        copy(folder.parent().expect("a folder of bin, lib and share"), &new.join("native"));
        new.join("native/bin")
    });
    copied.clone()
}

/// A server's program, as its user.
fn program(programs: &Path, name: &str) -> Command {
    let mut command = command(programs.join(name));
    let (uid, gid) = owner();
    if rustix::process::geteuid().is_root() {
        command.uid(uid).gid(gid);
    }
    // The folder of the tests need not be open to that user.
    command.current_dir("/");
    command
}

/// The id of the user that the server runs as, and of its group.
fn owner() -> (u32, u32) {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let line = users.lines().find(|line| line.split(':').next() == Some(USER));
    let mut ids = line.unwrap_or_default().split(':').skip(2).map(|id| id.parse().unwrap_or(65534));
    (ids.next().unwrap_or(65534), ids.next().unwrap_or(65534))
}

fn own(path: &Path) {
    if rustix::process::geteuid().is_root() {
        let (uid, gid) = owner();
        std::os::unix::fs::chown(path, Some(uid), Some(gid)).expect("chown");
    }
}

fn new_folder() -> TempDir {
    let folder = crate::folder::new();
    own(folder.path());
    folder
}

/// The folder of a new cluster, made once for this process and version.
fn template(programs: &Path) -> PathBuf {
    static TEMPLATES: Mutex<BTreeMap<PathBuf, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut templates = TEMPLATES.lock().unwrap_or_else(PoisonError::into_inner);
    let data = templates.entry(programs.to_owned()).or_insert_with(|| {
        // On the disk: nothing removes it.
        let folder = TempDir::new().expect("a folder for PostgreSQL").keep();
        own(&folder);
        let mut init = program(programs, "initdb");
        init.args(["-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]);
        // A segment of its log is copied with each cluster: 31 MB, not 39.
        init.args(["--wal-segsize=4", "-D"]);
        init.arg(folder.join("data"));
        let output = init.output().expect("initdb");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        folder.join("data")
    });
    data.clone()
}

fn copy_of_template(programs: &Path) -> TempDir {
    let folder = new_folder();
    copy(&template(programs), &folder.path().join("data"));
    folder
}

fn copy(from: &Path, to: &Path) {
    let mut copy = Command::new("cp");
    let status = copy.arg("-a").arg("--reflink=auto").arg(from).arg(to).status().expect("cp");
    assert!(status.success(), "the folder of PostgreSQL could not be copied");
    // A server that was killed left it.
    let _ = std::fs::remove_file(to.join("postmaster.pid"));
}

fn spawn(
    programs: &Path,
    port: u16,
    folder: &TempDir,
    options: &[(String, String)],
    environment: &[(&'static str, String)],
) -> Process {
    let mut server = program(programs, "postgres");
    server.envs(environment.iter().map(|(name, value)| (name, value)));
    server.arg("-D").arg(folder.path().join("data")).arg("-p").arg(port.to_string());
    server.arg("-k").arg(folder.path());
    let fixed = [
        ("listen_addresses", "127.0.0.1"),
        ("fsync", "off"),
        ("shared_buffers", "16MB"),
        // In the data folder, which goes with the server that is killed; /dev/shm does not.
        ("dynamic_shared_memory_type", "mmap"),
    ];
    let fixed = fixed.map(|(name, value)| (name.to_owned(), value.to_owned()));
    for (name, value) in fixed.iter().chain(options) {
        server.arg("-c").arg(format!("{name}={}", value.trim_matches('\'')));
    }
    Process::spawn("postgres", server)
}
