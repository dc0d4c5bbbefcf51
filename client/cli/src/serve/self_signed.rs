//! The CA and the server certificate of `fence serve --tls-self-signed`.

use std::fs::Permissions;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use service_kit::clock::{Clock as _, SystemClock};

use super::folder::cannot;
use fence_terminal::exit::Failure;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// A CA that has ended has to be copied to every client again.
const CA_DAYS: u32 = 3650;
/// Every start makes a new server certificate, for the names and addresses of that start.
const SERVER_DAYS: u32 = 365;

/// Files of the certificates.
#[derive(Debug)]
pub(super) struct SelfSigned {
    /// Certificate of the CA, which clients need. Made once.
    pub(super) ca: PathBuf,
    /// Certificate of both services.
    pub(super) certificate: PathBuf,
    /// Its private key.
    pub(super) key: PathBuf,
}

impl SelfSigned {
    /// Makes what is missing in `folder`, and a server certificate for `names`, which may be
    /// addresses.
    pub(super) fn prepare(folder: &Path, names: Vec<String>) -> Result<Self, Failure> {
        let folder = std::path::absolute(folder.join("tls"))
            .map_err(|error| cannot("the folder has no path", folder, &error))?;
        let file = |name: &str| folder.join(name);
        std::fs::create_dir_all(&folder)
            .map_err(|error| cannot("the folder cannot be made", &folder, &error))?;
        let made =
            Self { ca: file("ca.pem"), certificate: file("server.pem"), key: file("server.key") };
        let issuer = made.issuer(&file("ca.key"))?;
        let key = KeyPair::generate().map_err(unusable)?;
        let mut params = CertificateParams::new(names).map_err(unusable)?;
        lasting(&mut params, SERVER_DAYS);
        params.distinguished_name.push(DnType::CommonName, "Fencepost");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &issuer).map_err(unusable)?;
        write(&made.key, &key.serialize_pem(), 0o600)?;
        write(&made.certificate, &certificate.pem(), 0o644)?;
        Ok(made)
    }

    /// The CA of an earlier start, or a new one.
    fn issuer(&self, key_file: &Path) -> Result<Issuer<'static, KeyPair>, Failure> {
        let mut params = CertificateParams::default();
        lasting(&mut params, CA_DAYS);
        params.distinguished_name.push(DnType::CommonName, "CA of fence serve");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = match (key_file.exists(), self.ca.exists()) {
            (true, true) => {
                let pem = std::fs::read_to_string(key_file).map_err(|error| {
                    cannot("the key of the CA cannot be read", key_file, &error)
                })?;
                KeyPair::from_pem(&pem).map_err(|error| {
                    let file = key_file.display();
                    Failure::usage(format!("{file} is no private key ({error}); {NEW_CA}"))
                })?
            }
            // The key comes first, so a start may have been interrupted in between.
            (_, false) => {
                let key = KeyPair::generate().map_err(unusable)?;
                write(key_file, &key.serialize_pem(), 0o600)?;
                let certificate = params.self_signed(&key).map_err(unusable)?;
                write(&self.ca, &certificate.pem(), 0o644)?;
                key
            }
            (false, true) => {
                let file = key_file.display();
                return Err(Failure::usage(format!("{file} is missing; {NEW_CA}")));
            }
        };
        Ok(Issuer::new(params, key))
    }
}

const NEW_CA: &str = "remove ca.pem beside it for a new CA, which every client then needs";

/// Names for which both services get a certificate: this machine's, and what is listened on.
pub(super) fn names(hosts: &[String], listens: &[SocketAddr]) -> Vec<String> {
    let fixed = ["localhost", "127.0.0.1", "::1"].map(ToOwned::to_owned);
    let listens = listens.iter().map(SocketAddr::ip).filter(|ip| !ip.is_unspecified());
    let mut names: Vec<String> = fixed.into();
    for name in listens.map(|ip: IpAddr| ip.to_string()).chain(hosts.iter().cloned()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Valid from yesterday, for clients whose clock is behind.
fn lasting(params: &mut CertificateParams, days: u32) {
    let now = Duration::from_millis(SystemClock::new().wall_ms());
    params.not_before = date_time_ymd(1970, 1, 1) + now.saturating_sub(DAY);
    params.not_after = date_time_ymd(1970, 1, 1) + now + DAY * days;
}

/// Writes a file whole or not at all; the mode is its own from the beginning.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    let folder = path.parent().unwrap_or(path);
    let made = tempfile::Builder::new()
        .permissions(Permissions::from_mode(mode))
        .tempfile_in(folder)
        .and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.as_file().sync_all()?;
            file.persist(path).map_err(|error| error.error)
        });
    made.map(drop).map_err(|error| cannot("the file cannot be written", path, &error))
}

fn unusable(error: rcgen::Error) -> Failure {
    Failure::internal(format!("a certificate cannot be made: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ca_stays_and_keys_are_for_their_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let first = SelfSigned::prepare(dir.path(), vec!["a.example".to_owned()]).unwrap();
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        let ca = read(&first.ca);
        let leaf = read(&first.certificate);
        for key in ["tls/ca.key", "tls/server.key"] {
            let mode = std::fs::metadata(dir.path().join(key)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{key}");
        }
        let again = SelfSigned::prepare(dir.path(), vec!["b.example".to_owned()]).unwrap();
        assert_eq!(read(&again.ca), ca);
        assert_ne!(read(&again.certificate), leaf);
        std::fs::write(dir.path().join("tls/ca.key"), "damaged").unwrap();
        let failure = SelfSigned::prepare(dir.path(), Vec::new()).unwrap_err().to_string();
        assert!(failure.contains("remove ca.pem"), "{failure}");
        std::fs::remove_file(dir.path().join("tls/ca.key")).unwrap();
        assert!(SelfSigned::prepare(dir.path(), Vec::new()).is_err());
        assert_eq!(read(&again.ca), ca);
    }

    #[test]
    fn names_are_of_this_machine_and_of_what_is_listened_on() {
        let listens = ["0.0.0.0:7420", "10.0.0.5:7421"].map(|addr| addr.parse().unwrap());
        assert_eq!(
            names(&["locks.example".to_owned(), "box".to_owned()], &listens),
            ["localhost", "127.0.0.1", "::1", "10.0.0.5", "locks.example", "box"]
        );
    }
}
