//! Tokens: the holder of a token has the role that it was issued for.

use core::{fmt, hint::black_box, str::FromStr};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};

use super::Role;
use crate::prelude::*;

/// A token: 32 random bytes. Never shown: neither by `Debug` nor in errors.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token([u8; 32]);

/// The text is not a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a token has 64 hexadecimal digits")]
pub struct TokenTextError;

impl Token {
    /// Creates a token from 32 bytes of a cryptographic random number generator.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Parses the form that environment variables and URL fragments contain.
    ///
    /// # Errors
    /// [`TokenTextError`] for anything but 64 hexadecimal digits.
    pub fn from_hex(text: &str) -> Result<Self, TokenTextError> {
        bytes_of_hex(text).map(Self).ok_or(TokenTextError)
    }

    /// Formats it as [`from_hex`](Self::from_hex) reads it. For handing over the token, never for logs.
    #[must_use]
    pub fn to_hex(&self) -> String {
        hex(&self.0)
    }
}

/// Formats bytes as hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the bytes that 64 hexadecimal digits stand for.
#[must_use]
pub fn bytes_of_hex(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16).map(|digit| digit as u8);
        *byte = digit(0)? << 4 | digit(1)?;
    }
    (digits.len() == 2 * bytes.len()).then_some(bytes)
}

impl PartialEq for Token {
    /// Compares in constant time.
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Token {}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// SHA-256 of a token, which is all that a hub keeps of it. A token has 256 random bits, so the hash cannot be reversed.
#[derive(Clone, Copy, Debug)]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    /// Returns the hash of a token.
    #[must_use]
    pub fn of(token: &Token) -> Self {
        Self(Sha256::digest(token.0).into())
    }

    /// Parses the form that files contain.
    ///
    /// # Errors
    /// [`TokenTextError`] for anything but 64 hexadecimal digits.
    pub fn from_hex(text: &str) -> Result<Self, TokenTextError> {
        Token::from_hex(text).map(|Token(bytes)| Self(bytes))
    }

    /// Formats it as [`from_hex`](Self::from_hex) reads it.
    #[must_use]
    pub fn to_hex(&self) -> String {
        Token(self.0).to_hex()
    }

    /// Returns the id, for display and logs.
    #[must_use]
    pub fn id(&self) -> TokenId {
        let [a, b, c, d, ..] = self.0;
        TokenId(u32::from_be_bytes([a, b, c, d]))
    }
}

impl PartialEq for TokenHash {
    /// Compares in constant time.
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for TokenHash {}

/// Id of a token: the first four bytes of its hash, written as eight hexadecimal digits. Not secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenId(pub u32);

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

impl FromStr for TokenId {
    type Err = TokenIdError;

    fn from_str(text: &str) -> Result<Self, TokenIdError> {
        let is_hex = text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let id = u32::from_str_radix(text, 16).ok().filter(|_| is_hex);
        id.map(Self).ok_or(TokenIdError)
    }
}

/// The text is not a token id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the name of a token has 8 hexadecimal digits; `rollmesh tokens list` shows them")]
pub struct TokenIdError;

/// The rights that a token grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenGrant {
    /// The role of its holder.
    pub role: Role,
    /// The child process that it was issued for, if the hub started its holder.
    pub child: Option<u32>,
    /// When it expires, in seconds since 1970 on the hub's clock.
    pub expires: Option<u64>,
}

impl TokenGrant {
    /// Returns whether it has expired.
    #[must_use]
    pub fn is_over(&self, now: u64) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

/// The tokens that a hub has issued, as hashes.
#[derive(Clone, Debug, Default)]
pub struct TokenTable {
    tokens: Vec<(TokenHash, TokenGrant)>,
}

impl TokenTable {
    /// Creates a table without tokens, which admits no peer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a token.
    pub fn insert(&mut self, token: TokenHash, grant: TokenGrant) {
        self.tokens.push((token, grant));
    }

    /// Revokes a token; returns false if none has this id. The caller has to close the connections that were opened with it.
    pub fn revoke(&mut self, id: TokenId) -> bool {
        let before = self.tokens.len();
        self.tokens.retain(|(known, _)| known.id() != id);
        self.tokens.len() != before
    }

    /// Lets a token expire at this second, unless it does so earlier; returns false if none has this id.
    pub fn expire_at(&mut self, id: TokenId, second: u64) -> bool {
        let mut found = false;
        for (_, grant) in self.tokens.iter_mut().filter(|(known, _)| known.id() == id) {
            grant.expires = Some(grant.expires.map_or(second, |expires| expires.min(second)));
            found = true;
        }
        found
    }

