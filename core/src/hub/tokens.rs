//! The tokens that a hub admits peers with, and the principals that are accountable for what untrusted peers deliver.

use crate::{
    group::Principal,
    prelude::*,
    protocol::{Role, Token, TokenGrant, TokenHash, TokenId, TokenTable},
};

/// A hub's tokens: its own, which end with the hub, and those that its shell keeps in a file. Seconds are those since 1970.
#[derive(Clone, Debug, Default)]
pub struct HubTokens {
    own: TokenTable,
    /// Both kinds, for lookup at the handshake.
    all: TokenTable,
    stored: Vec<(TokenHash, TokenGrant)>,
    of_pages: VecDeque<TokenId>,
    /// Tokens that many workers may present: the hub's own worker token, and its successors after rotation.
    shared: BTreeSet<TokenId>,
}

/// The most tokens exist already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there are {} tokens already; revoke some", HubTokens::MAX)]
pub struct TokensFull;

impl HubTokens {
    /// Most tokens of a hub, and of its file.
    pub const MAX: usize = 1024;
    /// Most tokens requested by pages; when it is exceeded, the oldest is revoked.
    pub const MAX_OF_PAGES: usize = 256;
    /// Lifetime of a token that a page requested, in seconds.
    pub const PAGE_SECONDS: u64 = 24 * 60 * 60;

    /// Adds a token of the hub itself.
    pub fn add(&mut self, token: &Token, grant: TokenGrant) -> TokenId {
        let hash = TokenHash::of(token);
        self.own.insert(hash, grant);
        self.all.insert(hash, grant);
        hash.id()
    }

    /// Adds a token for a worker in a browser tab. Returns its id and when it expires.
    pub fn add_for_page(&mut self, token: &Token, now: u64) -> (TokenId, Option<u64>) {
        while self.of_pages.len() >= Self::MAX_OF_PAGES
            && let Some(oldest) = self.of_pages.pop_front()
        {
            self.revoke(oldest);
        }
        let expires = Some(now.saturating_add(Self::PAGE_SECONDS));
        let id = self.add(token, TokenGrant { role: Role::Worker, child: None, expires });
        self.of_pages.push_back(id);
        (id, expires)
    }

    /// Adds a token that expires after `seconds`, or never.
    ///
    /// # Errors
    /// [`TokensFull`].
    pub fn create(
        &mut self,
        token: &Token,
        role: Role,
        seconds: Option<u64>,
        now: u64,
    ) -> Result<TokenGrant, TokensFull> {
        self.own.forget_over(now);
        if self.own.iter().len() >= Self::MAX {
            return Err(TokensFull);
        }
        let expires = seconds.map(|seconds| now.saturating_add(seconds));
        let grant = TokenGrant { role, child: None, expires };
        self.add(token, grant);
        self.join();
        Ok(grant)
    }

    /// Adds a token with the role, the expiry and the holders of another one, which expires after `seconds`; `None` if the hub
    /// itself has no such token, or has it for a child process.
    ///
    /// # Errors
    /// [`TokensFull`].
    pub fn rotate(
        &mut self,
        id: TokenId,
        new: &Token,
        seconds: u64,
        now: u64,
    ) -> Result<Option<TokenGrant>, TokensFull> {
        self.own.forget_over(now);
        let of_id = |(hash, grant): &&(TokenHash, TokenGrant)| hash.id() == id && grant.child.is_none();
        let Some((_, grant)) = self.own.iter().find(of_id).copied() else { return Ok(None) };
        if self.own.iter().len() >= Self::MAX {
            return Err(TokensFull);
        }
        self.own.expire_at(id, now.saturating_add(seconds));
        let new = self.add(new, grant);
        if self.is_shared(id) {
            self.shared.insert(new);
        }
        if self.is_of_page(id) {
            self.of_pages.push_back(new);
        }
        self.join();
        Ok(Some(grant))
    }

    /// Revokes one of the hub's own tokens. Returns whether it existed.
    pub fn revoke(&mut self, id: TokenId) -> bool {
        let was_there = self.own.revoke(id);
        self.join();
        was_there
    }

    /// Lets one of the hub's own tokens be valid until it is revoked.
    pub fn keep(&mut self, id: TokenId) {
        self.own.keep(id);
        self.join();
    }

    /// Replaces the tokens that are kept in the shell's file.
    pub fn set_stored(&mut self, rows: &[(TokenHash, TokenGrant)]) {
        self.stored = rows.to_vec();
        self.join();
    }

    fn join(&mut self) {
        self.all = self.own.clone();
        self.stored.iter().for_each(|(hash, grant)| self.all.insert(*hash, *grant));
    }

