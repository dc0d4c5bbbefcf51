//! The Debian packages' postinst, in a folder in place of `/etc`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use fence_tests::process::{Output, Process, command};
use tempfile::TempDir;

use super::deploy;

struct Machine {
    root: TempDir,
}

impl Machine {
    /// Programs that change the machine only write their arguments to a log.
    fn new() -> Self {
        let machine = Self { root: TempDir::new().unwrap() };
        for folder in ["bin", "etc"] {
            fs::create_dir(machine.path(folder)).unwrap();
        }
        let postinst = deploy("deb/postinst").replace("@NAME@", "lock-server");
        let postinst = postinst.replace("/run/systemd/system", "/dev/null/none");
        let etc = machine.path("etc");
        fs::write(
            machine.path("postinst"),
            postinst.replace("/etc/fencepost", etc.to_str().unwrap()),
        )
        .unwrap();
        for program in ["getent", "chown", "deb-systemd-helper"] {
            machine.program(program, "");
        }
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Replaces a program by one that logs its arguments and then runs `more`.
    fn program(&self, name: &str, more: &str) {
        let log = self.path("log");
        let text = format!("#!/bin/sh\necho \"{name} $*\" >>{}\n{more}\n", log.display());
        fs::write(self.path("bin").join(name), text).unwrap();
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(self.path("bin").join(name), mode).unwrap();
    }

    /// Runs it; returns its result, and the logged lines about the key file.
    async fn configure(&self) -> (Output, Vec<String>) {
        fs::write(self.path("log"), "").unwrap();
        let mut sh = command("sh");
        let bin = self.path("bin");
        sh.arg(self.path("postinst")).args(["configure", ""]);
        sh.env("PATH", format!("{}:/usr/bin:/bin", bin.display()));
        let output = Process::spawn("postinst", sh).ended().await;
        let log = fs::read_to_string(self.path("log")).unwrap();
        let about = log.lines().filter(|line| line.contains("token-keys")).map(str::to_owned);
        (output, about.collect())
    }
}

#[tokio::test]
async fn an_interrupted_installation_leaves_no_keys_that_the_service_cannot_read() {
    let machine = Machine::new();
    let keys = machine.path("etc/token-keys.txt");
    machine.program("chown", "case $* in *token-keys*) exit 1 ;; esac");
    assert_ne!(machine.configure().await.0.code, 0);
    assert!(!keys.exists(), "it has its name before its owner");

    machine.program("chown", "");
    let (output, log) = machine.configure().await;
    assert_eq!(output.code, 0, "{output:?}");
    assert_eq!(log, [format!("chown fencepost:fencepost {}.new", keys.display())]);
    let made = fs::read_to_string(&keys).unwrap();
    assert!(made.starts_with("k1:") && made.trim_end().len() == 3 + 64, "{made:?}");
    assert_eq!(fs::metadata(&keys).unwrap().permissions().mode() & 0o777, 0o600);

    // As earlier versions may have left it; an operator's own choice stays.
    for (found, changes) in [("root 600", 1), ("root 640", 0), ("fencepost 600", 0)] {
        machine.program("stat", &format!("echo '{found}'"));
        let (output, log) = machine.configure().await;
        assert_eq!(output.code, 0, "{output:?}");
        let chown = format!("chown fencepost:fencepost {}", keys.display());
        assert_eq!(log.iter().filter(|line| **line == chown).count(), changes, "{found}: {log:?}");
    }
    assert_eq!(fs::read_to_string(&keys).unwrap(), made, "the keys stay");
}