    /// Lets a token be valid until it is revoked.
    pub fn keep(&mut self, id: TokenId) {
        let found = self.tokens.iter_mut().filter(|(known, _)| known.id() == id);
        found.for_each(|(_, grant)| grant.expires = None);
    }

    /// Removes expired tokens.
    pub fn forget_over(&mut self, now: u64) {
        self.tokens.retain(|(_, grant)| !grant.is_over(now));
    }

    /// Returns what the token grants at this second. Compares with all tokens, whether or not one matches, so that the time
    /// reveals nothing.
    #[must_use]
    pub fn find(&self, token: &Token, now: u64) -> Option<(TokenId, TokenGrant)> {
        let hash = TokenHash::of(token);
        let mut place = u32::MAX;
        for (i, (known, _)) in (0u32..).zip(&self.tokens) {
            let fits: Choice = known.0.ct_eq(&hash.0);
            place.conditional_assign(&i, fits);
        }
        let found = self.tokens.get(black_box(place) as usize);
        found.filter(|(_, grant)| !grant.is_over(now)).map(|(known, grant)| (known.id(), *grant))
    }

    /// Returns whether the token of this id is valid at this second.
    #[must_use]
    pub fn is_valid(&self, id: TokenId, now: u64) -> bool {
        self.tokens.iter().any(|(known, grant)| known.id() == id && !grant.is_over(now))
    }

    /// Iterates over all tokens in the order in which they were added.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &(TokenHash, TokenGrant)> {
        self.tokens.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_leads_there_and_back_and_nothing_else_does() {
        let token = Token::new(core::array::from_fn(|i| i as u8 * 7));
        assert_eq!(Token::from_hex(&token.to_hex()), Ok(token));
        assert_eq!(Token::from_hex(&token.to_hex().to_uppercase()), Ok(token));
        for bad in ["", "ab", &"g".repeat(64), &"a".repeat(63), &"a".repeat(66), &"é".repeat(32)] {
            assert_eq!(Token::from_hex(bad), Err(TokenTextError));
        }
    }

    #[test]
    fn a_token_is_found_until_it_is_revoked_or_runs_out() {
        let grant = |role, child| TokenGrant { role, child, expires: None };
        let [a, b] = [Token::new([1; 32]), Token::new([2; 32])];
        let [id_a, id_b] = [a, b].map(|token| TokenHash::of(&token).id());
        let mut table = TokenTable::new();
        table.insert(TokenHash::of(&a), grant(Role::Operator, None));
        table.insert(TokenHash::of(&b), grant(Role::Worker, Some(4)));
        assert_eq!(table.find(&a, 0), Some((id_a, grant(Role::Operator, None))));
        assert_eq!(table.find(&b, u64::MAX), Some((id_b, grant(Role::Worker, Some(4)))));
        assert_eq!(table.find(&Token::new([0; 32]), 0), None);
        assert!(table.revoke(id_a) && !table.revoke(id_a));
        assert_eq!(table.find(&a, 0), None);
        assert!(table.expire_at(id_b, 100) && table.expire_at(id_b, 200) && !table.expire_at(id_a, 100));
        assert!(table.find(&b, 99).is_some() && table.is_valid(id_b, 99));
        assert!(table.find(&b, 100).is_none() && !table.is_valid(id_b, 100), "the earlier end counts");
        table.keep(id_b);
        assert!(table.is_valid(id_b, u64::MAX));
        table.expire_at(id_b, 100);
        table.forget_over(99);
        assert_eq!(table.iter().len(), 1);
        table.forget_over(100);
        assert_eq!(table.iter().len(), 0);
    }

    #[test]
    fn a_hash_is_sha_256_and_names_its_token() {
        // `printf '\0%.0s' {1..32} | sha256sum`
        let hash = TokenHash::of(&Token::new([0; 32]));
        assert_eq!(hash.to_hex(), "66687aadf862bd776c8fc18b8e9f8e20089714856ee233b3902a591d0d5f2925");
        assert_eq!(TokenHash::from_hex(&hash.to_hex()), Ok(hash));
        assert_eq!(hash.id().to_string(), "66687aad");
        assert_eq!("66687aad".parse(), Ok(hash.id()));
        for bad in ["", "66687aa", "66687aadf", "+6687aad", "x6687aad"] {
            assert_eq!(bad.parse::<TokenId>(), Err(TokenIdError));
        }
    }

    #[test]
    fn debug_shows_no_token() {
        assert_eq!(format!("{:?}", Token::new([0xab; 32])), "Token(…)");
    }
}
