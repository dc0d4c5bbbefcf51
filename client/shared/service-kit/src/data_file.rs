//! A redb file in a data folder: one clear error for each way in which it can be unusable, and
//! durable names for what was made.

use std::fs::{self, File};
use std::io;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};

use redb::{Database, DatabaseError, Durability, StorageError, WriteTransaction};

/// An error of whatever kind.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// A data folder that cannot be used: which, why, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {}: {problem}", path.display())]
pub struct FolderError {
    path: PathBuf,
    problem: String,
}

impl FolderError {
    /// The path, what is wrong with it, and what to do.
    pub fn new(path: &Path, problem: impl Into<String>) -> Self {
        Self { path: path.to_owned(), problem: problem.into() }
    }

    /// The path, the system's error, and what to do about one of its kind.
    pub fn of_io(path: &Path, error: &io::Error) -> Self {
        let next = match error.kind() {
            io::ErrorKind::PermissionDenied => "let this user write there, or name another folder",
            io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
                "a file is in the way; name a folder"
            }
            io::ErrorKind::StorageFull => "make room on the disk",
            _ => "name a folder on a local disk that this user may write to",
        };
        Self::new(path, format!("{error}; {next}"))
    }
}

/// The memory that redb may use as a cache.
const CACHE_BYTES: usize = 256 << 20;

const NOT_A_NEW_ONE: &str = "nothing was changed; restore it from a backup. Remove it, so that a \
    new one is made, only when no lease that it has seen can be alive: a new one knows neither \
    their tokens nor their marks";

/// Opens or makes the file in the folder and runs `first` in a first transaction.
///
/// # Errors
/// [`FolderError`] where the folder cannot be made or written, another process uses the file, or
/// the file is empty, damaged or not ours. An empty file would be taken for a new one, and what it
/// once held would be gone without a word.
pub fn open(
    folder: &Path,
    path: &Path,
    first: impl FnOnce(&WriteTransaction) -> Result<(), Cause>,
) -> Result<Database, FolderError> {
    fs::create_dir_all(folder).map_err(|error| FolderError::of_io(folder, &error))?;
    let is_new = !path.exists();
    if fs::metadata(path).is_ok_and(|file| file.len() == 0) {
        return Err(FolderError::new(path, format!("the file is empty; {NOT_A_NEW_ONE}")));
    }
    let open = || -> Result<Database, FolderError> {
        let mut builder = Database::builder();
        let database = builder.set_cache_size(CACHE_BYTES).create(path);
        let database = database.map_err(|error| explain(path, error))?;
        prepare(path, &database, first)?;
        Ok(database)
    };
    // redb panics on some kinds of damage.
    let database = std::panic::catch_unwind(AssertUnwindSafe(open)).unwrap_or_else(|_| {
        Err(FolderError::new(path, format!("the file is damaged; {NOT_A_NEW_ONE}")))
    })?;
    if is_new {
        // Without this, a crash may leave a folder that does not know its new file, or a parent
        // that does not know the folder, although commits to the file were durable.
        sync_folder(folder).map_err(|error| FolderError::of_io(folder, &error))?;
        if let Some(parent) = folder.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            // The parent may belong to another user; then this process did not make the folder.
            let _ = sync_folder(parent);
        }
    }
    Ok(database)
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

fn explain(path: &Path, error: DatabaseError) -> FolderError {
    let problem = match error {
        DatabaseError::DatabaseAlreadyOpen => {
            "another process is using it; stop that one, or name another folder".to_owned()
        }
        DatabaseError::Storage(StorageError::Io(error))
            if !matches!(
                error.kind(),
                io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
            ) =>
        {
            return FolderError::of_io(path, &error);
        }
        other => format!("the file is damaged or not ours ({other}); {NOT_A_NEW_ONE}"),
    };
    FolderError::new(path, problem)
}

fn prepare(
    path: &Path,
    database: &Database,
    prepare: impl FnOnce(&WriteTransaction) -> Result<(), Cause>,
) -> Result<(), FolderError> {
    let run = || -> Result<(), Cause> {
        let mut transaction = database.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        prepare(&transaction)?;
        transaction.commit()?;
        Ok(())
    };
    run().map_err(|error| FolderError::new(path, format!("its tables cannot be opened: {error}")))
}
