//! The audit log: connections of peers and their roles, refusals, and operators' changes. JSON lines, append-only; it
//! never holds a token, nor anything else that peers send beyond their printable names. Lease events go to a file of
//! their own: honest workers fill that in minutes, which must not rotate the other records out.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use rollmesh_core::hub::{Causer, Record};
use serde::Serialize;

use super::limits::{MAX_AUDIT_BYTES, MAX_AUDIT_RECORDS};
use crate::{
    files::if_exists,
    lines::{Backlog, LineFile, LineNotice},
    private_file,
};

/// File names in error messages.
const FILE: &str = "the audit log";
const LEASES_FILE: &str = "the audit log of leases";

#[derive(Serialize)]
struct AuditLine<'a> {
    /// Milliseconds since 1970.
    at_ms: u64,
    #[serde(flatten)]
    record: &'a Record,
}

/// The audit log's files and budgets.
#[derive(Debug, Default)]
pub(super) struct Audit {
    log: Option<AuditLog>,
    leases: Option<AuditLog>,
    budgets: BTreeMap<Causer, Budget>,
}

/// A causer's records in its latest second.
#[derive(Debug, Default)]
struct Budget {
    second: u64,
    records: u32,
}

impl Budget {
    /// Takes one record of a second's budget. Returns false if the budget is used up.
    fn take(&mut self, second: u64) -> bool {
        self.second = second;
        self.records = self.records.saturating_add(1);
        self.records <= MAX_AUDIT_RECORDS
    }

    /// Resets the budget and returns how many records were dropped.
    fn end(&mut self) -> u32 {
        std::mem::take(&mut self.records).saturating_sub(MAX_AUDIT_RECORDS)
    }
}

#[derive(Debug)]
struct AuditLog {
    name: &'static str,
    files: AuditFiles,
    backlog: Backlog,
}

/// The current file; one older file is kept.
#[derive(Debug)]
struct AuditFiles {
    path: PathBuf,
    newest: LineFile,
    max_bytes: u64,
}

impl Audit {
    /// Opens the log for appending, and the lease log `NAME.leases.jsonl` next to it.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Self::open_with(path, MAX_AUDIT_BYTES)
    }

    fn open_with(path: &Path, max_bytes: u64) -> io::Result<Self> {
        let log = AuditLog::open(FILE, path, max_bytes)?;
        let leases = AuditLog::open(LEASES_FILE, &path.with_extension("leases.jsonl"), max_bytes)?;
        Ok(Self { log: Some(log), leases: Some(leases), ..Self::default() })
    }

    /// Appends a record. If it cannot be written now, it is kept in the backlog.
    pub(super) fn add(&mut self, record: &Record) -> Option<LineNotice> {
        self.add_at(record, now_ms())
    }

    fn add_at(&mut self, record: &Record, at_ms: u64) -> Option<LineNotice> {
        // Nothing may follow the record of the hub's end.
        let is_last = matches!(record, Record::Stopped);
        let notice = self.report_dropped(at_ms, is_last);
        let is_within_budget = |of| self.budgets.entry(of).or_default().take(at_ms / 1000);
        if record.causer().is_none_or(is_within_budget) {
            self.write(&AuditLine { at_ms, record }).or(notice)
        } else {
            notice
        }
    }

    /// Writes the number of records that were dropped in past seconds, and in the current one if `with_this`.
    fn report_dropped(&mut self, at_ms: u64, with_this: bool) -> Option<LineNotice> {
        let ended = self.budgets.iter_mut().filter(|(_, budget)| with_this || budget.second != at_ms / 1000);
        let left_out: Vec<_> =
            ended.map(|(&of, budget)| (of, budget.end())).filter(|(_, records)| *records > 0).collect();
        let write_dropped = |(of, records)| self.write(&AuditLine { at_ms, record: &Record::LeftOut { records, of } });
        left_out.into_iter().filter_map(write_dropped).last()
    }

    fn write(&mut self, line: &AuditLine<'_>) -> Option<LineNotice> {
        let log = if line.record.is_of_leases() { &mut self.leases } else { &mut self.log };
        log.as_mut()?.write(line)
    }

    /// Writes the pending records: the backlog and the counts of dropped records.
    pub(super) fn catch_up(&mut self) -> Option<LineNotice> {
        self.catch_up_at(now_ms())
    }

    fn catch_up_at(&mut self, at_ms: u64) -> Option<LineNotice> {
        let mut notice = self.report_dropped(at_ms, false);
        for AuditLog { files, backlog, .. } in [&mut self.log, &mut self.leases].into_iter().flatten() {
            notice = backlog.retry(|line| files.add(line)).or(notice);
        }
        notice
    }
}

