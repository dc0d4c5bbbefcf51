use super::*;

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
