//! The folder of `fence serve`.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use fence_protocol::Keyring;
use tempfile::{NamedTempFile, TempDir};

use crate::keys::new_key;
use fence_terminal::exit::{Failure, code};

/// Folder with all data.
#[derive(Debug)]
pub(super) enum Folder {
    /// Deleted when this is dropped.
    Temporary(TempDir),
    /// Kept.
    Given(PathBuf),
}

impl Folder {
    /// Makes the folder where it is missing.
    pub(super) fn open(dir: Option<PathBuf>) -> Result<Self, Failure> {
        let Some(dir) = dir else {
            let dir = tempfile::Builder::new().prefix("fencepost-").tempdir();
            return dir.map(Self::Temporary).map_err(|error| {
                cannot("a temporary folder cannot be made", &std::env::temp_dir(), &error)
            });
        };
        std::fs::create_dir_all(&dir)
            .map_err(|error| cannot("the folder cannot be made", &dir, &error))?;
        Ok(Self::Given(dir))
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Temporary(dir) => dir.path(),
            Self::Given(dir) => dir,
        }
    }

    pub(super) fn is_temporary(&self) -> bool {
        matches!(self, Self::Temporary(_))
    }

    /// The key file, made on the first start. Only its owner may read it: a reader of the keys can
    /// make tokens.
    pub(super) fn key_file(&self) -> Result<PathBuf, Failure> {
        let path = self.path().join("token-keys.txt");
        if path.exists() {
            let text = std::fs::read_to_string(&path)
                .map_err(|error| cannot("the key file cannot be read", &path, &error))?;
            Keyring::parse(&text)
                .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
            return Ok(path);
        }
        // Complete before it has its name: an interrupted start leaves no partial file. The
        // temporary file is made with mode 0600.
        let made = NamedTempFile::new_in(self.path()).and_then(|mut file| {
            writeln!(file, "# Signs fencing tokens: keep it secret. A line a key, kid:hex.")?;
            file.write_all(new_key("k1").as_bytes())?;
            file.as_file().sync_all()?;
            file.persist_noclobber(&path).map_err(|error| error.error)
        });
        made.map_err(|error| cannot("the key file cannot be made", &path, &error))?;
        Ok(path)
    }
}

pub(super) fn cannot(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    let message = format!("{what}: {}: {error}", path.display());
    Failure::new(code::UNAVAILABLE, message)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn keys_are_made_once_and_for_their_owner_alone() {
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("a/b");
        let made = Folder::open(Some(dir.clone())).unwrap().key_file().unwrap();
        let mode = std::fs::metadata(&made).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let text = std::fs::read_to_string(&made).unwrap();
        assert!(Keyring::parse(&text).is_ok());
        let again = Folder::open(Some(dir)).unwrap().key_file().unwrap();
        assert_eq!(std::fs::read_to_string(again).unwrap(), text);
    }

    #[test]
    fn a_damaged_key_file_is_refused_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token-keys.txt");
        std::fs::write(&path, "k1:short").unwrap();
        let failure = Folder::open(Some(dir.path().into())).unwrap().key_file().unwrap_err();
        assert_eq!(failure.code(), code::USAGE);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "k1:short");
    }
}
