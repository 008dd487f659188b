//! The address of a hub.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Address of a hub: `ws://HOST:PORT`, also written `http://HOST:PORT/` like dashboards' addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HubUrl(String);

/// A text is not a valid address of a hub.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HubUrlError {
    /// It contains a token.
    #[error(
        "leave the token out of --hub, where every process can read it: put what stands behind #token= into the \
         environment variable ROLLMESH_TOKEN, or into a file for --token-file"
    )]
    Token,
    /// It has another form.
    #[error("the address of a hub is ws://HOST:PORT or wss://HOST:PORT, or that of its dashboard")]
    Form,
}

impl HubUrl {
    /// Returns the address for a socket, without its path.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for HubUrl {
    type Err = HubUrlError;

    fn from_str(text: &str) -> Result<Self, HubUrlError> {
        let schemes = [("ws://", "ws://"), ("http://", "ws://"), ("wss://", "wss://"), ("https://", "wss://")];
        let (scheme, rest) = schemes
            .iter()
            .find_map(|(written, scheme)| Some((scheme, text.strip_prefix(written)?)))
            .ok_or(HubUrlError::Form)?;
        if rest.contains(['#', '?', '@']) {
            return Err(HubUrlError::Token);
        }
        let host = rest.trim_end_matches('/');
        let is_host = !host.is_empty() && host.chars().all(|c| c.is_ascii_graphic());
        if is_host { Ok(Self(format!("{scheme}{host}"))) } else { Err(HubUrlError::Form) }
    }
}

impl TryFrom<String> for HubUrl {
    type Error = HubUrlError;

    fn try_from(text: String) -> Result<Self, HubUrlError> {
        text.parse()
    }
}

impl From<HubUrl> for String {
    fn from(url: HubUrl) -> Self {
        url.0
    }
}

impl fmt::Display for HubUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_as_people_and_dashboards_write_them() {
        for text in ["ws://127.0.0.1:7878", "http://127.0.0.1:7878", "http://127.0.0.1:7878/"] {
            assert_eq!(text.parse::<HubUrl>().unwrap().as_str(), "ws://127.0.0.1:7878");
        }
        assert_eq!("https://hub.example".parse::<HubUrl>().unwrap().as_str(), "wss://hub.example");
        for text in ["", "ws://", "127.0.0.1:7878", "ftp://host", "ws://a b"] {
            assert_eq!(text.parse::<HubUrl>(), Err(HubUrlError::Form), "{text}");
        }
        for text in ["http://127.0.0.1:7878/#token=aa", "ws://host/?token=aa", "ws://me:aa@host"] {
            assert_eq!(text.parse::<HubUrl>(), Err(HubUrlError::Token), "{text}");
        }
    }
}
