//! The journal oracle. The datastore of a test records the order in which the writes of each lock
//! took effect: Redis, because every write also appends "token op" to a list in the same atomic
//! step; the [origin](crate::journal_origin) of the reverse proxy by itself. The judge is pure: no
//! I/O, no clock.

use std::collections::HashMap;
use std::str::FromStr;

/// A write that took effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The token that it was made with.
    pub token: u64,
    /// Its own name, used once.
    pub op: String,
}

impl FromStr for Entry {
    type Err = String;

    /// Reads `token op`.
    ///
    /// # Errors
    /// The text, where it is something else.
    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once(' ').and_then(|(token, op)| Some((token.parse().ok()?, op)));
        let (token, op) = parsed.ok_or_else(|| format!("no journal entry: {text:?}"))?;
        Ok(Self { token, op: op.to_owned() })
    }
}

/// A token was answered (an accepted AUTH, or any answered operation with it), and the journal was
/// at most so long then: it was measured later, and never shrinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The token that was answered.
    pub token: u64,
    /// The length of the journal, measured after the answer.
    pub length: usize,
}

/// Report to the client that made a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteReport {
    /// It took effect.
    Applied,
    /// It did not, and will not.
    Refused,
    /// Unknown outcome: an error that says so, or a connection that ended.
    Unknown,
    /// Unknown outcome: its client did not wait for one.
    Abandoned,
}

/// A write as its client saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The token that it was made with.
    pub token: u64,
    /// Its own name.
    pub op: String,
    /// The outcome that the client read.
    pub report: WriteReport,
}

/// Everything that is known of one lock.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    /// The writes, in the order in which they took effect.
    pub entries: Vec<Entry>,
    /// The answered tokens, in any order.
    pub seals: Vec<Seal>,
    /// The writes; those of one token in the order in which their holder made them.
    pub answers: Vec<Answer>,
}

impl Journal {
    /// The invariants that a guarded run keeps.
    ///
    /// # Errors
    /// The entries that break one, in words.
    pub fn check(&self) -> Result<(), String> {
        self.never_falls()?;
        self.nothing_below_a_seal()?;
        self.matches_reports()
    }

    /// G1: the tokens of applied writes never fall.
    ///
    /// # Errors
    /// Two neighbours of which the later is lower.
    pub fn never_falls(&self) -> Result<(), String> {
        match self.entries.windows(2).position(|two| two[1].token < two[0].token) {
            Some(at) => {
                let before = &self.entries[at];
                let after = &self.entries[at + 1];
                Err(format!("G1: the tokens fall at {at}: {before:?} then {after:?}"))
            }
            None => Ok(()),
        }
    }

    /// G2: once a token was answered, nothing below it takes effect.
    ///
    /// # Errors
    /// The seal and the write that came after it.
    pub fn nothing_below_a_seal(&self) -> Result<(), String> {
        for seal in &self.seals {
            let late = self.entries.iter().skip(seal.length).find(|late| late.token < seal.token);
            if let Some(late) = late {
                return Err(format!("G2: {late:?} took effect after {seal:?}"));
            }
        }
        Ok(())
    }

    /// G6 and honest answers: what was reported as applied is there once, what was reported as
    /// refused is not, and nothing is there twice or from nowhere.
    ///
    /// # Errors
    /// The write and what is wrong with it.
    pub fn matches_reports(&self) -> Result<(), String> {
        let mut found: HashMap<&str, (u64, usize)> = HashMap::new();
        for entry in &self.entries {
            found.entry(&entry.op).or_insert((entry.token, 0)).1 += 1;
        }
        for answer in &self.answers {
            let (token, times) = found.remove(answer.op.as_str()).unwrap_or((answer.token, 0));
            let is_right = match answer.report {
                WriteReport::Applied => times == 1,
                WriteReport::Refused => times == 0,
                WriteReport::Unknown | WriteReport::Abandoned => times <= 1,
            };
            if !is_right || token != answer.token {
                return Err(format!("{answer:?} is {times} times in the journal (token {token})"));
            }
        }
        match found.into_iter().next() {
            Some((op, _)) => Err(format!("{op} is in the journal and no client asked for it")),
            None => Ok(()),
        }
    }

