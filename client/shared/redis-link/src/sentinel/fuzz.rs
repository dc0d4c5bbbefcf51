//! Votes of sentinels, for the fuzz target of places.

use super::votes::{Choice, Votes};

/// A byte a sentinel: it is silent, knows no master, or names one of a few. A choice that is
/// believed is named by more of them than any other, and at least half of them answered.
pub(crate) fn votes(input: &[u8]) {
    let Some((&asked, input)) = input.split_first() else { return };
    let asked = usize::from(asked % 8);
    let mut votes = Votes::new(asked);
    let mut said: Vec<Option<Choice>> = Vec::new();
    for byte in input.iter().take(asked) {
        match byte % 6 {
            0 => votes.is_silent("it is silent".to_owned()),
            1 => {
                votes.says("one", None);
                said.push(None);
            }
            number => {
                let port = u16::from(number % 2);
                let choice = Choice { host: "a".to_owned(), port, epoch: u64::from(number / 4) };
                votes.says("one", Some(choice.clone()));
                said.push(Some(choice));
            }
        }
    }
    let count = |what: &Option<Choice>| said.iter().filter(|other| *other == what).count();
    if let Some(choice) = votes.settled() {
        assert!(count(&Some(choice)) * 2 > asked);
    }
    if let Ok(choice) = votes.result("mymaster") {
        let choice = Some(choice);
        assert!(said.len() * 2 >= asked && count(&choice) > 0);
        assert!(said.iter().all(|other| *other == choice || count(other) < count(&choice)));
    }
}