    /// Returns all tokens.
    #[must_use]
    pub fn table(&self) -> &TokenTable {
        &self.all
    }

    /// Marks a token as shared: many workers may present it.
    pub fn share(&mut self, token: &Token) {
        self.shared.insert(TokenHash::of(token).id());
    }

    /// Returns whether many workers may present the token.
    #[must_use]
    pub fn is_shared(&self, id: TokenId) -> bool {
        self.shared.contains(&id)
    }

    /// Returns whether a page requested the token.
    #[must_use]
    pub fn is_of_page(&self, id: TokenId) -> bool {
        self.of_pages.contains(&id)
    }

    /// Returns the principal of an untrusted worker: its token, or its `connection` if it shares its token with others. A
    /// connection's number has its upper half set, so that it is no token.
    #[must_use]
    pub fn principal(&self, token: TokenId, connection: u64) -> Principal {
        Principal(if self.is_shared(token) { connection } else { u64::from(token.0) })
    }

    /// Returns the token that a principal stands for, if it is a token and that token still exists.
    #[must_use]
    pub fn of_principal(&self, principal: Principal) -> Option<TokenId> {
        let id = u32::try_from(principal.0).ok().map(TokenId)?;
        self.all.iter().any(|(hash, _)| hash.id() == id).then_some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(number: usize) -> Token {
        Token::new(core::array::from_fn(|byte| (number >> (8 * (byte % 2))) as u8))
    }

    #[test]
    fn pages_cannot_fill_the_table() {
        let (mut tokens, now) = (HubTokens::default(), 1_000);
        (0..HubTokens::MAX_OF_PAGES + 2).for_each(|number| _ = tokens.add_for_page(&token(number), now));
        assert_eq!(tokens.table().find(&token(1), 0), None);
        assert!(tokens.table().find(&token(2), now).is_some());
        assert!(tokens.table().find(&token(2), now + 2 * HubTokens::PAGE_SECONDS).is_none());
    }

    #[test]
    fn rotated_token_has_the_holders_of_the_old_one_which_expires() {
        let mut tokens = HubTokens::default();
        let (of_all, of_page) = (token(1), token(2));
        tokens.add(&of_all, TokenGrant { role: Role::Worker, child: None, expires: None });
        tokens.share(&of_all);
        tokens.add_for_page(&of_page, 0);
        let mut rotate = |old: &Token, new: &Token| {
            let grant = tokens.rotate(TokenHash::of(old).id(), new, 5, 0).unwrap().unwrap();
            assert_eq!(grant.role, Role::Worker);
            assert!(tokens.table().find(old, 4).is_some() && tokens.table().find(old, 5).is_none());
            let id = TokenHash::of(new).id();
            (tokens.is_shared(id), tokens.is_of_page(id))
        };
        assert_eq!(rotate(&of_all, &token(3)), (true, false));
        assert_eq!(rotate(&of_page, &token(4)), (false, true));
        let child = tokens.add(&token(5), TokenGrant { role: Role::Worker, child: Some(1), expires: None });
        assert_eq!(tokens.rotate(child, &token(6), 5, 0), Ok(None), "it ends with its process");
    }

    #[test]
    fn holder_of_a_token_is_one_principal_unless_others_have_it_too() {
        let mut tokens = HubTokens::default();
        let grant = TokenGrant { role: Role::Worker, child: None, expires: None };
        let (own, shared) = (tokens.add(&token(1), grant), tokens.add(&token(2), grant));
        tokens.share(&token(2));
        let connections = [7 << 32 | 1, 7 << 32 | 2];
        let principals = |id| connections.map(|connection| tokens.principal(id, connection));
        assert_eq!(principals(own), [Principal(own.0.into()); 2]);
        assert_eq!(principals(shared), connections.map(Principal));
        assert_eq!(tokens.of_principal(Principal(own.0.into())), Some(own));
        assert_eq!(tokens.of_principal(Principal(connections[0])), None);
    }

    #[test]
    fn table_is_full_until_tokens_expire() {
        let mut tokens = HubTokens::default();
        let mut create = |number, now| tokens.create(&token(number), Role::Viewer, Some(10), now);
        assert!((0..HubTokens::MAX).all(|number| create(number, 0).is_ok()));
        assert_eq!(create(HubTokens::MAX, 9), Err(TokensFull));
        assert!(create(HubTokens::MAX, 10).is_ok());
        for number in 1..HubTokens::MAX {
            let _ = tokens.create(&token(HubTokens::MAX + number), Role::Viewer, Some(10), 10);
        }
        let one = TokenHash::of(&token(HubTokens::MAX)).id();
        assert_eq!(tokens.rotate(one, &token(1), 5, 10), Err(TokensFull), "a rotation makes one more");
    }
}
