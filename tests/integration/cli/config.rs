//! `config check` and `config show` of the three programs, completions, man pages, colours.

use fence_tests::key_file::text;
use fence_tests::process::{Output, Process, command};
use fence_tests::wait::until_true;
use tempfile::TempDir;

use super::Site;

async fn run(program: &str, args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = command(fence_tests::binaries::path(program));
    command.args(args).envs(variables.iter().copied());
    Process::spawn(program, command).ended().await
}

/// The line of a setting, with its columns one blank apart.
fn line(output: &Output, name: &str) -> String {
    let lines = output.stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut found = lines.filter(|words| words.first() == Some(&name));
    found.next().unwrap_or_else(|| panic!("no {name} in {output:?}")).join(" ")
}

#[tokio::test]
async fn settings_are_shown_with_their_origins() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("server.toml");
    let secret = folder.path().join("secret");
    let audit = folder.path().join("audit.jsonl");
    let content = format!("unsigned = true\nhost-name = ['a', 'b']\naudit-log = {audit:?}\n");
    std::fs::write(&file, content).unwrap();
    std::fs::write(&secret, "redis://:hunter2@127.0.0.1:6379").unwrap();
    for (program, prefix) in [("lock-server", "LOCK_SERVER"), ("fenced-store", "FENCED_STORE")] {
        let [store, idle] = ["STORE_FILE", "IDLE_TIMEOUT"].map(|name| format!("{prefix}_{name}"));
        let variables = [(store.as_str(), text(&secret)), (idle.as_str(), "9s")];
        let args = ["--namespace", "shop", "config", "show", "--config", text(&file)];
        let output = run(program, &args, &variables).await;
        assert_eq!(output.code, 0, "{output:?}");
        for shown in [
            "namespace shop command line".to_owned(),
            format!("idle-timeout 9s variable {prefix}_IDLE_TIMEOUT"),
            format!("host-name a b file {}, key host-name", text(&file)),
            "token-key-file - default".to_owned(),
            "log-filter info default".to_owned(),
        ] {
            assert_eq!(line(&output, shown.split(' ').next().unwrap()), shown);
        }
        assert!(line(&output, "store").contains(text(&secret)), "{output:?}");
        assert!(!output.stdout.contains("hunter2"), "{output:?}");
        let url = "redis://user:hunter2@127.0.0.1:6379";
        let output = run(program, &["--store", url, "--unsigned", "config", "show"], &[]).await;
        assert!(output.code == 0 && !output.stdout.contains("hunter2"), "{output:?}");
    }
    assert!(!audit.exists(), "a check creates nothing");
}

#[tokio::test]
async fn a_check_reports_every_error() {
    for program in ["lock-server", "fenced-store"] {
        let args = ["--store", "x", "--max-connections", "many", "config", "check"];
        let output = run(program, &args, &[]).await;
        assert_eq!(output.code, 64, "{output:?}");
        for shown in ["--store", "--max-connections"] {
            assert!(output.stderr.contains(shown), "{shown}: {output:?}");
        }
        // Each is valid, and they do not fit together.
        let args = ["--access-file", "/nonexistent/a", "config", "check"];
        let output = run(program, &args, &[]).await;
        assert_eq!(output.code, 64, "{output:?}");
        for shown in ["--store is missing", "--token-key-file is missing", "/nonexistent/a"] {
            assert!(output.stderr.contains(shown), "{shown}: {output:?}");
        }
        let good = run(program, &["--store", "memory:", "--unsigned", "config", "check"], &[]);
        let good = good.await;
        assert_eq!((good.code, good.stdout.as_str(), good.stderr.as_str()), (0, "", ""));
    }
}

