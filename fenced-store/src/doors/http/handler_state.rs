//! State of the HTTP handlers.

use std::sync::Arc;

use crate::doors::http::body_budget::BodyBudget;
use crate::guard::Guard;

/// Guard, memory and limits that all handlers share. Cheap to clone.
#[derive(Clone, Debug)]
pub struct HandlerState {
    pub(crate) guard: Arc<Guard>,
    pub(crate) body_budget: BodyBudget,
    /// Memory for objects being sent.
    pub(crate) reply_budget: BodyBudget,
    /// Maximum size of a body, in bytes.
    pub(crate) max_object_bytes: usize,
}

impl HandlerState {
    /// Makes the state of `guard`'s handlers. An object has at most `max_object_bytes`; all bodies
    /// being received have at most `max_body_bytes_in_all` together, and so have all being sent.
    pub fn new(guard: Arc<Guard>, max_object_bytes: usize, max_body_bytes_in_all: usize) -> Self {
        let body_budget = BodyBudget::new(max_body_bytes_in_all, max_object_bytes);
        let reply_budget = BodyBudget::new(max_body_bytes_in_all, max_object_bytes);
        Self { guard, body_budget, reply_budget, max_object_bytes }
    }
}
