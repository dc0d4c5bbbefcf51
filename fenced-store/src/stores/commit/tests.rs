//! Group commit over a working and over a failing disk.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use redb::backends::InMemoryBackend;
use redb::{ReadableTable as _, StorageBackend, TableDefinition};
use service_kit::tasks::Tasks;

use super::*;

const NUMBERS: TableDefinition<'_, u64, u64> = TableDefinition::new("numbers");

/// A disk whose syncs can be counted, held up and made to fail.
#[derive(Clone, Debug, Default)]
struct Disk {
    inner: Arc<InMemoryBackend>,
    syncs: Arc<AtomicUsize>,
    fails: Arc<AtomicBool>,
    busy: Arc<Mutex<()>>,
}

impl StorageBackend for Disk {
    fn len(&self) -> Result<u64, std::io::Error> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), std::io::Error> {
        self.inner.read(offset, out)
    }

    fn set_len(&self, len: u64) -> Result<(), std::io::Error> {
        self.inner.set_len(len)
    }

    fn sync_data(&self) -> Result<(), std::io::Error> {
        let _not_while_held_up = self.busy.lock().unwrap();
        self.syncs.fetch_add(1, Ordering::SeqCst);
        match self.fails.load(Ordering::SeqCst) {
            true => Err(std::io::Error::other("the disk is gone")),
            false => Ok(()),
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), std::io::Error> {
        self.inner.write(offset, data)
    }
}

fn committer(disk: &Disk, health: &Health) -> Committer {
    let database = Database::builder().create_with_backend(disk.clone()).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(NUMBERS).unwrap();
    transaction.commit().unwrap();
    Committer::start(database, PathBuf::from("test"), health).unwrap()
}

async fn insert(file: &Committer, number: u64) -> Result<u64, StoreError> {
    file.submit(8, move |transaction| {
        let mut numbers = transaction.open_table(NUMBERS)?;
        numbers.insert(number, number)?;
        Ok(Done { answer: numbers.iter()?.count() as u64, changed: true })
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_together_is_committed_together() {
    let disk = Disk::default();
    let tasks = Tasks::new();
    let file = Arc::new(committer(&disk, &Health::new()));
    let busy = disk.busy.clone();
    let before = disk.syncs.load(Ordering::SeqCst);
    let answers: Vec<_> = {
        let _held_up = busy.lock().unwrap();
        (0..100u64)
            .map(|number| {
                let file = Arc::clone(&file);
                tasks.spawn(async move { insert(&file, number).await })
            })
            .collect()
    };
    for answer in answers {
        assert!(answer.await.unwrap().is_ok());
    }
    let syncs = disk.syncs.load(Ordering::SeqCst) - before;
    assert!(syncs < 100, "{syncs} syncs for 100 writes");
    let count = file.read(|snapshot| Ok(snapshot.open_table(NUMBERS)?.iter()?.count())).await;
    assert_eq!(count, Ok(100));
}

#[tokio::test]
async fn nothing_is_answered_before_it_is_durable() {
    let disk = Disk::default();
    let file = Arc::new(committer(&disk, &Health::new()));
    let before = disk.syncs.load(Ordering::SeqCst);
    assert_eq!(insert(&file, 1).await, Ok(1));
    assert!(disk.syncs.load(Ordering::SeqCst) > before);
}

#[tokio::test]
async fn a_failed_commit_is_unknown_and_everything_after_it_is_refused() {
    let disk = Disk::default();
    let health = Health::new();
    let file = committer(&disk, &health);
    assert_eq!(insert(&file, 1).await, Ok(1));
    assert!(health.is_ready());
    disk.fails.store(true, Ordering::SeqCst);
    assert!(matches!(insert(&file, 2).await, Err(StoreError::Unknown(_))));
    assert!(!health.is_ready());
    // A disk that seems to have recovered is not used again.
    disk.fails.store(false, Ordering::SeqCst);
    assert!(matches!(insert(&file, 3).await, Err(StoreError::Unavailable(_))));
    let read = file.read(|_| Ok(())).await;
    assert!(matches!(read, Err(StoreError::Unavailable(_))), "{read:?}");
}

#[tokio::test]
async fn a_job_that_fails_takes_its_transaction_with_it() {
    let disk = Disk::default();
    let health = Health::new();
    let file = committer(&disk, &health);
    let failed = file.submit(8, |transaction| {
        transaction.open_table(NUMBERS)?.insert(7, 7)?;
        Err::<Done<()>, Cause>("no".into())
    });
    assert!(matches!(failed.await, Err(StoreError::Unavailable(_))));
    assert!(!health.is_ready(), "the file is not used again");
    let snapshot = redb::ReadableDatabase::begin_read(&*file.database).unwrap();
    assert_eq!(snapshot.open_table(NUMBERS).unwrap().iter().unwrap().count(), 0);
}

#[tokio::test]
async fn a_writer_that_panics_is_no_silence() {
    let disk = Disk::default();
    let health = Health::new();
    let file = committer(&disk, &health);
    let panicked = file.submit(8, |_| -> Result<Done<()>, Cause> { panic!("damage") }).await;
    assert!(matches!(panicked, Err(StoreError::Unknown(_))), "{panicked:?}");
    assert!(insert(&file, 1).await.is_err());
}

#[test]
fn an_unusable_folder_is_one_clear_error() {
    let folder = tempfile::tempdir().unwrap();
    let open = |folder: &Path| {
        Committer::open(folder, "x.redb", &Health::new(), |_| Ok(())).map_err(|e| e.to_string())
    };
    let first = open(folder.path()).unwrap();
    let error = open(folder.path()).unwrap_err();
    assert!(error.contains("another process is using it"), "{error}");
    assert!(error.contains("x.redb"), "{error}");
    drop(first);
    assert!(open(folder.path()).is_ok(), "the writer lets go of the file");
    for damage in [&b""[..], b"not a database at all"] {
        std::fs::write(folder.path().join("x.redb"), damage).unwrap();
        let error = open(folder.path()).unwrap_err();
        assert!(error.contains("restore it from a backup"), "{error}");
    }
    let error = open(&folder.path().join("x.redb")).unwrap_err();
    assert!(error.contains("a file is in the way"), "{error}");
}
