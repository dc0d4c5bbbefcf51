//! Replies of several sentinels, and the choice that follows from them. Pure: no I/O.

use std::fmt;

use crate::url::address_text;

/// The Redis that sentinels have chosen as the master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Its host.
    pub(crate) host: String,
    /// Its port.
    pub(crate) port: u16,
    /// The configuration epoch: each choice has a higher one than those before it, also where it is
    /// of a Redis that was the master before.
    pub(crate) epoch: u64,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (epoch {})", address_text(&self.host, self.port), self.epoch)
    }
}

/// Replies of some sentinels so far.
///
/// One sentinel that is cut off from the others together with an old master continues to name that
/// one, and the old master continues to call itself a master. So a choice is believed only when at
/// least half of the named sentinels have replied, and more of them say this than anything else.
#[derive(Debug)]
pub(super) struct Votes {
    asked: usize,
    received: usize,
    /// Each reply with its number of sentinels; `None` is "I know no such master".
    said: Vec<(Option<Choice>, usize)>,
    /// In words, for people.
    words: Vec<String>,
}

impl Votes {
    /// So many are asked.
    pub(super) fn new(asked: usize) -> Self {
        Self { asked, received: 0, said: Vec::new(), words: Vec::new() }
    }

    /// One answered.
    pub(super) fn says(&mut self, who: &str, what: Option<Choice>) {
        self.words.push(match &what {
            Some(choice) => format!("{who} says {choice}"),
            None => format!("{who} knows no such master"),
        });
        self.received += 1;
        match self.said.iter_mut().find(|(said, _)| *said == what) {
            Some((_, count)) => *count += 1,
            None => self.said.push((what, 1)),
        }
    }

    /// One did not, and why.
    pub(super) fn is_silent(&mut self, why: String) {
        self.words.push(why);
    }

    /// The choice that no missing reply can change any more.
    pub(super) fn settled(&self) -> Option<Choice> {
        let most = self.said.iter().find(|(_, count)| count * 2 > self.asked)?;
        most.0.clone()
    }

    /// Succeeds if more than half of all named sentinels name `choice`.
    ///
    /// # Errors
    /// A sentence with the reply of each.
    pub(super) fn confirm(self, choice: &Choice, master: &str) -> Result<(), String> {
        let asked = self.asked;
        match self.settled() {
            Some(now) if now == *choice => Ok(()),
            Some(now) => Err(format!("the sentinels moved the master from {choice} to {now}")),
            None => Err(format!(
                "fewer than {} of {asked} sentinels name one address of the master \"{master}\": {}",
                asked / 2 + 1,
                self.words.join("; ")
            )),
        }
    }

    /// The choice, when all have answered or will not.
    ///
    /// # Errors
    /// A sentence with what each of them said.
    pub(super) fn result(self, master: &str) -> Result<Choice, String> {
        if let Some(choice) = self.settled() {
            return Ok(choice);
        }
        let words = self.words.join("; ");
        let needed = self.asked.div_ceil(2);
        if self.received > 0 && self.received < needed {
            return Err(format!(
                "only {} of {} sentinels can be asked where the master \"{master}\" is, and at least \
                 {needed} are needed: {words}. Start the others",
                self.received, self.asked
            ));
        }
        let most = self.said.iter().map(|(_, count)| *count).max().unwrap_or(0);
        let mut first = self.said.into_iter().filter(|(_, count)| *count == most);
        match (first.next(), first.next()) {
            (Some((Some(choice), _)), None) => Ok(choice),
            (Some(_), Some(_)) => Err(format!(
                "the sentinels do not agree on where the master \"{master}\" is: {words}. While a \
                 failover is under way that passes; else look which of them watch another group"
            )),
            _ => Err(format!(
                "no sentinel says where the master \"{master}\" is: {words}. Correct the URL, or \
                 start them"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(port: u16, epoch: u64) -> Choice {
        Choice { host: "m".to_owned(), port, epoch }
    }

    /// `1` and `2` are addresses, `a` and `b` the same in a later epoch, `0` no such master, `-`
    /// silence.
    fn votes(answers: &str) -> Votes {
        let mut votes = Votes::new(answers.len());
        for (number, answer) in answers.chars().enumerate() {
            let who = format!("s{number}");
            match answer {
                '-' => votes.is_silent(format!("{who} does not answer")),
                '0' => votes.says(&who, None),
                later @ 'a'..='b' => {
                    votes.says(&who, Some(choice(later as u16 - 'a' as u16 + 1, 8)));
                }
                port => votes.says(&who, Some(choice(port as u16 - '0' as u16, 7))),
            }
        }
        votes
    }

    fn result(answers: &str) -> Result<u16, String> {
        votes(answers).result("orders").map(|choice| choice.port)
    }

    #[test]
    fn most_of_enough_decide() {
        for answers in ["1", "1-", "11", "111", "11-", "112", "1-1", "110"] {
            assert_eq!(result(answers), Ok(1), "{answers}");
        }
    }

    #[test]
    fn others_are_refused_with_what_each_said() {
        for (answers, reason) in [
            ("-", "no sentinel says"),
            ("---", "no sentinel says"),
            ("0", "knows no such master"),
            ("001", "no sentinel says"),
            ("1--", "only 1 of 3"),
            ("0--", "at least 2 are needed"),
            ("12", "do not agree"),
            ("12-", "s1 says m:2 (epoch 7); s2 does not answer"),
            ("10", "do not agree"),
            // The same Redis, chosen again: another choice.
            ("1a", "s0 says m:1 (epoch 7); s1 says m:1 (epoch 8)"),
        ] {
            let error = result(answers).unwrap_err();
            assert!(error.contains(reason), "{answers}: {error}");
        }
    }

    #[test]
    fn more_than_half_of_all_confirm() {
        let confirm = |answers: &str| votes(answers).confirm(&choice(1, 7), "orders");
        for answers in ["1", "11", "111", "11-", "112", "1-1", "110", "1112-"] {
            assert_eq!(confirm(answers), Ok(()), "{answers}");
        }
        for (answers, reason) in [
            ("221", "moved the master from m:1 (epoch 7) to m:2 (epoch 7)"),
            ("22-", "moved the master from m:1 (epoch 7) to m:2 (epoch 7)"),
            ("aa1", "moved the master from m:1 (epoch 7) to m:1 (epoch 8)"),
            ("ab1", "fewer than 2 of 3"),
            ("1-", "fewer than 2 of 2"),
            ("1--", "fewer than 2 of 3"),
            ("12-", "s1 says m:2 (epoch 7); s2 does not answer"),
            // Enough to follow, and not to vouch.
            ("11--", "fewer than 3 of 4"),
            ("000", "knows no such master"),
            ("---", "does not answer"),
        ] {
            let error = confirm(answers).unwrap_err();
            assert!(error.contains(reason), "{answers}: {error}");
        }
    }

    #[test]
    fn the_rest_is_not_awaited_once_more_than_half_agree() {
        let mut votes = Votes::new(3);
        let choice = Some(choice(1, 7));
        votes.says("a", choice.clone());
        assert_eq!(votes.settled(), None);
        votes.says("b", choice.clone());
        assert_eq!(votes.settled(), choice);
    }
}
