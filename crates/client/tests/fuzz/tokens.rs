//! Fuzzes the response of a token server: HTTP/1.1 with OAuth's JSON, in pieces whose size is the first byte.

use std::io::{self, Read, Write};
use std::time::Duration;

use plimsoll_client::auth::secret::Secret;
use plimsoll_client::auth::token::TokenServer;
use plimsoll_workload::{TargetSpec, TokenAuth, TokenSpec};

/// A connection that returns these bytes, independent of the request.
struct Answer<'a> {
    rest: &'a [u8],
    piece: usize,
}

impl Read for Answer<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let n = self.piece.min(room.len()).min(self.rest.len());
        room[..n].copy_from_slice(&self.rest[..n]);
        self.rest = &self.rest[n..];
        Ok(n)
    }
}

impl Write for Answer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A secret that a server may echo.
const SECRET: &str = "hush";

pub fn check(bytes: &[u8]) {
    let Some((piece, rest)) = bytes.split_first() else { return };
    let token = TokenSpec {
        url: "http://tokens/oauth".into(),
        client_id: "me".into(),
        secret_env: Some("SECRET".into()),
        secret_file: None,
        scope: None,
        audience: None,
        auth: TokenAuth::Post,
    };
    let server = TokenServer::new(&TargetSpec::default(), &token).expect("a sound URL");
    let secret = Secret::new(SECRET, "test").expect("a usable one");
    let ask = |piece: usize| server.ask_on(Answer { rest, piece }, &secret, Duration::from_secs(60));
    let said = ask(usize::from(*piece).max(1));
    match &said {
        Ok(given) => assert!(given.renew_at(0).is_none_or(|at| (0..1_000_000_000_000_000_000).contains(&at))),
        Err(why) => assert!(!why.to_string().contains(SECRET), "{why}"),
    }
    assert_eq!(ask(usize::MAX).is_ok(), said.is_ok());
}
