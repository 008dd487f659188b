//! Operators' token management.

use rollmesh_core::{
    hub::Record,
    protocol::{
        Kind, Message, Role, TokenAction, TokenHash, TokenId,
        message::{ManageTokens, NewToken, Reply},
    },
};

use super::actor::Actor;

impl Actor {
    pub(super) fn manage_tokens(&mut self, peer: u32, wish: &ManageTokens) {
        let request = wish.request;
        let answer = self.do_with_tokens(wish);
        self.hub.record(Record::Command { peer, kind: Kind::ManageTokens, done: answer.is_ok() });
        self.hub.answer(peer, request, answer);
        // Peers with a token that is no longer valid are expelled immediately, including the operator itself.
        self.expel_invalid();
    }

    fn do_with_tokens(&mut self, wish: &ManageTokens) -> Result<Message, String> {
        let request = wish.request;
        let (id, seconds) = (TokenId(wish.token), wish.seconds);
        match TokenAction::try_from(wish.action).map_err(|error| error.to_string())? {
            TokenAction::List => Ok(Message::TokenRows(self.hub.token_rows(request))),
            TokenAction::Revoke => {
                self.tokens.revoke(&mut self.hub.tokens, id).map_err(|error| error.to_string())?;
                self.hub.record(Record::TokenRevoked { token: id });
                Ok(Message::Reply(Reply { request, error: String::new(), run: 0 }))
            }
            action @ (TokenAction::Create | TokenAction::Rotate) => {
                let made = if action == TokenAction::Create {
                    let role = Role::try_from(wish.role).map_err(|error| error.to_string())?;
                    self.tokens.create(&mut self.hub.tokens, role, Some(seconds).filter(|seconds| *seconds > 0))
                } else {
                    self.tokens.rotate(&mut self.hub.tokens, id, seconds)
                };
                let (token, grant) = made.map_err(|error| error.to_string())?;
                let (role, expires) = (grant.role, grant.expires);
                self.hub.record(Record::TokenMade { token: TokenHash::of(&token).id(), role, expires });
                let (role, expires) = (role.to_wire(), expires.unwrap_or(0));
                Ok(Message::NewToken(NewToken { request, role, expires, token }))
            }
        }
    }
}
