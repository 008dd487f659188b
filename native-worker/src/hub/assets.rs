//! Serves the page's files: from a directory, else embedded in the program, else a page that explains how to build them.
//!
//! Clients that accept it get them compressed. Files with a hash in their names never change, so browsers keep them;
//! they revalidate the others.

#[cfg(feature = "embed")]
use std::borrow::Cow;
use std::{
    fs, io,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use http_body_util::Full;
use hyper::{
    HeaderMap, Response, StatusCode,
    body::Bytes,
    header::{self, HeaderValue},
};

use rollmesh_core::hash::bytes_hash;

use super::{
    HubError,
    compressed::{CompressedFiles, accepts_gzip},
};

/// A complete HTTP response.
pub(super) type HttpResponse = Response<Full<Bytes>>;

/// Trunk's output directory, relative to the repository.
#[cfg(not(feature = "embed"))]
const USUAL_DIRECTORY: &str = "dist";

/// Hexadecimal digits of a hash in a file's name, which trunk writes without leading zeros.
const HASH_DIGITS: std::ops::RangeInclusive<usize> = 15..=16;

/// The files of a page.
pub(super) struct Assets {
    source: AssetSource,
    compressed: Arc<CompressedFiles>,
}

enum AssetSource {
    Directory(PathBuf),
    #[cfg(feature = "embed")]
    Embedded,
    Missing,
    /// This hub serves no page.
    Off,
}

#[cfg(feature = "embed")]
#[derive(rust_embed::RustEmbed)]
#[folder = "../dist"]
struct Embedded;

impl Assets {
    pub(super) fn find(dashboard: bool, directory: Option<&Path>) -> Result<Self, HubError> {
        let holds_page = |directory: &Path| directory.join("index.html").is_file();
        let source = match directory {
            Some(directory) if !dashboard && directory.is_dir() => AssetSource::Directory(directory.to_owned()),
            Some(directory) if !dashboard => return Err(HubError::NoDirectory(directory.to_owned())),
            None if !dashboard => AssetSource::Off,
            Some(directory) if holds_page(directory) => AssetSource::Directory(directory.to_owned()),
            Some(directory) => return Err(HubError::NoAssets(directory.to_owned())),
            None => AssetSource::usual(),
        };
        Ok(Self { source, compressed: Arc::default() })
    }

    /// Answers a request for a path that has these headers.
    pub(super) async fn answer(&self, path: &str, headers: &HeaderMap) -> HttpResponse {
        let path = match path.trim_start_matches('/') {
            "" => "index.html",
            path => path,
        };
        let file = match &self.source {
            AssetSource::Off => return text(StatusCode::NOT_FOUND, "This hub has no dashboard.\n"),
            AssetSource::Missing => return answer(StatusCode::OK, HTML, HOW_TO_BUILD.into()),
            #[cfg(feature = "embed")]
            AssetSource::Embedded => Embedded::get(path).map(|file| match file.data {
                Cow::Borrowed(bytes) => Bytes::from_static(bytes),
                Cow::Owned(bytes) => bytes.into(),
            }),
            AssetSource::Directory(directory) => read_plain(directory, path).await,
        };
        match file {
            Some(file) => self.content(path, file, headers).await,
            None => text(StatusCode::NOT_FOUND, "There is no such file.\n"),
        }
    }

    /// Answers with a file, compressed if the client accepts that, or with the status that the client's copy is valid.
    async fn content(&self, path: &str, file: Bytes, request: &HeaderMap) -> HttpResponse {
        let (kind, compresses) = kind_of(path);
        let (compressed, accepts_gzip) = (self.compressed.clone(), accepts_gzip(request));
        let raw = file.clone();
        let packed = tokio::task::spawn_blocking(move || {
            let tag = bytes_hash(&raw);
            (tag, (compresses && accepts_gzip).then(|| compressed.gzip(tag, &raw)).flatten())
        });
        // Fails only while the runtime is shut down.
        let Ok((tag, packed)) = packed.await else {
            return text(StatusCode::NOT_FOUND, "This hub is shutting down.\n");
        };
        let tag = format!("\"{tag}\"");
        let is_known = request.get_all(header::IF_NONE_MATCH).iter().any(|known| {
            known.to_str().is_ok_and(|known| known.split(',').any(|known| known.trim().trim_start_matches("W/") == tag))
        });
        let is_packed = packed.is_some();
        let mut answer = match packed {
            _ if is_known => answer(StatusCode::NOT_MODIFIED, kind, Bytes::new()),
            packed => answer(StatusCode::OK, kind, packed.unwrap_or(file)),
        };
        let headers = answer.headers_mut();
        if is_packed && !is_known {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        if compresses {
            headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
        }
        if has_hash(path) {
            let forever = HeaderValue::from_static("public, max-age=31536000, immutable");
            headers.insert(header::CACHE_CONTROL, forever);
        }
        // Weak: it is the same for both forms of the file.
        if let Ok(tag) = HeaderValue::try_from(format!("W/{tag}")) {
            headers.insert(header::ETAG, tag);
        }
        answer
    }
}

impl AssetSource {
    /// Prefers the embedded page: a page in the current directory would receive the operator's token, so it must not win.
    #[cfg(feature = "embed")]
    fn usual() -> Self {
        Self::Embedded
    }

    #[cfg(not(feature = "embed"))]
    fn usual() -> Self {
        let directory = PathBuf::from(USUAL_DIRECTORY);
        if directory.join("index.html").is_file() { Self::Directory(directory) } else { Self::Missing }
    }
}

/// Reads a file below the directory. Its path consists of plain names; hidden files, such as `.git`, are not served.
async fn read_plain(directory: &Path, path: &str) -> Option<Bytes> {
    let is_plain = |part| matches!(part, Component::Normal(name) if !name.as_encoded_bytes().starts_with(b"."));
    if !Path::new(path).components().all(is_plain) {
        return None;
    }
    let (directory, file) = (directory.to_owned(), directory.join(path));
    let read = tokio::task::spawn_blocking(move || read_within(&directory, &file));
    Some(read.await.ok()?.ok()?.into())
}

/// Reads a regular file inside the directory, following symbolic links that stay inside it; hidden files are refused.
fn read_within(directory: &Path, file: &Path) -> io::Result<Vec<u8>> {
    let (file, directory) = (file.canonicalize()?, directory.canonicalize()?);
    let within = file.strip_prefix(directory).map_err(|_| io::ErrorKind::NotFound)?;
    let is_hidden = within.iter().any(|name| name.as_encoded_bytes().starts_with(b"."));
    if is_hidden || !file.metadata()?.is_file() {
        return Err(io::ErrorKind::NotFound.into());
    }
    fs::read(file)
}

const HTML: &str = "text/html; charset=utf-8";

/// Returns a file's content type, and whether files of it become smaller when they are compressed.
fn kind_of(path: &str) -> (&'static str, bool) {
    match Path::new(path).extension().and_then(|extension| extension.to_str()) {
        Some("html") => (HTML, true),
        Some("js") => ("text/javascript; charset=utf-8", true),
        Some("css") => ("text/css; charset=utf-8", true),
        Some("wasm") => ("application/wasm", true),
        Some("svg") => ("image/svg+xml", true),
        Some("json") => ("application/json", true),
        Some("png") => ("image/png", false),
        _ => ("application/octet-stream", false),
    }
}

/// Returns whether the file's name has a hash of its content in it, as in `rollmesh-web-87e6ec63ca331b3b_bg.wasm`.
fn has_hash(path: &str) -> bool {
    let stem = Path::new(path).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let last = stem.trim_end_matches("_bg").rsplit_once('-').map_or("", |(_, last)| last);
    let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    // Decimal digits alone may be a time. Of the hashes, one in two thousand has no letter: that file is revalidated.
    HASH_DIGITS.contains(&last.len())
        && last.bytes().all(is_digit)
        && last.bytes().any(|byte| byte.is_ascii_alphabetic())
}

/// Returns a plain-text response for people.
pub(super) fn text(status: StatusCode, text: &'static str) -> HttpResponse {
    answer(status, "text/plain; charset=utf-8", Bytes::from_static(text.as_bytes()))
}

/// Returns a response with content of this media type.
pub(super) fn answer(status: StatusCode, kind: &'static str, bytes: Bytes) -> HttpResponse {
    let mut answer = Response::new(Full::new(bytes));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

const HOW_TO_BUILD: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>rollmesh</title>\
    <h1>rollmesh is running</h1><p>Its dashboard has not been built. In a clone of the repository, \
    <code>cargo xtask page</code> builds it, for a program of your own with <code>--registry</code> and the folder of its crate, \
    in which you start the program; or point <code>--assets</code> at a directory that holds it.</p></html>";
