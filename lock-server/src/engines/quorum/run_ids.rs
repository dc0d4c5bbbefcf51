//! Run ids of the nodes, so that two URLs for one node are noticed.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use redis_link::LinkState;
use tokio::sync::watch;

/// Process of each node, when its connection was last verified.
#[derive(Debug)]
pub(super) struct Runs {
    processes: Mutex<Vec<Option<Process>>>,
    links: OnceLock<Vec<watch::Receiver<LinkState>>>,
}

#[derive(Clone, Debug)]
struct Process {
    run_id: String,
    /// True once its connection was verified; else that is under way.
    is_verified: bool,
}

/// A verification that is under way; dropped before it is kept, it leaves nothing behind.
#[derive(Debug)]
pub(super) struct Verifying<'a> {
    runs: &'a Runs,
    index: usize,
}

impl Runs {
    pub(super) fn new(n: usize) -> Self {
        Self { processes: Mutex::new(vec![None; n]), links: OnceLock::new() }
    }

    /// Whose connections they are: what was verified on one that is lost counts no more, because
    /// the address may lead elsewhere by now, and the process be found behind another one.
    pub(super) fn follow(&self, links: Vec<watch::Receiver<LinkState>>) {
        // Set once, where the nodes are made.
        let _ = self.links.set(links);
    }

    fn processes(&self) -> MutexGuard<'_, Vec<Option<Process>>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the process that a new connection of a node leads to.
    ///
    /// # Errors
    /// The number of another node that is the same process.
    pub(super) fn record(&self, index: usize, run_id: &str) -> Result<Verifying<'_>, usize> {
        let mut processes = self.processes();
        if let Some(own) = processes.get_mut(index) {
            *own = None;
        }
        let is_same = |(other, process): &(usize, &Option<Process>)| {
            process.as_ref().is_some_and(|process| {
                process.run_id == run_id && (!process.is_verified || self.is_up(*other))
            })
        };
        if let Some((other, _)) = processes.iter().enumerate().find(is_same) {
            return Err(other);
        }
        if let Some(own) = processes.get_mut(index) {
            *own = Some(Process { run_id: run_id.to_owned(), is_verified: false });
        }
        Ok(Verifying { runs: self, index })
    }

    fn is_up(&self, node: usize) -> bool {
        let link = self.links.get().and_then(|links| links.get(node));
        link.is_none_or(|link| matches!(*link.borrow(), LinkState::Up(_)))
    }
}

impl Verifying<'_> {
    /// The connection is as it should be.
    pub(super) fn keep(self) {
        if let Some(Some(process)) = self.runs.processes().get_mut(self.index) {
            process.is_verified = true;
        }
    }
}

impl Drop for Verifying<'_> {
    fn drop(&mut self) {
        if let Some(process) = self.runs.processes().get_mut(self.index) {
            process.take_if(|process| !process.is_verified);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up() -> LinkState {
        LinkState::Up(1)
    }

    #[test]
    fn one_process_is_one_node() {
        let runs = Runs::new(3);
        runs.record(0, "a").unwrap().keep();
        assert_eq!(runs.record(1, "a").unwrap_err(), 0);
        runs.record(1, "b").unwrap().keep();
        runs.record(0, "a").unwrap().keep();
        let under_way = runs.record(2, "c").unwrap();
        assert_eq!(runs.record(1, "c").unwrap_err(), 2, "it is being verified");
        drop(under_way);
        runs.record(1, "c").unwrap().keep();
    }

    /// The addresses of two nodes change places, and no process ends.
    #[test]
    fn a_connection_that_is_lost_is_in_nobodys_way() {
        let runs = Runs::new(2);
        let links = [watch::channel(up()), watch::channel(up())];
        runs.follow(links.iter().map(|(_, link)| link.clone()).collect());
        runs.record(0, "a").unwrap().keep();
        runs.record(1, "b").unwrap().keep();
        assert_eq!(runs.record(0, "b").unwrap_err(), 1, "both lead to one process");
        // The second one is lost, and its new address answers nothing.
        links[1].0.send_replace(LinkState::Down("cut".to_owned()));
        runs.record(0, "b").unwrap().keep();
        assert_eq!(runs.record(1, "b").unwrap_err(), 0);
        runs.record(1, "a").unwrap().keep();
    }
}