impl AuditLog {
    fn open(name: &'static str, path: &Path, max_bytes: u64) -> io::Result<Self> {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        let file = private_file::append(path)?;
        let bytes = file.metadata()?.len();
        let newest = LineFile::new(file, bytes);
        let files = AuditFiles { path: path.to_owned(), newest, max_bytes };
        Ok(Self { name, files, backlog: Backlog::new(name) })
    }

    fn write(&mut self, line: &AuditLine<'_>) -> Option<LineNotice> {
        let Self { name, files, backlog } = self;
        match serde_json::to_vec(line) {
            Ok(bytes) => backlog.add([bytes, b"\n".to_vec()].concat(), |line| files.add(line)),
            Err(error) => Some(LineNotice::NoJson { file: name, error }),
        }
    }
}

/// Milliseconds since 1970.
fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

impl AuditFiles {
    fn add(&mut self, line: &[u8]) -> io::Result<()> {
        let bytes = self.newest.bytes();
        if bytes + line.len() as u64 > self.max_bytes && bytes > 0 {
            let mut older = self.path.as_os_str().to_owned();
            older.push(".1");
            // The file is renamed already if a new one could not be created last time.
            if_exists(fs::rename(&self.path, older))?;
            self.newest = LineFile::new(private_file::append(&self.path)?, 0);
        }
        self.newest.add(line)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use rollmesh_core::protocol::{Kind, Role, TokenId};

    use super::*;

    fn from() -> SocketAddr {
        ([127, 0, 0, 1], 5).into()
    }

    fn lines(path: &Path) -> Vec<serde_json::Value> {
        fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn records_are_added_and_files_are_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state/audit.jsonl");
        assert!(Audit::open(&path).unwrap().add(&Record::Stopped).is_none());
        let mut audit = Audit::open_with(&path, 1000).unwrap();
        assert!(audit.add(&Record::Denied { peer: 3, role: Role::Viewer, kind: Kind::Stop }).is_none());
        let [first, second] = &lines(&path)[..] else { panic!("two lines") };
        assert_eq!(first["event"], "stopped");
        assert!(first["at_ms"].as_u64().unwrap() > 1_600_000_000_000);
        assert_eq!(
            (&second["event"], &second["role"], &second["kind"]),
            (&"denied".into(), &"Viewer".into(), &"Stop".into())
        );
        let add = |audit: &mut Audit, run| assert!(audit.add(&Record::RunEnded { run }).is_none());
        (0..100).for_each(|run| add(&mut audit, run));
        let older = directory.path().join("state/audit.jsonl.1");
        // The state after a new file could not be created.
        fs::rename(&path, &older).unwrap();
        (100..120).for_each(|run| add(&mut audit, run));
        assert!(fs::metadata(&older).unwrap().len() <= 1000 && fs::metadata(&path).unwrap().len() <= 1000);
        assert_eq!(lines(&path).last().unwrap()["run"], 119);
        #[cfg(unix)]
        assert!(!private_file::is_public(&path).unwrap() && !private_file::is_public(&older).unwrap());
    }

    #[test]
    fn leases_push_nothing_else_out() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.jsonl");
        let mut audit = Audit::open_with(&path, 1000).unwrap();
        assert!(audit.add(&Record::TokenRevoked { token: TokenId(7) }).is_none());
        for lease in 0..1000 {
            assert!(audit.add(&Record::LeaseGranted { worker: 1, lease, slots: 4 }).is_none());
        }
        assert_eq!(lines(&path).iter().map(|line| &line["event"]).collect::<Vec<_>>(), ["token_revoked"]);
        let leases = directory.path().join("audit.leases.jsonl");
        assert_eq!(lines(&leases).last().unwrap()["lease"], 999);
        assert!(fs::metadata(&leases).unwrap().len() <= 1000);
    }