#[tokio::test]
async fn the_command_checks_its_settings() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("fence.toml");
    std::fs::write(&file, "ttl = 'soon'\nserver = 'http://locks'\nwiat = '1s'\n").unwrap();
    let variables = [("FENCE_GRACE", "1s"), ("FENCE_WAIT", "later"), ("FENCE_LOCK", "parent")];
    let args = ["config", "show", "run", "--config", text(&file)];
    let output = run("fence", &args, &variables).await;
    assert_eq!(output.code, 64, "{output:?}");
    assert_eq!(line(&output, "grace"), "grace 1s variable FENCE_GRACE");
    assert_eq!(line(&output, "lock"), "lock - default");
    assert!(line(&output, "server").ends_with("key server"), "{output:?}");
    for shown in ["FENCE_WAIT", "key ttl", "did you mean wait"] {
        assert!(output.stderr.contains(shown), "{shown}: {output:?}");
    }
    let check = run("fence", &["config", "check"], &[("FENCE_GUARD", "redis://a")]).await;
    assert_eq!((check.code, check.stdout.as_str()), (64, ""), "{check:?}");
    assert!(check.stderr.contains("variable FENCE_GUARD"), "{check:?}");
    assert_eq!(run("fence", &["config", "check", "run"], &[]).await.code, 0);
    let group = run("fence", &["config", "check", "lock"], &[]).await;
    assert!(group.code == 64 && group.stderr.contains("acquire"), "{group:?}");
}

/// A misspelt variable is named; those of a parent, of tests and of Kubernetes are no mistakes.
#[tokio::test]
async fn a_misspelt_variable_is_warned_of() {
    let site = Site::new().await;
    let variables = [
        ("FENCE_SERVER", site.locks.base.as_str()),
        ("FENCE_GUARD", site.guard.base.as_str()),
        ("FENCE_TLL", "5s"),
        ("FENCE_SESSION_ID", "x"),
        ("FENCE_LEASES", "[]"),
        ("FENCE_LONG", "1"),
        ("FENCE_TEST_TTL", "1"),
        ("FENCE_PORT", "tcp://10.0.0.1:80"),
        ("FENCE_SERVICE_HOST", "10.0.0.1"),
        ("FENCE_BACKUP", "x"),
    ];
    let output = run("fence", &["run", "--lock", "a", "--", "true"], &variables).await;
    let line = "the variable FENCE_TLL sets nothing; did you mean FENCE_TTL?";
    let is_warned = output.stderr.contains("WARN") && output.stderr.contains(line);
    assert!(output.code == 0 && is_warned, "{output:?}");
    assert_eq!(output.stderr.lines().count(), 1, "{output:?}");
    // It would set nothing of these, spelt as it may.
    for args in [&["lock", "list"][..], &["lock", "show", "a"], &["session", "list"]] {
        let output = run("fence", args, &variables).await;
        assert_eq!((output.code, output.stderr.as_str()), (0, ""), "{args:?}: {output:?}");
    }
}

/// A wrong colour is the fault of its own variable, and no fault where a flag replaces it.
#[tokio::test]
async fn a_setting_of_every_command_has_its_own_origin() {
    let site = Site::new().await;
    let pink = [
        ("FENCE_COLOR", "pink"),
        ("FENCE_SERVER", site.locks.base.as_str()),
        ("FENCE_GUARD", site.guard.base.as_str()),
    ];
    let output = run("fence", &["lock", "list"], &pink).await;
    let shown = "error: variable FENCE_COLOR: \"pink\" is not valid for --color: \
                 write auto or always or never\n";
    assert_eq!((output.code, output.stderr.as_str()), (64, shown), "{output:?}");
    let output = run("fence", &["lock", "list", "--color", "never"], &pink).await;
    assert_eq!(output.code, 0, "{output:?}");
    // The programs that it starts itself read no variables.
    let held = ["run", "--lock", "a", "--color", "never", "--", "echo", "done"];
    let output = run("fence", &held, &pink).await;
    assert_eq!((output.code, output.stdout.as_str()), (0, "done\n"), "{output:?}");
    let output = run("fence", &["config", "show"], &[("FENCE_COLOR", "never")]).await;
    assert_eq!(line(&output, "color"), "color never variable FENCE_COLOR");
    assert_eq!(line(&output, "log"), "log warn default");
}