    /// No write of a holder that awaits each outcome is overtaken by its own next one, which would
    /// be lost: tokens compare equal, so the fence alone allows it.
    ///
    /// # Errors
    /// The write that took effect too late.
    pub fn never_overtaken(&self) -> Result<(), String> {
        let places: HashMap<&str, usize> = self
            .answers
            .iter()
            .enumerate()
            .filter(|(_, answer)| answer.report != WriteReport::Abandoned)
            .map(|(place, answer)| (answer.op.as_str(), place))
            .collect();
        let mut last: HashMap<u64, usize> = HashMap::new();
        for entry in &self.entries {
            let Some(place) = places.get(entry.op.as_str()) else { continue };
            let before = last.entry(entry.token).or_insert(*place);
            if *before > *place {
                let newer = &self.answers[*before];
                return Err(format!("{entry:?} took effect after {newer:?} of the same holder"));
            }
            *before = *place;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(texts: &[&str]) -> Vec<Entry> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn answer(token: u64, op: &str, report: WriteReport) -> Answer {
        Answer { token, op: op.to_owned(), report }
    }

    /// Old holder, new holder, an old write that was refused, one of unknown outcome.
    fn good() -> Journal {
        Journal {
            entries: entries(&["10 a", "10 b", "20 c", "20 d", "30 e"]),
            seals: vec![
                Seal { token: 10, length: 0 },
                Seal { token: 20, length: 2 },
                Seal { token: 30, length: 5 },
            ],
            answers: vec![
                answer(10, "a", WriteReport::Applied),
                answer(10, "b", WriteReport::Unknown),
                answer(10, "lost", WriteReport::Unknown),
                answer(10, "late", WriteReport::Refused),
                answer(20, "c", WriteReport::Applied),
                answer(20, "d", WriteReport::Applied),
                answer(30, "e", WriteReport::Unknown),
            ],
        }
    }

    #[test]
    fn a_good_history_passes() {
        good().check().unwrap();
        Journal::default().check().unwrap();
    }

    #[test]
    fn falling_tokens_are_caught() {
        let mut bad = good();
        bad.entries.swap(1, 2);
        bad.seals.clear();
        assert!(bad.check().unwrap_err().starts_with("G1"));
    }

    /// The tokens do not fall, because the new holder has not written yet; it was answered.
    #[test]
    fn a_write_after_a_seal_is_caught() {
        let mut bad = good();
        bad.seals.push(Seal { token: 20, length: 1 });
        bad.never_falls().unwrap();
        assert!(bad.check().unwrap_err().starts_with("G2"));
        bad.seals.pop();
        bad.seals.push(Seal { token: 40, length: 4 });
        assert!(bad.check().unwrap_err().starts_with("G2"));
    }

    #[test]
    fn a_lost_write_is_caught() {
        let mut bad = good();
        bad.answers.push(answer(30, "f", WriteReport::Applied));
        assert!(bad.check().unwrap_err().contains("\"f\""));
    }

    #[test]
    fn a_refused_write_that_took_effect_is_caught() {
        let mut bad = good();
        bad.answers[5].report = WriteReport::Refused;
        assert!(bad.check().unwrap_err().contains("\"d\""));
    }

    #[test]
    fn a_write_that_took_effect_twice_is_caught() {
        let mut bad = good();
        bad.entries.push(bad.entries[4].clone());
        assert!(bad.check().unwrap_err().contains("2 times"));
    }

    #[test]
    fn a_write_of_no_client_or_with_another_token_is_caught() {
        let mut bad = good();
        bad.entries.extend(entries(&["30 x"]));
        assert!(bad.check().unwrap_err().contains("no client"));
        let mut bad = good();
        bad.answers[6].token = 31;
        assert!(bad.check().is_err());
    }

    #[test]
    fn a_write_that_its_holders_next_one_overtook_is_caught() {
        let mut bad = good();
        bad.never_overtaken().unwrap();
        bad.entries.swap(0, 1);
        bad.check().unwrap();
        assert!(bad.never_overtaken().unwrap_err().contains("same holder"));
        bad.answers[0].report = WriteReport::Abandoned;
        bad.never_overtaken().unwrap();
    }

    #[test]
    fn what_is_no_entry_is_reported() {
        for text in ["", "10", "x y", "-1 a"] {
            assert!(text.parse::<Entry>().is_err(), "{text}");
        }
    }
}
