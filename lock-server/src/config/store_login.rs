//! Who the server is to a store behind a network, and whom it trusts there.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::store::{StoreLogin, StoreTls};

/// The largest file that is read, in bytes.
const FILE_MAX: u64 = 1024 * 1024;

/// The flags `--store-…`.
#[derive(Clone, Debug, Default, Args)]
pub struct StoreLoginFlags {
    /// The file with the certificates of the authorities that sign for the store, as PEM; without it
    /// those of the system are trusted. For TLS alone.
    #[arg(long, value_name = "FILE", global = true)]
    pub store_ca: Option<PathBuf>,
    /// The file with this server's own certificate for the store, as PEM. For TLS alone.
    #[arg(long, value_name = "FILE", global = true)]
    pub store_cert: Option<PathBuf>,
    /// The file with the private key of that certificate, as PEM.
    #[arg(long, value_name = "FILE", global = true)]
    pub store_key: Option<PathBuf>,
    /// The store's user that this server is.
    #[arg(long, value_name = "NAME", global = true)]
    pub store_user: Option<String>,
    /// The file with the password of that user.
    #[arg(long, value_name = "FILE", global = true)]
    pub store_password_file: Option<PathBuf>,
}

impl StoreLoginFlags {
    /// Reads the files.
    ///
    /// # Errors
    /// A sentence where one cannot be read, or where one is there without the other.
    pub fn read(&self) -> Result<StoreLogin, String> {
        let identity = match (&self.store_cert, &self.store_key) {
            (Some(cert), Some(key)) => {
                let mut pem = content("--store-cert", cert)?;
                pem.push(b'\n');
                pem.extend(content("--store-key", key)?);
                Some(pem)
            }
            (Some(_), None) => return Err("--store-cert is there without --store-key".to_owned()),
            (None, Some(_)) => return Err("--store-key is there without --store-cert".to_owned()),
            (None, None) => None,
        };
        let ca = self.store_ca.as_deref().map(|ca| content("--store-ca", ca)).transpose()?;
        let password = self.store_password_file.as_deref().map(password).transpose()?;
        let tls = StoreTls { ca, identity };
        Ok(StoreLogin { user: self.store_user.clone(), password, tls })
    }
}

fn password(path: &Path) -> Result<String, String> {
    let bytes = content("--store-password-file", path)?;
    let text = String::from_utf8(bytes)
        .map_err(|_| format!("--store-password-file {} is no text", path.display()))?;
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err(format!("--store-password-file {} is empty", path.display())),
        password => Ok(password.to_owned()),
    }
}

fn content(flag: &str, path: &Path) -> Result<Vec<u8>, String> {
    let unreadable =
        |error: std::io::Error| format!("{flag} {} cannot be read: {error}", path.display());
    let length = std::fs::metadata(path).map_err(unreadable)?.len();
    if length > FILE_MAX {
        return Err(format!("{flag} {} has more than {FILE_MAX} bytes", path.display()));
    }
    std::fs::read(path).map_err(unreadable)
}
