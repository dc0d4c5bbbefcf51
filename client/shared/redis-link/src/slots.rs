//! Asking the nodes of a Redis Cluster which of them owns a slot.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::{RedisError, Value, cmd};

use crate::access::Access;
use crate::url::address_text;

/// Number of hash slots of a cluster.
pub const SLOTS: u16 = 16384;

/// Consecutive slots and the master that owns them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotRange {
    /// The first slot.
    pub first: u16,
    /// The last slot.
    pub last: u16,
    /// `host:port` of the master.
    pub master: String,
}

/// One slot of a cluster.
#[derive(Clone, Debug)]
pub(crate) struct SlotOwner {
    seeds: Vec<(String, u16)>,
    slot: u16,
    /// Key of the slot that an idle connection may read.
    pub(crate) key: Option<Arc<[u8]>>,
    /// Number of questions so far. Each time another node is asked first: one that is cut off from
    /// the rest would otherwise continue to name an owner that it no longer is.
    asked: Arc<AtomicUsize>,
}

impl SlotOwner {
    /// The owner of the slot of `key`, known to the nodes at `seeds`.
    pub(crate) fn new(seeds: Vec<(String, u16)>, key: &[u8]) -> Self {
        Self { seeds, slot: slot_of(key), key: None, asked: Arc::default() }
    }

    /// The owner of the slot of another key, which the login may read.
    pub(crate) fn with_key(&self, key: &[u8]) -> Self {
        let slot = slot_of(key);
        let key = Some(key.into());
        Self { slot, key, asked: Arc::default(), ..self.clone() }
    }

    /// The address of the slot's master, from the first node that answers.
    pub(crate) async fn resolve(
        &self,
        access: &Access,
        timeout: Duration,
    ) -> Result<(String, u16), String> {
        let mut reasons = Vec::new();
        let first = self.asked.fetch_add(1, Ordering::Relaxed) % self.seeds.len();
        for (host, port) in self.seeds[first..].iter().chain(&self.seeds[..first]) {
            match ask_one(host, *port, access, timeout).await {
                Ok(ranges) => match owner(&ranges, self.slot) {
                    Some(address) => return Ok(address),
                    None => reasons.push(format!(
                        "{} says that no node owns slot {}",
                        address_text(host, *port),
                        self.slot
                    )),
                },
                Err(reason) => reasons.push(reason),
            }
        }
        Err(format!(
            "no node of the cluster says who owns slot {}: {}",
            self.slot,
            reasons.join("; ")
        ))
    }
}

pub(crate) fn owner(ranges: &[SlotRange], slot: u16) -> Option<(String, u16)> {
    let range = ranges.iter().find(|range| (range.first..=range.last).contains(&slot))?;
    let (host, port) = range.master.rsplit_once(':')?;
    Some((host.trim_matches(['[', ']']).to_owned(), port.parse().ok()?))
}

pub(crate) async fn ask_one(
    host: &str,
    port: u16,
    access: &Access,
    timeout: Duration,
) -> Result<Vec<SlotRange>, String> {
    let address = address_text(host, port);
    let asked = async {
        let client = access.client(host, port)?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        cmd("CLUSTER").arg("SLOTS").query_async::<Value>(&mut connection).await
    };
    match tokio::time::timeout(timeout, asked).await {
        Ok(Ok(reply)) => ranges(reply, host)
            .ok_or_else(|| format!("what {address} answered to CLUSTER SLOTS cannot be read")),
        Ok(Err(error)) => {
            Err(refusal(&address, &error, access.explain(&error, host, port).await.text()))
        }
        Err(_) => Err(format!("{address} did not answer within {} ms", timeout.as_millis())),
    }
}

fn refusal(address: &str, error: &RedisError, why: String) -> String {
    match error.detail() {
        Some(detail) if detail.contains("cluster support disabled") => {
            format!("Redis at {address} is not part of a cluster; write redis:// for it")
        }
        _ => format!("Redis at {address} cannot be asked for its slots: {why}"),
    }
}

/// Reads `[[first, last, [host, port, id, …], replica…], …]`. A node that does not know its own
/// name gives an empty one or nil: it means the host that was asked.
pub(crate) fn ranges(reply: Value, asked: &str) -> Option<Vec<SlotRange>> {
    let Value::Array(rows) = reply else { return None };
    rows.into_iter().map(|row| range(row, asked)).collect()
}

fn range(row: Value, asked: &str) -> Option<SlotRange> {
    let Value::Array(fields) = row else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &fields[..] else {
        return None;
    };
    let [host, Value::Int(port), ..] = &master[..] else { return None };
    let host = match host {
        Value::BulkString(name) if !name.is_empty() => std::str::from_utf8(name).ok()?,
        Value::BulkString(_) | Value::Nil => asked,
        _ => return None,
    };
    let first = u16::try_from(*first).ok()?;
    let last = u16::try_from(*last).ok()?;
    let port = u16::try_from(*port).ok()?;
    let is_range = first <= last && last < SLOTS;
    is_range.then(|| SlotRange { first, last, master: address_text(host, port) })
}

/// The hash slot of a key: CRC16 of what is between the first `{` and the next `}`, where there is
/// something, else of the whole key.
pub fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    crc16(tag.unwrap_or(key)) % SLOTS
}

/// CRC-16/XMODEM, a bit at a time made a byte at a time by a table.
fn crc16(bytes: &[u8]) -> u16 {
    const TABLE: [u16; 256] = table();
    bytes.iter().fold(0, |crc, byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        // From the cluster specification, and from CLUSTER KEYSLOT of Redis 7.
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (key, slot) in [("foo", 12182), ("bar", 5061), ("", 0), ("somekey", 11058)] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
        assert_eq!(slot_of(b"a{foo}b"), slot_of(b"foo"));
        assert_eq!(slot_of(b"a{}{foo}"), crc16(b"a{}{foo}") % SLOTS);
        assert_eq!(slot_of(b"a{{foo}}"), slot_of(b"{foo"));
        assert_eq!(slot_of(b"a{foo"), crc16(b"a{foo") % SLOTS);
    }

    #[test]
    fn ranges_are_read() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let node = |host: Value, port| Value::Array(vec![host, Value::Int(port), text("id")]);
        let row = |first, last, node| Value::Array(vec![Value::Int(first), Value::Int(last), node]);
        let reply = Value::Array(vec![
            row(0, 99, node(text("10.0.0.1"), 7000)),
            row(100, 16383, node(Value::Nil, 7001)),
        ]);
        let ranges = ranges(reply, "seed").unwrap();
        assert_eq!(owner(&ranges, 99), Some(("10.0.0.1".to_owned(), 7000)));
        assert_eq!(owner(&ranges, 100), Some(("seed".to_owned(), 7001)));
        assert!(super::ranges(Value::Array(vec![row(0, 16384, Value::Nil)]), "x").is_none());
        let backwards = row(5, 3, node(text("10.0.0.1"), 7000));
        assert!(super::ranges(Value::Array(vec![backwards]), "x").is_none());
        assert!(super::ranges(Value::Okay, "x").is_none());
    }
}