#[tokio::test]
async fn completions_and_man_pages_are_of_all_programs() {
    for program in ["fence", "lock-server", "fenced-store"] {
        for (shell, shown) in
            [("bash", "complete -F"), ("zsh", "#compdef"), ("fish", "complete -c")]
        {
            let output = run("fence", &["completions", shell, program], &[]).await;
            assert_eq!(output.code, 0, "{output:?}");
            assert!(output.stdout.contains(shown) && output.stdout.contains(program), "{shell}");
        }
    }
    let folder = TempDir::new().unwrap();
    let output = run("fence", &["man", text(&folder.path().join("man1"))], &[]).await;
    assert_eq!(output.code, 0, "{output:?}");
    for (page, shown) in [
        ("fence-run.1", "max\\-hold"),
        ("fence-lock-acquire.1", "ttl"),
        ("lock-server.1", "token\\-key\\-file"),
        ("fenced-store.1", "redis\\-listen"),
    ] {
        let text = std::fs::read_to_string(folder.path().join("man1").join(page)).unwrap();
        assert!(text.contains(".TH") && text.contains(shown), "{page}: {text}");
    }
}

/// A real shell completes commands and flags by the script.
#[tokio::test]
async fn a_shell_completes_by_the_script() {
    let script = r#"
        source <("$PROGRAM" completions bash)
        complete_line() {
            COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
            _fence fence "${@: -1}" "${@: -2:1}"
            echo "${COMPREPLY[*]}"
        }
        complete_line fence lock rel
        complete_line fence run --confl
        complete_line fence lock renew a --le
        complete_line fence lock show a --output j"#;
    let mut bash = command("bash");
    bash.args(["-euo", "pipefail", "-c", script]);
    bash.env("PROGRAM", fence_tests::binaries::path("fence"));
    let output = Process::spawn("bash", bash).ended().await;
    let expected = "release\n--conflict-exit-code\n--lease\njson\n";
    assert_eq!((output.code, output.stdout.as_str()), (0, expected), "{output:?}");
}

/// Colours are for terminals; NO_COLOR and --color have the last word.
#[tokio::test]
async fn colours_are_for_terminals() {
    let site = Site::new().await;
    site.locks.locks().grant("a", 60_000).await;
    let explain = format!(
        "{} lock explain a --server {}",
        fence_tests::binaries::path("fence").display(),
        site.locks.base
    );
    let on_terminal = async |line: &str, variables: &[(&str, &str)]| {
        let mut terminal = command("script");
        terminal.args(["-qec", line, "/dev/null"]).env("TERM", "xterm").env_remove("NO_COLOR");
        terminal.envs(variables.iter().copied());
        Process::spawn("script", terminal).ended().await.stdout
    };
    let bold = "\u{1b}[1ma is held by";
    assert!(on_terminal(&explain, &[]).await.contains(bold));
    assert!(!on_terminal(&explain, &[("NO_COLOR", "1")]).await.contains('\u{1b}'));
    assert!(!on_terminal(&format!("{explain} --color never"), &[]).await.contains('\u{1b}'));
    assert!(!site.fence(&["lock", "explain", "a"]).await.stdout.contains('\u{1b}'));
    let always = site.fence(&["lock", "explain", "a", "--color", "always"]).await;
    assert!(always.stdout.contains(bold), "{always:?}");
    let mut watch = command(fence_tests::binaries::path("fence"));
    watch.args(["lock", "watch", "--color", "always", "--server", &site.locks.base]);
    let watch = Process::spawn("fence", watch);
    let mut count = 0;
    until_true("a green grant", || {
        count += 1;
        let locks = site.locks.locks();
        let lock = format!("b/{count}");
        let watch = &watch;
        async move {
            locks.grant(&lock, 60_000).await;
            watch.stdout().contains("\u{1b}[32mgranted")
        }
    })
    .await;
}
