//! A disk in memory that loses what was not synced.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use super::super::disk::{Disk, DiskFile};
use super::Numbers;

/// Bytes that a disk writes whole or not at all.
const SECTOR: usize = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Op {
    List,
    Open,
    Create,
    Rename,
    Remove,
    SyncFolder,
    Read,
    Write,
    SetLen,
    Sync,
}

/// An operation that fails once, after `skip` others of its kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    pub(super) op: Op,
    pub(super) skip: u32,
    pub(super) error: io::ErrorKind,
}

#[derive(Clone, Debug, Default)]
struct Content {
    seen: Vec<u8>,
    durable: Vec<u8>,
    /// Numbers of the sectors that the next sync writes.
    dirty: BTreeSet<usize>,
}

type Names = BTreeMap<String, usize>;

/// A change of the folder that the next sync of it makes durable.
#[derive(Clone, Debug)]
enum NameChange {
    Insert(String, usize),
    Move(String, String, usize),
    Remove(String),
}

impl NameChange {
    fn apply(&self, names: &mut Names) {
        match self {
            Self::Insert(name, id) => drop(names.insert(name.clone(), *id)),
            Self::Move(from, to, id) => {
                names.remove(from);
                names.insert(to.clone(), *id);
            }
            Self::Remove(name) => drop(names.remove(name)),
        }
    }
}

#[derive(Debug, Default)]
struct SimState {
    contents: Vec<Content>,
    names: Names,
    durable_names: Names,
    /// Changes since the folder was synced; a crash leaves any part of them.
    name_changes: Vec<NameChange>,
    operations: u64,
    /// From this operation on, all fail: the machine lost its power.
    crash_at: Option<u64>,
    crashed_in: Option<(Op, String)>,
    faults: Vec<Fault>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct SimDisk(Arc<Mutex<SimState>>);

#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    id: usize,
    name: String,
}

impl SimDisk {
    pub(super) fn crash_at(&self, operation: u64) {
        let mut state = self.0.lock().unwrap();
        state.crash_at = Some(state.operations + operation);
    }

    pub(super) fn inject(&self, fault: Fault) {
        self.0.lock().unwrap().faults.push(fault);
    }

    /// Holds up every operation until the value is dropped.
    pub(super) fn pause(&self) -> impl Drop + use<'_> {
        self.0.lock().unwrap()
    }

    /// The operation during which the power was lost, with the name of the file.
    pub(super) fn crashed_in(&self) -> Option<(Op, String)> {
        self.0.lock().unwrap().crashed_in.clone()
    }

    /// The disk after a loss of power: of what was not synced, any part is there.
    pub(super) fn after_crash(&self, numbers: &mut Numbers) -> Self {
        let state = self.0.lock().unwrap();
        let mut names = state.durable_names.clone();
        for change in &state.name_changes {
            if numbers.below(2) == 0 {
                change.apply(&mut names);
            }
        }
        let contents = state.contents.iter().map(|content| content.after_crash(numbers)).collect();
        let durable_names = names.clone();
        let state = SimState { contents, names, durable_names, ..SimState::default() };
        Self(Arc::new(Mutex::new(state)))
    }

    /// The disk as another process of the same machine sees it.
    pub(super) fn heal(&self) {
        let mut state = self.0.lock().unwrap();
        (state.crash_at, state.crashed_in) = (None, None);
        state.faults.clear();
    }

    fn act<T>(
        &self,
        op: Op,
        name: &str,
        act: impl FnOnce(&mut SimState) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut state = self.0.lock().unwrap();
        state.check(op, name)?;
        act(&mut state)
    }
}

impl SimState {
    fn check(&mut self, op: Op, name: &str) -> io::Result<()> {
        let at = self.operations;
        self.operations += 1;
        if self.crash_at.is_some_and(|crash| crash <= at) {
            self.crashed_in.get_or_insert_with(|| (op, name.to_owned()));
            return Err(io::Error::other("the power is gone"));
        }
        let Some(found) = self.faults.iter().position(|fault| fault.op == op) else {
            return Ok(());
        };
        match self.faults[found].skip.checked_sub(1) {
            Some(skip) => self.faults[found].skip = skip,
            None => return Err(self.faults.remove(found).error.into()),
        }
        Ok(())
    }

    fn change_names(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.name_changes.push(change);
    }
}

