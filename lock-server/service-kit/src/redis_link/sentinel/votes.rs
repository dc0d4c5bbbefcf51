//! What several sentinels said, and what is to be made of it. Pure: no I/O.

use crate::redis_link::target::address_text;

/// Where a master is: host and port.
pub(super) type Address = (String, u16);

/// The answers of some sentinels so far.
///
/// One sentinel that is cut off from the others together with an old master goes on naming that one,
/// and the old master goes on calling itself a master. So an address is believed only when at least
/// half of the sentinels that were named have answered, and more of them say this than anything else.
#[derive(Debug)]
pub(super) struct Votes {
    asked: usize,
    heard: usize,
    /// What was said, by how many; `None` is "I know no such master".
    said: Vec<(Option<Address>, usize)>,
    /// In words, for people.
    words: Vec<String>,
}

impl Votes {
    /// So many are asked.
    pub(super) fn of(asked: usize) -> Self {
        Self { asked, heard: 0, said: Vec::new(), words: Vec::new() }
    }

    /// One answered.
    pub(super) fn says(&mut self, who: &str, what: Option<Address>) {
        self.words.push(match &what {
            Some((host, port)) => format!("{who} says {}", address_text(host, *port)),
            None => format!("{who} knows no such master"),
        });
        self.heard += 1;
        match self.said.iter_mut().find(|(said, _)| *said == what) {
            Some((_, count)) => *count += 1,
            None => self.said.push((what, 1)),
        }
    }

    /// One did not, and why.
    pub(super) fn is_silent(&mut self, why: String) {
        self.words.push(why);
    }

    /// The address that nobody who is still to answer can change any more.
    pub(super) fn settled(&self) -> Option<Address> {
        let most = self.said.iter().find(|(_, count)| count * 2 > self.asked)?;
        most.0.clone()
    }

    /// Whether more than half of all that were asked name `address`.
    ///
    /// # Errors
    /// A sentence with what each of them said.
    pub(super) fn confirm(self, address: &str, master: &str) -> Result<(), String> {
        let asked = self.asked;
        let named = |said: &Address| address_text(&said.0, said.1);
        match self.settled().as_ref().map(named) {
            Some(now) if now == address => Ok(()),
            Some(now) => Err(format!("the sentinels moved the master from {address} to {now}")),
            None => Err(format!(
                "fewer than {} of {asked} sentinels name one address of the master \"{master}\": {}",
                asked / 2 + 1,
                self.words.join("; ")
            )),
        }
    }

    /// The address, when all have answered or will not.
    ///
    /// # Errors
    /// A sentence with what each of them said.
    pub(super) fn result(self, master: &str) -> Result<Address, String> {
        if let Some(address) = self.settled() {
            return Ok(address);
        }
        let words = self.words.join("; ");
        let needed = self.asked.div_ceil(2);
        if self.heard > 0 && self.heard < needed {
            return Err(format!(
                "only {} of {} sentinels can be asked where the master \"{master}\" is, and at least \
                 {needed} are needed: {words}. Start the others",
                self.heard, self.asked
            ));
        }
        let most = self.said.iter().map(|(_, count)| *count).max().unwrap_or(0);
        let mut first = self.said.into_iter().filter(|(_, count)| *count == most);
        match (first.next(), first.next()) {
            (Some((Some(address), _)), None) => Ok(address),
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

    /// `1` and `2` are addresses, `0` no such master, `-` silence.
    fn votes(answers: &str) -> Votes {
        let mut votes = Votes::of(answers.len());
        for (number, answer) in answers.chars().enumerate() {
            let who = format!("s{number}");
            match answer {
                '-' => votes.is_silent(format!("{who} does not answer")),
                '0' => votes.says(&who, None),
                port => votes.says(&who, Some(("m".to_owned(), port as u16 - '0' as u16))),
            }
        }
        votes
    }

    fn result(answers: &str) -> Result<u16, String> {
        votes(answers).result("orders").map(|(_, port)| port)
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
            ("12-", "s1 says m:2; s2 does not answer"),
            ("10", "do not agree"),
        ] {
            let error = result(answers).unwrap_err();
            assert!(error.contains(reason), "{answers}: {error}");
        }
    }

    #[test]
    fn more_than_half_of_all_confirm() {
        let confirm = |answers: &str| votes(answers).confirm("m:1", "orders");
        for answers in ["1", "11", "111", "11-", "112", "1-1", "110", "1112-"] {
            assert_eq!(confirm(answers), Ok(()), "{answers}");
        }
        for (answers, reason) in [
            ("221", "moved the master from m:1 to m:2"),
            ("22-", "moved the master from m:1 to m:2"),
            ("1-", "fewer than 2 of 2"),
            ("1--", "fewer than 2 of 3"),
            ("12-", "s1 says m:2; s2 does not answer"),
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
        let mut votes = Votes::of(3);
        let address = Some(("m".to_owned(), 1));
        votes.says("a", address.clone());
        assert_eq!(votes.settled(), None);
        votes.says("b", address.clone());
        assert_eq!(votes.settled(), address);
    }
}