    #[test]
    fn strangers_cannot_flood_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.jsonl");
        let mut audit = Audit::open(&path).unwrap();
        for _ in 0..1000 {
            assert!(audit.add_at(&Record::Connected { from: from() }, 5_000).is_none());
        }
        assert!(audit.catch_up_at(5_999).is_none());
        assert_eq!(lines(&path).len(), MAX_AUDIT_RECORDS as usize);
        // The count is written once, when the second is over, without any other event.
        (6_000..7_000).for_each(|at_ms| assert!(audit.catch_up_at(at_ms).is_none()));
        for _ in 0..=MAX_AUDIT_RECORDS {
            assert!(audit.add_at(&Record::Limit { from: from(), what: "pending" }, 7_000).is_none());
        }
        // Or when the hub stops.
        assert!(audit.add_at(&Record::Stopped, 7_000).is_none());
        let lines = lines(&path);
        let (most, left_out) = (MAX_AUDIT_RECORDS as usize, |line: &serde_json::Value| {
            assert_eq!(line["of"], "strangers");
            line["records"].as_u64().unwrap()
        });
        assert_eq!(lines.len(), 2 * most + 3);
        assert_eq!((left_out(&lines[most]), left_out(&lines[2 * most + 1])), (1000 - most as u64, 1));
        assert_eq!(lines[2 * most + 2]["event"], "stopped");
    }

    #[test]
    fn workers_can_neither_flood_the_log_nor_hide_records_of_unauthenticated_peers() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.jsonl");
        let mut audit = Audit::open(&path).unwrap();
        for lease in 0..1000 {
            let text = String::new();
            for record in [
                Record::LeaseRefused { worker: 1, lease },
                Record::UploadRejected { worker: 1, lease, why: String::new() },
                Record::Group { text: text.clone(), is_cheap: true },
            ] {
                assert!(audit.add_at(&record, 5_000).is_none());
            }
        }
        assert!(audit.add_at(&Record::Connected { from: from() }, 5_000).is_none());
        assert!(audit.add_at(&Record::Group { text: "expired".into(), is_cheap: false }, 5_000).is_none());
        assert_eq!(lines(&path).iter().map(|line| &line["event"]).collect::<Vec<_>>(), ["connected"]);
        let leases = lines(&directory.path().join("audit.leases.jsonl"));
        assert_eq!(leases.len(), MAX_AUDIT_RECORDS as usize + 1);
        assert_eq!(leases[leases.len() - 1]["text"], "expired");
    }

    #[test]
    fn frequent_reconnects_neither_flood_the_log_nor_hide_an_operator() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.jsonl");
        let mut audit = Audit::open(&path).unwrap();
        let admitted = |peer, role| {
            let (kind, name) = ("native".into(), "a".into());
            Record::Admitted { from: from(), peer, role, token: TokenId(7), kind, name }
        };
        for peer in 0..1000 {
            assert!(audit.add_at(&admitted(peer, Role::Worker), 5_000).is_none());
            assert!(audit.add_at(&Record::Delivered { worker: peer, after_ms: 1 }, 5_000).is_none());
            assert!(audit.add_at(&Record::Left { peer, role: Role::Worker, fault: None }, 5_000).is_none());
        }
        assert!(audit.add_at(&admitted(1000, Role::Operator), 5_000).is_none());
        assert!(audit.add_at(&Record::Left { peer: 1001, role: Role::Worker, fault: None }, 6_000).is_none());
        let lines = lines(&path);
        let [.., operator, left_out, left] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!(lines.len(), MAX_AUDIT_RECORDS as usize + 3);
        assert_eq!(operator["role"], "Operator");
        assert_eq!((&left_out["records"], &left_out["of"]), (&(3000 - MAX_AUDIT_RECORDS).into(), &"workers".into()));
        assert_eq!(left["peer"], 1001);
    }
}
