//! Resolving the name of an input: files and data sets, in any supported format.
//!
//! | name | means |
//! |---|---|
//! | a file | it, in the format that its first bytes show: RLlib's JSON (also in a zip archive), D4RL's HDF5, Parquet |
//! | a folder of Minari's, or the `main_data.hdf5` in it | the data set |
//! | another folder | the files in it that end in `json`, `jsonl`, `zip`, `parquet`, `hdf5` or `h5`, sorted, numbers by their values |
//! | a pattern with `*`, `?`, `[…]` or `**` | the matching files and folders, sorted in the same way; folders without data are skipped |
//! | `D4RL/door/human-v2` | a data set of Minari's on this machine, in `$MINARI_DATASETS_PATH` or `~/.minari/datasets` |
//! | `d4rl.hopper-medium-v2` | a data set of D4RL's on this machine, in `$D4RL_DATASET_DIR` or `~/.d4rl/datasets` |
//! | `dataset` | RLlib's name: the files of `paths` in the settings, in the `format` there; without `paths` a name like any other |
//!
//! Paths take precedence over data sets, but a name that is both is an error, since reading the wrong rows would go
//! unnoticed.

use std::{
    collections::BTreeSet,
    env,
    fmt::{self, Display},
    fs::File,
    io::Read as _,
    path::{Component, Path, PathBuf},
};

use rollmesh_data::json::BYTE_ORDER_MARK;

use super::{OfflineError, files};

/// Endings of the files in a folder that are read.
pub const ENDINGS: [&str; 6] = ["json", "jsonl", "zip", "parquet", "hdf5", "h5"];

/// A file format for reading experience.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// RLlib's sample files.
    Json,
    /// D4RL's HDF5 files.
    D4rl,
    /// A Minari folder, with HDF5, Arrow or Parquet files.
    Minari,
    /// Tables.
    Parquet,
}

impl Format {
    /// Returns its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::D4rl => "d4rl",
            Self::Minari => "minari",
            Self::Parquet => "parquet",
        }
    }

    /// Returns whether its actions are the environment's; those of other formats are policies', within [-1, 1] where the
    /// environment's are bounded floats.
    #[must_use]
    pub const fn has_env_actions(self) -> bool {
        matches!(self, Self::D4rl | Self::Minari)
    }

    /// Detects the format of a file from its first bytes, or from its name if these are ambiguous.
    ///
    /// # Errors
    /// [`OfflineError::UnknownFormat`], [`OfflineError::Read`].
    pub fn of_file(path: &Path) -> Result<Self, OfflineError> {
        let mut start = Vec::new();
        let read = File::open(path).and_then(|file| file.take(512).read_to_end(&mut start));
        read.map_err(|source| OfflineError::Read { path: path.into(), source })?;
        // Of text, the first character that is neither white space nor the mark of its byte order.
        let text = start.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&start).trim_ascii_start();
        if start.starts_with(b"PAR1") {
            return Ok(Self::Parquet);
        } else if start.starts_with(b"\x89HDF") {
            return Ok(Self::D4rl);
        } else if start.starts_with(b"PK") || text.starts_with(b"{") {
            return Ok(Self::Json);
        }
        // A damaged or empty file has the format that its name says.
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("parquet") => Ok(Self::Parquet),
            Some("hdf5" | "h5") => Ok(Self::D4rl),
            Some("json" | "jsonl" | "zip") => Ok(Self::Json),
            _ => Err(OfflineError::UnknownFormat { path: path.into() }),
        }
    }
}

impl Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A file or the folder of a data set, with its format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// Its path.
    pub path: PathBuf,
    /// Its format.
    pub format: Format,
}

/// Folders of data sets that are found by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatasetFolders {
    /// Minari's folder.
    pub minari: Option<PathBuf>,
    /// D4RL's folder.
    pub d4rl: Option<PathBuf>,
}

impl DatasetFolders {
    /// Returns the folders in which `minari` and `d4rl` keep their data sets.
    #[must_use]
    pub fn of_this_user() -> Self {
        let folder = |variable: &str, usual: &str| {
            let named = env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from);
            named.or_else(|| env::home_dir().map(|home| home.join(usual)))
        };
        Self {
            minari: folder("MINARI_DATASETS_PATH", ".minari/datasets"),
            d4rl: folder("D4RL_DATASET_DIR", ".d4rl/datasets"),
        }
    }

    /// Finds a Minari data set by its id.
    fn find_minari(&self, id: &str) -> Option<PathBuf> {
        let inside = |path: &Path| path.components().all(|part| matches!(part, Component::Normal(_)));
        let folder = self.minari.as_ref().filter(|_| !id.is_empty() && inside(Path::new(id)))?.join(id);
        is_minari(&folder).then_some(folder)
    }

    /// Finds a D4RL data set by the id of its environment: `hopper_medium-v2.hdf5` for `hopper-medium-v2`; the file of the
    /// first version has no version in its name.
    fn find_d4rl(&self, id: &str) -> Option<PathBuf> {
        let plain = |name: &str| name.replace('-', "_");
        let (wanted, first) = (plain(id), id.strip_suffix("-v0").map(plain));
        let entries = self.d4rl.as_ref()?.read_dir().ok()?;
        let mut found: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        found.retain(|path| {
            let stem = path.file_stem().and_then(|stem| stem.to_str()).map(plain);
            let ending = path.extension().is_some_and(|ending| ending == "hdf5");
            ending && stem.is_some_and(|stem| stem == wanted || Some(stem) == first)
        });
        found.into_iter().min()
    }
}

