//! Members of a request.

use std::time::Duration;

use serde_json::Value;

use crate::failure::Failure;

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Arguments(pub(crate) Value);

impl Arguments {
    /// A text that must be there.
    pub(crate) fn text(&self, name: &str) -> Result<String, Failure> {
        let text = self.0[name].as_str().map(ToOwned::to_owned);
        text.ok_or_else(|| Failure::invalid(format!("{name} must be a text: {}", self.0)))
    }

    /// A text; `None` if absent.
    pub(crate) fn text_or_none(&self, name: &str) -> Option<String> {
        self.0[name].as_str().map(ToOwned::to_owned)
    }

    /// Several texts.
    pub(crate) fn texts(&self, name: &str) -> Vec<String> {
        let items = self.0[name].as_array().into_iter().flatten();
        items.filter_map(|item| item.as_str().map(ToOwned::to_owned)).collect()
    }

    /// A whole number; `None` if absent. Others have no representation in the SDK's types.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, Failure> {
        match &self.0[name] {
            Value::Null => Ok(None),
            value => value.as_u64().map(Some).ok_or_else(|| {
                Failure::invalid(format!("{name} {value} is no whole number from 0 on"))
            }),
        }
    }

    /// A time in milliseconds; `None` if absent.
    pub(crate) fn time(&self, name: &str) -> Result<Option<Duration>, Failure> {
        Ok(self.number(name)?.map(Duration::from_millis))
    }

    /// `true` if the member is.
    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.0[name] == true
    }
}
