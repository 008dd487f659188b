//! Tokens: who holds one has the role that it was made for.

use core::{fmt, hint::black_box};

use serde::{Deserialize, Serialize};
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};

use super::Role;
use crate::prelude::*;

/// 32 random bytes. Never shown: not by `Debug`, not in errors.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token([u8; 32]);

/// A text is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a token has 64 hexadecimal digits")]
pub struct TokenTextError;

impl Token {
    /// Takes 32 bytes from a cryptographic source of randomness.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Reads the form in which tokens travel in environment variables and URL fragments.
    ///
    /// # Errors
    /// [`TokenTextError`] for anything but 64 hexadecimal digits.
    pub fn from_hex(text: &str) -> Result<Self, TokenTextError> {
        let digits = text.as_bytes();
        let mut bytes = [0; 32];
        if digits.len() != 2 * bytes.len() {
            return Err(TokenTextError);
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = hex_digit(pair[0])? << 4 | hex_digit(pair[1])?;
        }
        Ok(Self(bytes))
    }

    /// The form that [`from_hex`](Self::from_hex) reads. For handing the token on, never for logs.
    #[must_use]
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

fn hex_digit(digit: u8) -> Result<u8, TokenTextError> {
    char::from(digit).to_digit(16).map(|value| value as u8).ok_or(TokenTextError)
}

impl PartialEq for Token {
    /// Takes the same time wherever the tokens differ.
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

/// What a token is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenGrant {
    /// The role of its holder.
    pub role: Role,
    /// The child process that it was made for, if the hub started its holder.
    pub child: Option<u32>,
}

/// The tokens that a hub has given out.
#[derive(Clone, Debug, Default)]
pub struct TokenTable {
    tokens: Vec<(Token, TokenGrant)>,
}

impl TokenTable {
    /// A table without tokens: nobody gets in.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a token valid.
    pub fn insert(&mut self, token: Token, grant: TokenGrant) {
        self.tokens.push((token, grant));
    }

    /// Makes a token invalid. Connections that were opened with it are the caller's to close.
    pub fn revoke(&mut self, token: &Token) {
        self.tokens.retain(|(known, _)| known != token);
    }

    /// What the token is good for. Looks at all tokens, whether or where one fits, so that the time tells nothing.
    #[must_use]
    pub fn find(&self, token: &Token) -> Option<TokenGrant> {
        let mut place = u32::MAX;
        for (i, (known, _)) in (0u32..).zip(&self.tokens) {
            let fits: Choice = known.0.ct_eq(&token.0);
            place.conditional_assign(&i, fits);
        }
        self.tokens.get(black_box(place) as usize).map(|&(_, grant)| grant)
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
    fn a_token_is_found_until_it_is_revoked() {
        let grant = |role, child| TokenGrant { role, child };
        let [a, b] = [Token::new([1; 32]), Token::new([2; 32])];
        let mut table = TokenTable::new();
        table.insert(a, grant(Role::Operator, None));
        table.insert(b, grant(Role::Worker, Some(4)));
        assert_eq!(table.find(&a), Some(grant(Role::Operator, None)));
        assert_eq!(table.find(&b), Some(grant(Role::Worker, Some(4))));
        assert_eq!(table.find(&Token::new([0; 32])), None);
        table.revoke(&a);
        assert_eq!(table.find(&a), None);
        assert_eq!(table.find(&b), Some(grant(Role::Worker, Some(4))));
    }

    #[test]
    fn debug_shows_no_token() {
        assert_eq!(format!("{:?}", Token::new([0xab; 32])), "Token(…)");
    }
}