/// Resolves these names in order, each file once. See the [module](self).
///
/// # Errors
/// [`OfflineError::NoFiles`], [`OfflineError::NoFilesIn`] for a named directory without data; those that a pattern matches are
/// skipped. [`OfflineError::NoDataset`], [`OfflineError::Ambiguous`], [`OfflineError::UnknownFormat`],
/// [`OfflineError::RunDirectory`], [`OfflineError::Pattern`], [`OfflineError::Remote`], [`OfflineError::Read`].
pub fn locate(names: &[String], folders: &DatasetFolders) -> Result<Vec<Located>, OfflineError> {
    let (mut all, mut seen) = (Vec::new(), BTreeSet::new());
    for name in names {
        let mut found = locate_one(name, folders)?;
        found.retain(|located| seen.insert(located.path.clone()));
        all.extend(found);
    }
    if all.is_empty() { Err(OfflineError::NoFiles(names.join(", "))) } else { Ok(all) }
}

fn locate_one(name: &str, folders: &DatasetFolders) -> Result<Vec<Located>, OfflineError> {
    let minari = folders.find_minari(name);
    let path = files::expand(name)?;
    if path.exists() {
        // In the folder of data sets a relative path and an id can be the same file.
        let same = |dataset: &PathBuf| path.canonicalize().ok() == dataset.canonicalize().ok();
        if let Some(dataset) = minari.filter(|dataset| !same(dataset)) {
            return Err(OfflineError::Ambiguous { name: name.into(), path, dataset });
        }
        return at_path(&path);
    }
    if let Some(path) = minari {
        return Ok(vec![Located { path, format: Format::Minari }]);
    }
    if let Some(id) = name.strip_prefix("d4rl.") {
        let found = folders.find_d4rl(id.rsplit('.').next().unwrap_or(id));
        let missing = || OfflineError::NoDataset {
            name: name.into(),
            folder: folders.d4rl.clone().unwrap_or_default(),
            fix: "copy its .hdf5 file there, or name the file",
        };
        return Ok(vec![Located { path: found.ok_or_else(missing)?, format: Format::D4rl }]);
    }
    let mut found = Vec::new();
    for path in files::matching_pattern(name, &path)? {
        match at_path(&path) {
            // A pattern also matches directories with other contents, such as that of an empty part.
            Err(OfflineError::NoFilesIn(_)) => {}
            located => found.extend(located?),
        }
    }
    if found.is_empty() && has_version(name) {
        return Err(OfflineError::NoDataset {
            name: name.into(),
            folder: folders.minari.clone().unwrap_or_default(),
            fix: "download it with `minari download`, or name its folder",
        });
    }
    if found.is_empty() { Err(OfflineError::NoFiles(name.into())) } else { Ok(found) }
}

/// Returns whether the name ends like a data set's id, in `…-v2`.
pub(crate) fn has_version(name: &str) -> bool {
    let version = name.rsplit_once("-v").map(|(_, version)| version);
    version.is_some_and(|version| !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit()))
}

fn is_minari(folder: &Path) -> bool {
    folder.join("metadata.json").is_file() || folder.join("data/metadata.json").is_file()
}

fn at_path(path: &Path) -> Result<Vec<Located>, OfflineError> {
    if path.is_dir() {
        if is_minari(path) {
            return Ok(vec![Located { path: path.into(), format: Format::Minari }]);
        }
        let files = files::in_directory(path, &ENDINGS)?;
        if files.is_empty() {
            return Err(OfflineError::NoFilesIn(path.into()));
        }
        return files.into_iter().map(|path| Ok(Located { format: Format::of_file(&path)?, path })).collect();
    }
    // The main file of a Minari data set stands for the data set.
    if path.file_name().is_some_and(|name| name == "main_data.hdf5")
        && let Some(folder) = path.parent().filter(|folder| is_minari(folder))
    {
        return Ok(vec![Located { path: folder.into(), format: Format::Minari }]);
    }
    Ok(vec![Located { path: path.into(), format: Format::of_file(path)? }])
}

