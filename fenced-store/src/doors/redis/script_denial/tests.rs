//! Errors that real servers sent to a user `fence:x`, by version.

use fence_protocol::LockName;

use super::*;
use crate::verdict::Fence;
use crate::verdict::tests::mark;

const EVALSHA: [&str; 2] = ["EVALSHA", "111d814b5bbeda819e402c7bdc617aacc7fc52a3"];
const KEY: &str = "touched a key that this connection may not touch";
const COMMAND: &str = "ran a command that scripts may not run";
const CHANNEL: &str = "published to one of Fencepost's own channels";
const DATABASE: &str = "selected a database that is closed to the guard";

/// The line in place of `reply` to a command of these words.
fn line(reply: &str, words: [&str; 2]) -> Option<String> {
    let fence = Fence { lock: LockName::new("orders/1").unwrap(), presented: mark(5, 1) };
    let tokens = HeldTokens::default().with(vec![fence]).unwrap();
    let name = words[0].len();
    let command = words.concat();
    let sent = ScriptName::from_command(Command::from_parts(
        command.as_bytes(),
        &[0..name, name..command.len()],
    ));
    let reply = format!("-{reply}\r\n");
    Denial::from_reply(reply.as_bytes(), &sent).map(|denial| denial.line(&tokens))
}

/// Lines of Redis 7.0.15, Redis 8.2.3 and Valkey 9.1.2.
const SENT: [(&str, &str, &str); 20] = [
    // Redis 7.0.15: EVAL or EVALSHA, redis.pcall, FCALL.
    (
        "ERR The user executing the script can't access at least one of the keys mentioned in the \
         command arguments script: 111d814b5bbeda819e402c7bdc617aacc7fc52a3, on @user_script:1.",
        "script 111d814b5bbeda819e402c7bdc617aacc7fc52a3",
        KEY,
    ),
    (
        "ERR The user executing the script can't access at least one of the keys mentioned in the \
         command arguments",
        "",
        KEY,
    ),
    (
        "ERR The user executing the script can't access at least one of the keys mentioned in the \
         command arguments script: setter, on @user_function:2.",
        "script setter",
        KEY,
    ),
    (
        "ERR The user executing the script can't run this command or subcommand script: \
         9c84918e72e112f41a6828d0ec0413e1ed0d255b, on @user_script:1.",
        "script 9c84918e72e112f41a6828d0ec0413e1ed0d255b",
        COMMAND,
    ),
    ("ERR The user executing the script can't run this command or subcommand", "", COMMAND),
    (
        "ERR The user executing the script can't publish to the channel mentioned in the command \
         script: pub, on @user_function:5.",
        "script pub",
        CHANNEL,
    ),
    (
        "ERR The user executing the script can't publish to the channel mentioned in the command",
        "",
        CHANNEL,
    ),
    (
        "ERR BY option of SORT denied due to insufficient ACL permissions. script: \
         64877b185a3c389c125bc7eba8dc31c5e0d4428d, on @user_script:1.",
        "script 64877b185a3c389c125bc7eba8dc31c5e0d4428d",
        COMMAND,
    ),
    // A script that raises the text of an error that it caught.
    (
        "ERR user_script:1: ERR The user executing the script can't access at least one of the \
         keys mentioned in the command arguments script: \
         6aa0e602f6e13267b79cfca36c8df6b777596939, on @user_script:1.",
        "script 6aa0e602f6e13267b79cfca36c8df6b777596939",
        KEY,
    ),
    // Redis 8.2.3.
    (
        "ERR ACL failure in script: No permissions to access a key script: \
         111d814b5bbeda819e402c7bdc617aacc7fc52a3, on @user_script:1.",
        "script 111d814b5bbeda819e402c7bdc617aacc7fc52a3",
        KEY,
    ),
    ("ERR ACL failure in script: No permissions to access a key", "", KEY),
    (
        "ERR ACL failure in script: User fence:x has no permissions to run the 'sort' command \
         script: sorter, on @user_function:4.",
        "script sorter",
        COMMAND,
    ),
    (
        "ERR ACL failure in script: User fence:x has no permissions to run the 'sort' command",
        "",
        COMMAND,
    ),
    (
        "ERR ACL failure in script: No permissions to access a channel script: pub, on \
         @user_function:5.",
        "script pub",
        CHANNEL,
    ),
    // Valkey 9.1.2, without names.
    (
        "ERR ACL failure in script: No permissions to access a key script: on @user_script:1.",
        "",
        KEY,
    ),
    (
        "ERR user_script:1: ERR ACL failure in script: No permissions to access a key script: on \
         @user_script:1.",
        "",
        KEY,
    ),
    (
        "ERR ACL failure in script: User fence:x has no permissions to run the 'sort' command \
         script: on @user_function:4.",
        "",
        COMMAND,
    ),
    (
        "ERR ACL failure in script: No permissions to access a channel script: on @user_script:1.",
        "",
        CHANNEL,
    ),
    (
        "ERR ACL failure in script: No permissions to access database script: on @user_script:1.",
        "",
        DATABASE,
    ),
    (
        "ERR BY option of SORT denied due to insufficient ACL permissions. script: on \
         @user_script:1.",
        "",
        COMMAND,
    ),
];

#[test]
fn errors_of_the_acl_become_a_sentence() {
    for (reply, name, what) in SENT {
        for (words, sent) in [
            (EVALSHA, "script 111d814b5bbeda819e402c7bdc617aacc7fc52a3"),
            (["FCALL_RO", "a_channel"], "script a_channel"),
            (["EVAL", "a"], "a script"),
        ] {
            let name = if name.is_empty() { sent } else { name };
            let line = line(reply, words).unwrap_or_else(|| panic!("{reply}"));
            assert!(line.starts_with(&format!("DENIED {name} {what}")), "{reply}: {line}");
            assert!(!line.contains("fence:x"), "{line}");
        }
    }
}

/// The user's name has the guard's namespace in it, which may be any word.
#[test]
fn names_are_no_reasons() {
    let command = "ERR ACL failure in script: User fence:channel:user:database:1 has no \
                   permissions to run the 'sort' command";
    assert!(line(command, EVALSHA).unwrap().contains(COMMAND));
    let key = "ERR ACL failure in script: No permissions to access a key ";
    let named = line(&format!("{key}script: my_channel, on @user_function:1."), EVALSHA).unwrap();
    assert!(named.contains("script my_channel touched a key"), "{named}");
}

#[test]
fn other_errors_stay() {
    for reply in ["ERR no such key", "NOSCRIPT No matching script.", "ERR unknown database"] {
        assert_eq!(line(reply, EVALSHA), None);
    }
}

#[test]
fn names_that_are_no_names_are_left_out() {
    let key = "ERR ACL failure in script: No permissions to access a key";
    for name in ["", "a b", "a\r\nb", &"x".repeat(41)] {
        let line = line(key, ["FCALL", name]).unwrap();
        assert!(line.starts_with("DENIED a script touched"), "{line}");
    }
}
