use std::collections::BTreeSet;

use super::*;

/// Every command of the scripts is among those that the user needs, and none is there in vain.
#[test]
fn every_command_of_the_scripts_is_asked_for() {
    let scripts = [
        include_str!("commit.lua"),
        include_str!("read.lua"),
        include_str!("items.lua"),
        include_str!("beat.lua"),
        include_str!("lineage.lua"),
    ];
    let calls = scripts.iter().flat_map(|text| text.split("call('").skip(1));
    let mut found: BTreeSet<String> =
        calls.map(|call| call.split('\'').next().unwrap().to_lowercase()).collect();
    found.retain(|name| !["time", "publish"].contains(&name.as_str()));
    // Sent by itself.
    found.insert("scan".to_owned());
    assert_eq!(found, COMMANDS.map(str::to_owned).into());
}

#[test]
fn refusals_of_the_scripts_have_changed_nothing() {
    let of = |code: &str, message: &str| {
        refused(LinkError::Server { code: code.to_owned(), message: message.to_owned() })
    };
    assert_eq!(of("PAUSED", "1500"), StoreError::Paused { left_ms: 1_500 });
    assert_eq!(of("EXHAUSTED", "no token is left"), StoreError::Exhausted);
    assert!(matches!(of("FOREIGN", "x is no record"), StoreError::Unavailable(_)));
    assert!(matches!(of("LINEAGE", "missing"), StoreError::Unavailable(_)));
    assert!(matches!(of("OOM", "no memory"), StoreError::Unavailable(_)));
    assert!(matches!(of("WRONGTYPE", "of items"), StoreError::Unknown(_)));
}
