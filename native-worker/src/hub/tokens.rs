//! Operators' token management.

use rollmesh_core::protocol::{
    Kind, Message, Role, TokenAction, TokenHash, TokenId,
    message::{ManageTokens, NewToken, Reply, TokenRows},
};

use super::{actor::Actor, audit::Record};

impl Actor {
    pub(super) fn manage_tokens(&mut self, peer: u32, wish: &ManageTokens) {
        let request = wish.request;
        let answer = self.do_with_tokens(wish);
        self.remember(&Record::Command { peer, kind: Kind::ManageTokens, done: answer.is_ok() });
        let answer = answer.unwrap_or_else(|error| Message::Reply(Reply { request, error, run: 0 }));
        self.answer_dashboard(peer, &answer);
        // Peers with a token that is no longer valid are expelled at once, including the operator itself.
        self.expel_invalid();
    }

    fn do_with_tokens(&mut self, wish: &ManageTokens) -> Result<Message, String> {
        let request = wish.request;
        let (id, seconds) = (TokenId(wish.token), wish.seconds);
        match TokenAction::try_from(wish.action).map_err(|error| error.to_string())? {
            TokenAction::List => Ok(Message::TokenRows(self.token_rows(request))),
            TokenAction::Revoke => {
                self.tokens.revoke(id).map_err(|error| error.to_string())?;
                self.remember(&Record::TokenRevoked { token: id });
                Ok(Message::Reply(Reply { request, error: String::new(), run: 0 }))
            }
            action @ (TokenAction::Create | TokenAction::Rotate) => {
                let made = if action == TokenAction::Create {
                    let role = Role::try_from(wish.role).map_err(|error| error.to_string())?;
                    self.tokens.create(role, Some(seconds).filter(|seconds| *seconds > 0))
                } else {
                    self.tokens.rotate(id, seconds)
                };
                let (token, grant) = made.map_err(|error| error.to_string())?;
                let (role, expires) = (grant.role, grant.expires);
                self.remember(&Record::TokenMade { token: TokenHash::of(&token).id(), role, expires });
                let (role, expires) = (role.to_wire(), expires.unwrap_or(0));
                Ok(Message::NewToken(NewToken { request, role, expires, token }))
            }
        }
    }

    fn token_rows(&self, request: u32) -> TokenRows {
        let mut rows = TokenRows { request, ..TokenRows::default() };
        // Tokens of local workers are not listed: they start and end with them.
        for (hash, grant) in self.tokens.table().iter().filter(|(_, grant)| grant.child.is_none()) {
            let id = hash.id();
            rows.ids.push(id.0);
            rows.roles.push(grant.role.to_wire());
            rows.expires.push(grant.expires.unwrap_or(0));
            rows.connections.push(self.peers.values().filter(|peer| peer.token == id).count() as u32);
        }
        rows
    }
}
