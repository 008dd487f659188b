//! TensorBoard's event files: records with checksums, each of which holds an `Event` in the encoding of Protocol Buffers.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
    process,
    time::{SystemTime, UNIX_EPOCH},
};

/// The format's version, which is in the first event.
const VERSION: &str = "brain.Event:2";
/// The status of a session that begins.
const SESSION_START: u64 = 1;
/// The polynomial of CRC-32C, reflected.
const CASTAGNOLI: u32 = 0x82f6_3b78;

/// A file to which events are appended.
#[derive(Debug)]
pub(super) struct EventFile {
    file: File,
}

impl EventFile {
    /// Creates a file with a name that TensorBoard recognises, in a directory that need not exist. One of a resumed run begins
    /// with the start of a session, at which TensorBoard drops the events of earlier files from beyond its checkpoint.
    pub(super) fn create(dir: &Path, resumed_at: Option<u64>) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // The numbers make it unique and later than those of the same run before.
        let name =
            format!("events.out.tfevents.{:010}.rollmesh.{}.{}", now.as_secs(), process::id(), now.subsec_nanos());
        let mut file = Self { file: File::options().create_new(true).append(true).open(dir.join(name))? };
        file.write(&event().text(3, VERSION).0)?;
        if let Some(step) = resumed_at {
            let start = Message::default().varint(1, SESSION_START);
            file.write(&event().varint(2, step + 1).message(7, &start).0)?;
        }
        Ok(file)
    }

    /// Appends an event with scalars.
    pub(super) fn add(&mut self, step: u64, scalars: &[(String, f64)]) -> io::Result<()> {
        let mut summary = Message::default();
        for (tag, value) in scalars {
            summary = summary.message(1, &Message::default().text(1, tag).float(2, *value as f32));
        }
        self.write(&event().varint(2, step).message(5, &summary).0)
    }

    fn write(&mut self, event: &[u8]) -> io::Result<()> {
        self.file.write_all(&record(event))
    }
}

/// Returns the bytes of a record: length, its checksum, data, its checksum; numbers are little-endian.
fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &masked_crc(&length).to_le_bytes(), data, &masked_crc(data).to_le_bytes()].concat()
}

/// Returns the checksum as the format stores it: rotated, plus a constant.
fn masked_crc(data: &[u8]) -> u32 {
    crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn crc32c(data: &[u8]) -> u32 {
    let bit = |crc: u32, _| (crc >> 1) ^ (CASTAGNOLI & (crc & 1).wrapping_neg());
    !data.iter().fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), bit))
}

/// Returns an event with the current time, without content.
fn event() -> Message {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Message::default().double(1, now.as_secs_f64())
}

/// A message of Protocol Buffers.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    /// Appends the key of a field: its number and wire type.
    fn key(mut self, field: u8, wire_type: u8) -> Self {
        self.0.push(field << 3 | wire_type);
        self
    }

    fn raw_varint(mut self, mut value: u64) -> Self {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
        self
    }

    fn varint(self, field: u8, value: u64) -> Self {
        self.key(field, 0).raw_varint(value)
    }

    fn bytes(self, field: u8, bytes: &[u8]) -> Self {
        let mut message = self.key(field, 2).raw_varint(bytes.len() as u64);
        message.0.extend(bytes);
        message
    }

    fn text(self, field: u8, text: &str) -> Self {
        self.bytes(field, text.as_bytes())
    }

    fn message(self, field: u8, inner: &Self) -> Self {
        self.bytes(field, &inner.0)
    }

    fn double(self, field: u8, value: f64) -> Self {
        let mut message = self.key(field, 1);
        message.0.extend(value.to_le_bytes());
        message
    }

    fn float(self, field: u8, value: f32) -> Self {
        let mut message = self.key(field, 5);
        message.0.extend(value.to_le_bytes());
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_format() {
        // RFC 3720, appendix B.4, and the length of a record of 24 bytes as TensorFlow writes it.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(masked_crc(&24_u64.to_le_bytes()), 0x224b_7fa3);
    }

    #[test]
    fn messages_have_keys_lengths_and_little_endian_numbers() {
        let value = Message::default().text(1, "ab").float(2, 1.5);
        assert_eq!(value.0, [0x0a, 2, b'a', b'b', 0x15, 0, 0, 0xc0, 0x3f]);
        assert_eq!(Message::default().varint(2, 300).0, [0x10, 0xac, 0x02]);
    }

    #[test]
    fn file_holds_its_version_and_then_the_scalars() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = EventFile::create(&dir.path().join("new"), Some(4)).unwrap();
        file.add(7, &[("loss".into(), 0.5)]).unwrap();
        let path = fs::read_dir(dir.path().join("new")).unwrap().next().unwrap().unwrap().path();
        assert!(path.file_name().unwrap().to_str().unwrap().starts_with("events.out.tfevents."));
        let mut rest = &fs::read(path).unwrap()[..];
        let mut events = Vec::new();
        while !rest.is_empty() {
            let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            let event = &rest[12..12 + length];
            assert_eq!(record(event), rest[..16 + length]);
            events.push(event.to_vec());
            rest = &rest[16 + length..];
        }
        // After the wall time.
        assert_eq!(events[0][9..], Message::default().text(3, VERSION).0);
        let value = Message::default().text(1, "loss").float(2, 0.5);
        let wanted = Message::default().varint(2, 7).message(5, &Message::default().message(1, &value));
        // Events from step 5 on are dropped.
        assert_eq!(events[1][9..], [0x10, 5, 0x3a, 2, 0x08, 1]);
        assert_eq!((events.len(), &events[2][9..]), (3, &wanted.0[..]));
    }
}