/// Checks that all files have one format, and returns it.
///
/// # Errors
/// [`OfflineError::MixedFormats`].
pub fn one_format(located: &[Located]) -> Result<Format, OfflineError> {
    let Some(first) = located.first() else { return Err(OfflineError::NoFiles("to read from".into())) };
    match located.iter().find(|other| other.format != first.format) {
        None => Ok(first.format),
        Some(other) => Err(OfflineError::MixedFormats { first: first.clone(), other: other.clone() }),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Makes a folder with a file of each format, a Minari and a D4RL data set.
    fn folder() -> (tempfile::TempDir, DatasetFolders) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for dir in ["mixed", "sets/cartpole/expert-v0/data", "d4rl"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        let files: [(&str, &[u8]); 8] = [
            ("mixed/a.json", b"{}"),
            ("mixed/b.parquet", b"PAR1"),
            ("mixed/notes.txt", b"no data"),
            ("lines", b" {\"type\": 1}"),
            ("table", b"PAR1...."),
            ("sets/cartpole/expert-v0/data/metadata.json", b"{}"),
            ("sets/cartpole/expert-v0/data/main_data.hdf5", b"\x89HDF\r\n\x1a\n"),
            ("d4rl/hopper_medium-v2.hdf5", b"\x89HDF\r\n\x1a\n"),
        ];
        files.iter().for_each(|(name, bytes)| fs::write(root.join(name), bytes).unwrap());
        let folders = DatasetFolders { minari: Some(root.join("sets")), d4rl: Some(root.join("d4rl")) };
        (folder, folders)
    }

    #[test]
    fn every_name_means_what_rllib_or_minari_mean_by_it() {
        let (folder, folders) = folder();
        let found = |name: &str| {
            let name = name.replace("ROOT", folder.path().to_str().unwrap());
            let found = locate(&[name], &folders).unwrap();
            let strip = |path: &Path| path.strip_prefix(folder.path()).unwrap().display().to_string();
            found.iter().map(|located| (strip(&located.path), located.format)).collect::<Vec<_>>()
        };
        let one = |path: &str, format| vec![(path.to_string(), format)];
        assert_eq!(found("ROOT/lines"), one("lines", Format::Json));
        assert_eq!(found("ROOT/table"), one("table", Format::Parquet));
        assert_eq!(found("ROOT/mixed/*.json"), one("mixed/a.json", Format::Json));
        assert_eq!(found("ROOT/mixed").len(), 2);
        let set = one("sets/cartpole/expert-v0", Format::Minari);
        assert_eq!(found("cartpole/expert-v0"), set);
        assert_eq!(found("ROOT/sets/cartpole/expert-v0"), set);
        assert_eq!(
            found("ROOT/sets/cartpole/expert-v0/data/main_data.hdf5"),
            one("sets/cartpole/expert-v0/data", Format::Minari)
        );
        assert_eq!(found("d4rl.hopper-medium-v2"), one("d4rl/hopper_medium-v2.hdf5", Format::D4rl));
    }

    #[test]
    fn pattern_skips_directories_without_data() {
        let (folder, folders) = folder();
        let root = folder.path();
        fs::create_dir_all(root.join("mixed/logs")).unwrap();
        fs::write(root.join("mixed/logs/out.txt"), "no data").unwrap();
        fs::remove_file(root.join("mixed/notes.txt")).unwrap();
        let located = |name: &str| locate(&[format!("{}/{name}", root.display())], &folders);
        let found = located("mixed/*").unwrap();
        assert_eq!(found.iter().map(|located| located.format).collect::<Vec<_>>(), [Format::Json, Format::Parquet]);
        assert!(matches!(located("mixed/l*"), Err(OfflineError::NoFiles(_))));
        assert!(matches!(located("mixed/logs"), Err(OfflineError::NoFilesIn(_))));
    }

    #[test]
    fn unknown_name_is_reported_with_its_fix() {
        let (folder, folders) = folder();
        let error = |name: &str| {
            let name = name.replace("ROOT", folder.path().to_str().unwrap());
            locate(&[name], &folders).unwrap_err().to_string()
        };
        assert!(error("cartpole/expert-v9").contains("`minari download`"));
        assert!(error("d4rl.walker2d-medium-v2").contains("copy its .hdf5 file there"));
        assert!(error("ROOT/none/*.json").starts_with("there are no files"));
        assert!(error("ROOT/mixed/notes.txt").contains("neither JSON lines"));
        assert!(
            error("../sets/cartpole/expert-v0").contains("there is no data set"),
            "ids do not lead out of the folder"
        );
        assert!(error("hf://farama/cartpole").contains("another machine"));
    }

    #[test]
    fn two_meanings_are_an_error() {
        let (folder, folders) = folder();
        // The working directory of tests is the crate's.
        let set = folder.path().join("sets/src/offline");
        fs::create_dir_all(set.join("data")).unwrap();
        fs::write(set.join("data/metadata.json"), "{}").unwrap();
        let error = locate(&["src/offline".into()], &folders).unwrap_err();
        assert!(matches!(error, OfflineError::Ambiguous { .. }), "{error}");
        assert!(error.to_string().contains("write ./src/offline"), "{error}");
        let mixed = locate(&[folder.path().join("mixed").to_str().unwrap().into()], &folders).unwrap();
        assert!(one_format(&mixed).unwrap_err().to_string().contains("b.parquet is parquet"));
    }
}
