//! Reading a small file that a flag names.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// The text of a file that must not be longer than `most` bytes.
///
/// # Errors
/// A sentence that begins with the file.
pub fn read_text(file: &Path, most: u64) -> Result<String, String> {
    let text = String::from_utf8(read_bounded(file, most)?);
    text.map_err(|_| format!("{} is no UTF-8 text", file.display()))
}

/// The bytes of a file that must not be longer than `most`.
///
/// # Errors
/// A sentence that begins with the file.
pub fn read_bounded(file: &Path, most: u64) -> Result<Vec<u8>, String> {
    // The variable of a flag that names a file is easily given what the file holds, which may be a
    // secret: it is not repeated.
    if file.as_os_str().as_encoded_bytes().contains(&b'\n') {
        return Err("what is given holds a line's end: it is the content of a file and no name; \
                    name the file"
            .to_owned());
    }
    let mut bytes = Vec::new();
    File::open(file)
        .and_then(|opened| opened.take(most + 1).read_to_end(&mut bytes))
        .map_err(|error| format!("{} cannot be read: {error}", file.display()))?;
    if bytes.len() as u64 > most {
        return Err(format!("{} is longer than {most} bytes", file.display()));
    }
    Ok(bytes)
}
