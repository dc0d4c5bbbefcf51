//! The form of records, waiters and sessions in engines: `MessagePack`, which is half as long as
//! JSON and faster to read and write. Those that were written as JSON are read too.

use rmp_serde::Deserializer;
use rmp_serde::decode::Error;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// First byte of JSON; in MessagePack it is a number, which nothing stored is.
const BRACE: u8 = b'{';

/// Deepest nesting that is read; what is stored has six levels.
const DEPTH_MAX: usize = 16;

/// Room for a record with a holder and eight leases that have ended.
const USUAL_BYTES: usize = 768;

/// Encodes a [`StoredRecord`](crate::StoredRecord), a [`StoredWaiter`](crate::StoredWaiter) or a
/// [`StoredSession`](crate::StoredSession).
pub fn to_bytes(stored: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(USUAL_BYTES);
    match rmp_serde::encode::write_named(&mut bytes, stored) {
        Ok(()) => bytes,
        // The only cause is a writer that fails.
        Err(_) => Vec::new(),
    }
}

/// Decodes what [`to_bytes`] has encoded, or a version before it as JSON.
///
/// # Errors
/// A clause that says where the bytes are not in the form.
pub fn from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    if bytes.first() == Some(&BRACE) {
        return serde_json::from_slice(bytes).map_err(|error| error.to_string());
    }
    let mut rest = bytes;
    let mut reader = Deserializer::new(&mut rest);
    reader.set_max_depth(DEPTH_MAX);
    let read = T::deserialize(&mut reader);
    let value = read.map_err(|error: Error| error.to_string())?;
    match rest.len() {
        0 => Ok(value),
        more => Err(format!("{more} bytes stand behind its end")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{StoredRecord, StoredSession};

    const RECORD: &str = r#"{"h":[{"i":"11111111-1111-4111-8111-111111111111","t":-2,"o":"worker",
        "m":{"p":3},"s":"33333333-3333-4333-8333-333333333333","l":15000,"x":"{}","g":40,"u":15040,
        "a":7,"v":true}],"c":[{"o":"b","t":9,"d":40,"g":1,"u":2}],
        "e":[{"i":"22222222-2222-4222-8222-222222222222","t":33,"r":"revoked","h":5,"u":27}]}"#;

    #[test]
    fn what_was_written_as_json_is_read_and_written_as_bytes() {
        let before: StoredRecord = from_bytes(RECORD.as_bytes()).unwrap();
        let bytes = to_bytes(&before);
        assert_eq!(from_bytes::<StoredRecord>(&bytes).unwrap(), before);
        let json = serde_json::to_string(&before).unwrap();
        assert!(bytes.len() * 10 < json.len() * 6, "{} and {}", bytes.len(), json.len());
        let session: StoredSession = from_bytes(br#"{"o":"a","l":1000,"g":1,"u":2}"#).unwrap();
        assert_eq!(from_bytes::<StoredSession>(&to_bytes(&session)).unwrap(), session);
        let none = to_bytes(&StoredRecord::default());
        assert_eq!(from_bytes::<StoredRecord>(&none).unwrap(), StoredRecord::default());
    }

    #[test]
    fn bytes_that_are_no_record_are_refused() {
        let record: StoredRecord = from_bytes(RECORD.as_bytes()).unwrap();
        let whole = to_bytes(&record);
        for end in 0..whole.len() {
            assert!(from_bytes::<StoredRecord>(&whole[..end]).is_err(), "{end}");
        }
        let longer = [&whole[..], b"x"].concat();
        let refusal = from_bytes::<StoredRecord>(&longer).unwrap_err();
        assert_eq!(refusal, "1 bytes stand behind its end");
        // In a member that is not known, which is skipped.
        let deep = [&[0x81, 0xa1, b'z'][..], &[0x91; 1_000], &[0xc0]].concat();
        let refusal = from_bytes::<StoredRecord>(&deep).unwrap_err();
        assert!(refusal.contains("depth"), "{refusal}");
        let nil = [&[0x81, 0xa1, b'e', 0x91, 0x83, 0xa1, b'i', 0xc4, 16][..], &[0; 16]].concat();
        let rest = [&nil[..], b"\xa1r\xa8released\xa1h\x05"].concat();
        let refusal = from_bytes::<StoredRecord>(&rest).unwrap_err();
        assert!(refusal.contains("nil UUID"), "{refusal}");
    }
}
