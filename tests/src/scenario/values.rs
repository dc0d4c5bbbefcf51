//! Variables of a scenario, and the comparison with what it expects.

use std::collections::BTreeMap;

use serde_json::Value;

/// Values by name, without the dollar sign.
#[derive(Clone, Debug, Default)]
pub struct Variables(BTreeMap<String, Value>);

impl Variables {
    /// Sets a variable.
    pub fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.0.insert(name.to_owned(), value.into());
    }

    /// Replaces the variables in `value`.
    ///
    /// # Errors
    /// The name of a variable that has no value.
    pub fn fill(&self, value: &Value) -> Result<Value, String> {
        Ok(match value {
            Value::String(text) => match text.strip_prefix('$') {
                Some(name) if !name.starts_with('{') => self.value(name)?.clone(),
                _ => Value::String(self.fill_text(text)?),
            },
            Value::Array(items) => {
                items.iter().map(|item| self.fill(item)).collect::<Result<_, _>>()?
            }
            Value::Object(members) => {
                let fill = |(name, value)| Ok((String::clone(name), self.fill(value)?));
                Value::Object(members.iter().map(fill).collect::<Result<_, String>>()?)
            }
            other => other.clone(),
        })
    }

    fn value(&self, name: &str) -> Result<&Value, String> {
        self.0.get(name).ok_or_else(|| format!("${name} has no value"))
    }

    /// Replaces each `${name}` in a text.
    fn fill_text(&self, text: &str) -> Result<String, String> {
        let mut filled = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            let (name, after) = after.split_once('}').ok_or("${ without }")?;
            filled.push_str(before);
            match self.value(name)? {
                Value::String(value) => filled.push_str(value),
                other => filled.push_str(&other.to_string()),
            }
            rest = after;
        }
        filled.push_str(rest);
        Ok(filled)
    }

    /// Compares `found` with what is expected; binds the variables that have no value.
    ///
    /// # Errors
    /// The first difference.
    pub fn matches(&mut self, expected: &Value, found: &Value) -> Result<(), String> {
        match expected {
            Value::String(text) if text.starts_with('$') && !text.starts_with("${") => {
                let name = &text[1..];
                match self.0.get(name) {
                    None => self.set(name, found.clone()),
                    Some(value) => equal(value, found).map_err(|why| format!("${name}: {why}"))?,
                }
                Ok(())
            }
            Value::String(text) => equal(&Value::String(self.fill_text(text)?), found),
            Value::Array(items) => self.matches_items(items, found),
            Value::Object(members) => match members.iter().next() {
                Some((word, value)) if members.len() == 1 && WORDS.contains(&word.as_str()) => {
                    self.matches_word(word, value, found)
                }
                _ => members.iter().try_for_each(|(name, value)| {
                    let found = found.get(name).unwrap_or(&Value::Null);
                    self.matches(value, found).map_err(|why| format!("{name}: {why}"))
                }),
            },
            other => equal(other, found),
        }
    }

    fn matches_items(&mut self, items: &[Value], found: &Value) -> Result<(), String> {
        let found = found.as_array().ok_or_else(|| format!("expected a list, found {found}"))?;
        if items.len() != found.len() {
            return Err(format!("expected {} items, found {}", items.len(), found.len()));
        }
        items.iter().zip(found).try_for_each(|(item, found)| self.matches(item, found))
    }

    fn matches_word(&mut self, word: &str, value: &Value, found: &Value) -> Result<(), String> {
        let holds = match word {
            "any" => !found.is_null(),
            "not" => self.clone().matches(value, found).is_err(),
            "one_of" => {
                let choices = value.as_array().ok_or("one_of takes a list")?;
                choices.iter().any(|choice| self.clone().matches(choice, found).is_ok())
            }
            "contains" => {
                let part = self.fill(value)?;
                let part = part.as_str().ok_or("contains takes a text")?;
                found.as_str().is_some_and(|text| text.contains(part))
            }
            _ => {
                let bound = self.fill(value)?;
                let bound = bound.as_f64().ok_or_else(|| format!("{word} takes a number"))?;
                found.as_f64().is_some_and(|number| match word {
                    "above" => number > bound,
                    "below" => number < bound,
                    "at_least" => number >= bound,
                    _ => number <= bound,
                })
            }
        };
        if holds { Ok(()) } else { Err(format!("expected {word} {value}, found {found}")) }
    }
}

const WORDS: [&str; 8] =
    ["above", "below", "at_least", "at_most", "contains", "one_of", "not", "any"];

fn equal(expected: &Value, found: &Value) -> Result<(), String> {
    let are_equal = match (expected.as_f64(), found.as_f64()) {
        (Some(expected), Some(found)) => (expected - found).abs() < f64::EPSILON,
        _ => expected == found,
    };
    if are_equal { Ok(()) } else { Err(format!("expected {expected}, found {found}")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_variable_is_bound_once_and_compared_afterwards() {
        let mut variables = Variables::default();
        variables.matches(&json!({"ok": {"token": "$t"}}), &json!({"ok": {"token": 7}})).unwrap();
        assert_eq!(variables.fill(&json!(["$t", "no ${t}!"])), Ok(json!([7, "no 7!"])));
        variables.matches(&json!("$t"), &json!(7)).unwrap();
        assert!(variables.matches(&json!("$t"), &json!(8)).is_err());
        assert!(variables.fill(&json!("$other")).is_err());
    }

    #[test]
    fn words_compare_and_members_that_are_not_expected_may_be_there() {
        let mut variables = Variables::default();
        variables.set("t", 7);
        let found = json!({"n": 8, "text": "a b c", "more": [1, 2]});
        for good in [
            json!({"n": {"above": "$t"}}),
            json!({"n": {"at_most": 8}, "text": {"contains": "b"}}),
            json!({"more": [1, {"not": 3}], "none": null}),
            json!({"text": {"one_of": ["x", "a b c"]}}),
        ] {
            assert_eq!(variables.matches(&good, &found), Ok(()), "{good}");
        }
        for bad in [
            json!({"n": {"above": 8}}),
            json!({"n": {"below": 8}}),
            json!({"n": {"at_least": 9}}),
            json!({"text": {"contains": "d"}}),
            json!({"more": [1]}),
            json!({"none": {"any": true}}),
            json!({"text": {"one_of": ["x"]}}),
        ] {
            assert!(variables.matches(&bad, &found).is_err(), "{bad}");
        }
    }
}
