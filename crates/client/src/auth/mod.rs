//! Credentials of a target: [`secret`], API keys that are renewed during a load ([`token`]), and signatures of webhooks ([`sign`]).

pub(crate) mod keys;
pub(crate) mod renewed;
pub mod secret;
pub mod sign;
pub mod token;