impl Content {
    fn write(&mut self, bytes: &[u8], at: usize) {
        self.resize(self.seen.len().max(at + bytes.len()));
        self.seen[at..at + bytes.len()].copy_from_slice(bytes);
        self.dirty.extend(at / SECTOR..(at + bytes.len()).div_ceil(SECTOR));
    }

    fn resize(&mut self, len: usize) {
        let shorter = self.seen.len().min(len);
        let longer = self.seen.len().max(len);
        self.dirty.extend(shorter / SECTOR..longer.div_ceil(SECTOR));
        self.seen.resize(len, 0);
    }

    fn sync(&mut self) {
        self.durable.resize(self.seen.len(), 0);
        for sector in std::mem::take(&mut self.dirty) {
            let start = (sector * SECTOR).min(self.seen.len());
            let end = (start + SECTOR).min(self.seen.len());
            self.durable[start..end].copy_from_slice(&self.seen[start..end]);
        }
    }

    fn after_crash(&self, numbers: &mut Numbers) -> Self {
        let is_long = numbers.below(2) == 0;
        let len = if is_long { self.seen.len() } else { self.durable.len() };
        let mut durable = self.durable.clone();
        durable.resize(len, 0);
        for sector in &self.dirty {
            let known = self.seen.len().min(len);
            let start = (sector * SECTOR).min(known);
            let end = (start + SECTOR).min(known);
            if numbers.below(2) == 0 {
                durable[start..end].copy_from_slice(&self.seen[start..end]);
            }
        }
        Self { seen: durable.clone(), durable, dirty: BTreeSet::new() }
    }
}

impl Disk for SimDisk {
    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from("sim").join(name)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.act(Op::List, "", |state| Ok(state.names.keys().cloned().collect()))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let id = self.act(Op::Open, name, |state| {
            state.names.get(name).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
        })?;
        Ok(Box::new(SimFile { disk: self.clone(), id, name: name.to_owned() }))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let id = self.act(Op::Create, name, |state| {
            let id = state.contents.len();
            state.contents.push(Content::default());
            state.change_names(NameChange::Insert(name.to_owned(), id));
            Ok(id)
        })?;
        Ok(Box::new(SimFile { disk: self.clone(), id, name: name.to_owned() }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.act(Op::Rename, to, |state| {
            let id = *state.names.get(from).ok_or(io::ErrorKind::NotFound)?;
            state.change_names(NameChange::Move(from.to_owned(), to.to_owned(), id));
            Ok(())
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.act(Op::Remove, name, |state| {
            state.change_names(NameChange::Remove(name.to_owned()));
            Ok(())
        })
    }

    fn sync_folder(&self) -> io::Result<()> {
        self.act(Op::SyncFolder, "", |state| {
            state.name_changes.clear();
            state.durable_names = state.names.clone();
            Ok(())
        })
    }
}

impl SimFile {
    fn act<T>(&self, op: Op, act: impl FnOnce(&mut Content) -> io::Result<T>) -> io::Result<T> {
        self.disk.act(op, &self.name, |state| act(&mut state.contents[self.id]))
    }
}

impl DiskFile for SimFile {
    fn len(&self) -> io::Result<u64> {
        self.act(Op::Read, |content| Ok(content.seen.len() as u64))
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        let at = usize::try_from(at).unwrap();
        self.act(Op::Read, |content| {
            let bytes = content.seen.get(at..at + buffer.len());
            buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        })
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let at = usize::try_from(at).unwrap();
        let mut state = self.disk.0.lock().unwrap();
        let was_off = state.crashed_in.is_some();
        let checked = state.check(Op::Write, &self.name);
        let part = match &checked {
            Ok(()) => bytes,
            Err(_) if was_off => &[],
            Err(_) => &bytes[..bytes.len() * 2 / 3],
        };
        state.contents[self.id].write(part, at);
        checked
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.act(Op::SetLen, |content| {
            content.resize(usize::try_from(len).unwrap());
            Ok(())
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        let synced = self.act(Op::Sync, |content| {
            content.sync();
            Ok(())
        });
        let mut state = self.disk.0.lock().unwrap();
        if synced.is_err() && state.crashed_in.is_none() {
            // As Linux does: what could not be written is marked as clean.
            state.contents[self.id].dirty.clear();
        }
        synced
    }
}
