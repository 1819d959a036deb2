//! Signs messages by the Standard Webhooks specification (1.0): three headers, and HMAC-SHA256 of `id.timestamp.body`.
//!
//! Receivers have a library for it in every language. A custom header was rejected: each receiver would have to write its
//! verification, and many would omit it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderName, HeaderValue};
use ring::hmac;

use crate::auth::secret::{Secret, SecretError};

/// Prefix of a signing key; the base64 key follows.
const PREFIX: &str = "whsec_";

/// The key that signs messages. Its `Debug` does not show the value.
#[derive(Clone, Debug)]
pub struct SigningKey(hmac::Key);

impl SigningKey {
    /// Parses `whsec_` with base64, or takes any other text as the key itself. `from` names its source in the error.
    ///
    /// # Errors
    /// Fails if the text after `whsec_` is not base64.
    pub fn new(secret: &Secret, from: &str) -> Result<SigningKey, SecretError> {
        let bytes = match secret.text().strip_prefix(PREFIX) {
            Some(coded) => STANDARD.decode(coded).map_err(|_| SecretError::NoKey(from.to_owned()))?,
            None => secret.text().as_bytes().to_vec(),
        };
        Ok(SigningKey(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }

    /// Returns the headers of a message sent at this second of the Unix epoch. `id` identifies the message and stays equal
    /// on a resend.
    pub fn headers(&self, id: &str, at_s: i64, body: &[u8]) -> Vec<(HeaderName, HeaderValue)> {
        let signature = format!("v1,{}", STANDARD.encode(self.sign(id, at_s, body)));
        let text =
            |name, text: String| Some((HeaderName::from_static(name), HeaderValue::try_from(text).ok()?));
        [text("webhook-signature", signature)].into_iter().chain(plain_headers(id, at_s)).flatten().collect()
    }

    fn sign(&self, id: &str, at_s: i64, body: &[u8]) -> hmac::Tag {
        let mut signing = hmac::Context::with_key(&self.0);
        signing.update(format!("{id}.{at_s}.").as_bytes());
        signing.update(body);
        signing.sign()
    }
}

/// Returns the headers of an unsigned message: its id and its send time.
pub fn plain_headers(id: &str, at_s: i64) -> [Option<(HeaderName, HeaderValue)>; 2] {
    let text = |name, text: String| Some((HeaderName::from_static(name), HeaderValue::try_from(text).ok()?));
    [text("webhook-id", id.to_owned()), text("webhook-timestamp", at_s.to_string())]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the test vector of the specification's own libraries.
    #[test]
    fn the_signature_is_the_specifications() {
        let secret = Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "test").expect("usable");
        let key = SigningKey::new(&secret, "test").expect("base64");
        let headers = key.headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b"{\"test\": 2432232314}");
        let of = |name: &str| {
            headers
                .iter()
                .find(|(n, _)| n == name)
                .map(|(_, value)| value.to_str().expect("ascii").to_owned())
        };
        assert_eq!(
            of("webhook-signature").as_deref(),
            Some("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=")
        );
        assert_eq!(of("webhook-id").as_deref(), Some("msg_p5jXN8AQM9LWM0D4loKWxJek"));
        assert_eq!(of("webhook-timestamp").as_deref(), Some("1614265330"));
        assert!(!format!("{key:?}").contains("MfKQ9"), "{key:?}");
    }

    #[test]
    fn a_key_that_is_no_base64_is_refused_without_being_quoted() {
        let secret = Secret::new("whsec_~~~~", "test").expect("usable");
        let error = SigningKey::new(&secret, "$HOOK_KEY").expect_err("refused").to_string();
        assert!(error.contains("$HOOK_KEY") && !error.contains("~~~~"), "{error}");
    }
}
