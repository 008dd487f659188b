//! Serves the page's files: from a directory, else embedded in the program, else a page that explains how to build them.

#[cfg(feature = "embed")]
use std::borrow::Cow;
use std::{
    fs, io,
    path::{Component, Path, PathBuf},
};

use http_body_util::Full;
use hyper::{
    Response, StatusCode,
    body::Bytes,
    header::{self, HeaderValue},
};

use super::HubError;

/// A complete HTTP response.
pub(super) type Answer = Response<Full<Bytes>>;

/// Trunk's output directory, relative to the repository.
#[cfg(not(feature = "embed"))]
const USUAL_DIRECTORY: &str = "dist";

pub(super) enum Assets {
    Directory(PathBuf),
    #[cfg(feature = "embed")]
    Embedded,
    Missing,
    /// This hub serves no page.
    Off,
}

#[cfg(feature = "embed")]
#[derive(rust_embed::RustEmbed)]
#[folder = "$CARGO_MANIFEST_DIR/../dist"]
struct Embedded;

impl Assets {
    pub(super) fn find(dashboard: bool, directory: Option<&Path>) -> Result<Self, HubError> {
        let holds_page = |directory: &Path| directory.join("index.html").is_file();
        Ok(match directory {
            Some(directory) if !dashboard && directory.is_dir() => Self::Directory(directory.to_owned()),
            Some(directory) if !dashboard => return Err(HubError::NoDirectory(directory.to_owned())),
            None if !dashboard => Self::Off,
            Some(directory) if holds_page(directory) => Self::Directory(directory.to_owned()),
            Some(directory) => return Err(HubError::NoAssets(directory.to_owned())),
            None => Self::usual(),
        })
    }

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

    pub(super) async fn answer(&self, path: &str) -> Answer {
        let path = match path.trim_start_matches('/') {
            "" => "index.html",
            path => path,
        };
        match self {
            Self::Off => text(StatusCode::NOT_FOUND, "This hub has no dashboard.\n"),
            Self::Missing => content("index.html", HOW_TO_BUILD.into()),
            #[cfg(feature = "embed")]
            Self::Embedded => Embedded::get(path).map_or_else(not_found, |file| match file.data {
                Cow::Borrowed(bytes) => content(path, Bytes::from_static(bytes)),
                Cow::Owned(bytes) => content(path, bytes.into()),
            }),
            Self::Directory(directory) => {
                // Only plain names below the directory; hidden files, such as `.git`, are not served.
                let is_plain =
                    |part| matches!(part, Component::Normal(name) if !name.as_encoded_bytes().starts_with(b"."));
                if !Path::new(path).components().all(is_plain) {
                    return not_found();
                }
                let (directory, file) = (directory.clone(), directory.join(path));
                let read = tokio::task::spawn_blocking(move || read_within(&directory, &file));
                match read.await {
                    Ok(Ok(bytes)) => content(path, bytes.into()),
                    _ => not_found(),
                }
            }
        }
    }
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

fn content(path: &str, bytes: Bytes) -> Answer {
    let kind = match Path::new(path).extension().and_then(|extension| extension.to_str()) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("wasm") => "application/wasm",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("json") => "application/json",
        _ => "application/octet-stream",
    };
    answer(StatusCode::OK, kind, bytes)
}

/// Returns a plain-text response for people.
pub(super) fn text(status: StatusCode, text: &'static str) -> Answer {
    answer(status, "text/plain; charset=utf-8", Bytes::from_static(text.as_bytes()))
}

/// Returns a response with content of this media type.
pub(super) fn answer(status: StatusCode, kind: &'static str, bytes: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(bytes));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

fn not_found() -> Answer {
    text(StatusCode::NOT_FOUND, "There is no such file.\n")
}

const HOW_TO_BUILD: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>rollmesh</title>\
    <h1>rollmesh is running</h1><p>Its dashboard has not been built. In a clone of the repository, \
    <code>cargo xtask demo</code> builds it; or point <code>--assets</code> at a directory that holds it.</p></html>";
